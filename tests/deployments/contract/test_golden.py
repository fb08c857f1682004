"""What crosses processes has the bytes of its version, and every message has a sample."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from golden_bytes import ROOT, Sample, complaints
from golden_samples import CODEC_MODULES, SAMPLES, STEPS

from deployments.contract.channel import frames, handshake, stream_messages
from deployments.contract.codec import SPOKEN, WIRE, MessageCodec

DEPLOYMENTS = Path(__file__).parents[3] / "deployments"
MODULES = (handshake, frames, stream_messages)


def declared() -> set[type]:
    """Every message that the contract's modules define."""
    return {
        each
        for module in MODULES
        for each in vars(module).values()
        if isinstance(each, type)
        and issubclass(each, msgspec.Struct)
        and each.__module__ == module.__name__
        and not each.__name__.startswith("_")  # headers: in the bytes of what they are headers of
    } - {frames.WireMessage}


def parts(value: Any) -> Iterator[Any]:
    """The value and all that is in it."""
    yield value
    if isinstance(value, msgspec.Struct):
        inside: list[Any] = list(msgspec.structs.astuple(value))
    elif is_dataclass(value):
        inside = [getattr(value, field.name) for field in fields(value)]
    elif isinstance(value, dict):
        inside = list(value.values())
    elif isinstance(value, list | tuple):
        inside = list(value)
    else:
        return
    for each in inside:
        yield from parts(each)


def defaults(kind: Any) -> Iterator[tuple[str, Any]]:
    """Its fields with their defaults; a field without one has a mark of its
    own. `v` is the version."""
    described = fields(kind) if is_dataclass(kind) else msgspec.structs.fields(kind)
    yield from ((field.name, field.default) for field in described if field.name != "v")


def test_every_version_has_the_bytes_that_it_had() -> None:
    assert list(complaints(SAMPLES, SPOKEN)) == []


def test_every_message_has_a_sample_that_leaves_nothing_at_its_default() -> None:
    found = [part for sample in SAMPLES.values() for part in parts(sample.value)]
    kinds = {type(part) for part in found if isinstance(part, msgspec.Struct) or is_dataclass(part)}
    assert declared() - kinds == set()
    for kind in kinds:
        for name, default in defaults(kind):
            values = [getattr(part, name) for part in found if type(part) is kind]
            assert any(np.any(value != default) for value in values), f"{kind.__name__}.{name}"


def test_every_codec_has_a_sample() -> None:
    """`CODEC_MODULES` are all modules that make one."""
    made = {path for path in DEPLOYMENTS.rglob("*.py") if "= MessageCodec[" in path.read_text()}
    assert made == {Path(str(module.__file__)) for module in CODEC_MODULES}


def test_only_spoken_versions_are_kept() -> None:
    assert sorted(int(path.name) for path in ROOT.iterdir()) == sorted(SPOKEN)


# ---- that the check itself can fail --------------------------------------------------------------


class Wider(stream_messages.StepMessage, frozen=True):
    """STEPS with a field more, as somebody may plant it without a new version."""

    paused: int = 0


class Narrower(frames.WireMessage, frozen=True):
    """STEPS with a field less."""

    fields_in_3 = 7
    pieces: Any
    held: int
    seen: int
    inflight: int
    load: Any
    shares: Any
    read: int


def planted(kind: type[Any]) -> dict[str, Sample]:
    names = stream_messages.StepMessage.__struct_fields__
    value = kind(**{name: getattr(STEPS, name) for name in names if name in kind.__struct_fields__})
    return {**SAMPLES, "step_message": replace(SAMPLES["step_message"], value=value)}


@pytest.mark.parametrize("kind", [Wider, Narrower])
def test_a_changed_layout_without_a_new_version_is_found(kind: type[Any]) -> None:
    (found,) = complaints(planted(kind), (WIRE,))
    assert found == f"step_message has other bytes in version {WIRE}: a new layout needs a new WIRE"


def test_a_field_that_is_new_is_cut_for_version_3(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [each for each in complaints(planted(Wider), (3,)) if "other bytes" in each] == []
    monkeypatch.setattr(Wider, "fields_in_3", 9)
    assert [each for each in complaints(planted(Wider), (3,)) if "other bytes" in each] != []


@dataclass(frozen=True)
class Order:
    revision: int = 0


@dataclass(frozen=True)
class LaterOrder(Order):
    paused: bool = False


@dataclass(frozen=True)
class StricterOrder(Order):
    paused: bool = field(kw_only=True)


def test_a_message_by_name_may_grow_in_a_new_version_and_must_read_the_old_one(
    tmp_path: Path,
) -> None:
    (tmp_path / "4").mkdir()
    (tmp_path / "4" / "order.bin").write_bytes(MessageCodec[Order](Order).encode(Order(7)))

    def found(value: Order, newest: int) -> list[str]:
        codec = MessageCodec[Order](type(value))
        sample = Sample(value, lambda said, version: codec.encode(said), codec.decode, 4, True)
        return list(complaints({"order": sample}, (4,), tmp_path, newest))

    assert found(Order(7), 4) == found(LaterOrder(7, True), 5) == []
    assert "other bytes" in found(LaterOrder(7, True), 4)[0]
    assert "cannot be read" in found(StricterOrder(7, paused=True), 5)[0]


def test_a_message_without_a_file_is_found_and_so_is_a_file_without_a_message(
    tmp_path: Path,
) -> None:
    shutil.copytree(ROOT, tmp_path, dirs_exist_ok=True)
    (tmp_path / str(WIRE) / "proof.bin").rename(tmp_path / str(WIRE) / "gone.bin")
    assert list(complaints(SAMPLES, (WIRE,), tmp_path)) == [
        f"gone of version {WIRE} has no sample any more",
        f"proof has no file for version {WIRE}: write it",
    ]


def test_bytes_that_are_read_as_something_else_are_found() -> None:
    sample = replace(SAMPLES["proof"], read=lambda data: handshake.Proof(b"other"))
    assert list(complaints({**SAMPLES, "proof": sample}, (WIRE,))) == [
        f"proof of version {WIRE} is read as something else"
    ]
