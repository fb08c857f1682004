"""Whatever becomes of a settings file, it loads or is explained: no other exception gets out."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deployments.settings.plain import SettingsErrors, dump, parse
from deployments.settings_files.load import load, load_tenants
from yaml_document.mistakes import Mistake

WHOLE = """\
models:
  device:
    runtime: synthetic
    slo: {latency_ms: 100, percentile: 99, late: demote}
    lengths: {max: 64, buckets: [16, 64], truncate: false}
    batch: &small {max_size: 8, max_tokens: 1024}
    admission: {feasibility: off}
    hedge: {mode: hedge}
    replicas: {count: 1, slots: 2, num_gpus: 0.5}
    options: {base_ms: 2}
  other:
    runtime: synthetic
    lengths: {buckets: 4, truncate: true}
    queue: {max_rows: 100}
    batch: *small
tenants:
  acme: {weight: 3, priority: interactive, models: [device], rate: {requests_per_s: 5}}
controllers: {frozen: false}
gateway:
  priorities: [interactive, standard]
  port: 8000
  tracing: {otlp_endpoint: "http://127.0.0.1:4318"}
"""
PIECES = (
    "\t",
    ": ",
    "- ",
    "&a ",
    "*a",
    "!!int ",
    "<<: ",
    "  ",
    "null",
    "1e999",
    "-1",
    "0x10",
    ".inf",
)
FRAGMENTS = st.sampled_from([*"[]{}'\"\n#|é\x00", *PIECES, "9" * 400, "default", "true"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=10**300, max_value=10**310),
    st.floats(),
    st.text(max_size=8),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)


def mistakes_of(read: Callable[[Any], object], argument: object) -> tuple[Mistake, ...] | None:
    """Empty when it was read; None when it was refused without a reason."""
    try:
        read(argument)
    except SettingsErrors as error:
        explained = error.mistakes and all(each.message for each in error.mistakes)
        return error.mistakes if explained else None
    return ()


def loads_or_explains(body: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f.yaml"
        path.write_bytes(body)
        for read in (load, load_tenants):
            assert mistakes_of(read, path) is not None


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_mutated_text_loads_or_is_explained(data: st.DataObject) -> None:
    text = WHOLE
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        length = data.draw(st.integers(0, 12))
        text = text[:start] + data.draw(FRAGMENTS) + text[start + length :]
    loads_or_explains(text.encode())


@settings(deadline=None, max_examples=30)
@given(st.binary(max_size=200))
def test_random_bytes_load_or_are_explained(body: bytes) -> None:
    loads_or_explains(body)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else ()
    return [path] + [each for key, below in inner for each in places(below, (*path, key))]


PLACES = places(yaml.safe_load(WHOLE))[1:]


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.sampled_from(PLACES), VALUES, st.none() | st.text(max_size=6))
@example(("models", "device", "options", "base_ms"), float("inf"), None)
@example(("models", "device", "options", "base_ms"), [{"deep": float("nan")}], None)
def test_any_value_in_any_place_loads_or_is_explained(
    path: tuple[Any, ...], value: Any, renamed: str | None
) -> None:
    data = yaml.safe_load(WHOLE)
    # The alias is one object in the data; a change must reach one place only.
    data["models"]["other"]["batch"] = dict(data["models"]["other"]["batch"])
    at = data
    for step in path[:-1]:
        at = at[step]
    at.pop(path[-1])
    at[path[-1] if renamed is None else renamed] = value
    mistakes = mistakes_of(parse, data)
    assert mistakes is not None
    if not mistakes:
        found = parse(data)
        assert parse(dump(found)) == found
    loads_or_explains(yaml.safe_dump(data).encode())


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize(
    ("path", "at"),
    [
        (("options", "base_ms"), "options.base_ms"),
        (("slo", "latency_ms"), "slo.latency_ms"),
        (("replicas", "hang_limit_s"), "replicas.hang_limit_s"),
        (("batch", "max_size"), "batch.max_size"),
    ],
)
def test_no_number_may_be_infinite(path: tuple[str, str], at: str, number: float) -> None:
    data = yaml.safe_load(WHOLE)
    data["models"]["device"][path[0]][path[1]] = number
    mistakes = mistakes_of(parse, data)
    assert mistakes
    assert f"models.device.{at}" in [each.path for each in mistakes]
