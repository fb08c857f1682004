"""Messages through Ray's calls and the store: read by N and N-1, and refused where too old."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pytest

from deployments.contract.codec import SPOKEN, WIRE, MessageCodec, OtherVersion
from deployments.contract.scaling.document import ScalingDocument, parse


@dataclass(frozen=True)
class Before:
    name: str
    rows: int = 7


@dataclass(frozen=True)
class Later:
    """A version later: a field more, and in between."""

    name: str
    share: float = 0.5
    rows: int = 7


@dataclass(frozen=True)
class Counted:
    reasons: Counter[str] = field(default_factory=Counter)
    by_length: dict[int, Counter[int]] = field(default_factory=dict)


BEFORE, LATER = MessageCodec[Before](Before), MessageCodec[Later](Later)


def test_a_message_begins_with_its_version() -> None:
    assert BEFORE.encode(Before("a"))[0] == WIRE
    assert msgspec.msgpack.decode(BEFORE.encode(Before("a"))[1:]) == {"name": "a", "rows": 7}


def test_a_reader_ignores_what_it_does_not_know_and_fills_in_what_it_misses() -> None:
    assert BEFORE.decode(LATER.encode(Later("a", 0.25, 3))) == Before("a", 3)
    assert LATER.decode(BEFORE.encode(Before("a", 3))) == Later("a", 0.5, 3)


@pytest.mark.parametrize("version", [*SPOKEN, WIRE + 1, 255])
def test_versions_that_are_spoken_and_later_ones_are_read(version: int) -> None:
    said = BEFORE.encode(Before("a"))
    assert BEFORE.decode(bytes((version,)) + said[1:]) == Before("a")


@pytest.mark.parametrize("version", range(min(SPOKEN)))
def test_older_versions_are_refused(version: int) -> None:
    said = BEFORE.encode(Before("a"))
    with pytest.raises(OtherVersion, match=f"version {version}; this code reads version 3"):
        BEFORE.decode(bytes((version,)) + said[1:])


@pytest.mark.parametrize("data", [b"", b"\x04", b"\x04\x80", b"\x04\xc1", b"\x80\x04\x95pickle"])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(OtherVersion):
        BEFORE.decode(data)


def test_numbers_of_numpy_and_counters_arrive() -> None:
    codec = MessageCodec[Counted](Counted)
    said = Counted(Counter(late=np.int64(2)), {16: Counter({3: 4})})  # type: ignore[arg-type]
    found = codec.decode(codec.encode(said))
    assert (found, type(found.reasons), type(found.by_length[16])) == (said, Counter, Counter)
    assert type(found.reasons["late"]) is int


def test_a_codec_may_go_along_with_a_class_that_is_pickled() -> None:
    assert pickle.loads(pickle.dumps(BEFORE)).decode(BEFORE.encode(Before("a"))) == Before("a")


def test_a_scaling_document_is_read_whatever_else_it_says_unless_it_is_too_old() -> None:
    text = ScalingDocument().text()
    assert parse(text.replace("{", '{"new": 1,', 1)) == ScalingDocument()
    for wrong in (text.replace(f'"v":{WIRE}', '"v":2'), text[:-1], "[]"):
        with pytest.raises(OtherVersion):
            parse(wrong)
