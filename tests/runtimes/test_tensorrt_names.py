"""The backend calls nothing that TensorRT's bindings, of the version in images, do not have."""

from __future__ import annotations

import importlib.util
import json
import sys
from importlib import metadata
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

import tensorrt_names


def test_every_name_that_is_used_is_in_the_pinned_wheel():
    stored = json.loads(tensorrt_names.STORED.read_text(encoding="utf-8"))
    assert stored["version"] == tensorrt_names.pinned(), "derive them anew: tensorrt_names.py"
    assert set(stored["names"]) == tensorrt_names.fake_tensorrt.names()


def test_stored_names_are_those_of_the_bindings_where_they_are_installed():
    spec = importlib.util.find_spec("tensorrt_bindings")
    if spec is None or spec.origin is None:
        pytest.skip("pip install --no-deps tensorrt-cu13-bindings")
    if metadata.version("tensorrt-cu13-bindings") != tensorrt_names.pinned():
        pytest.skip("other bindings than those that are pinned")
    assert tensorrt_names.missing(Path(spec.origin).with_name("tensorrt.so").read_bytes()) == []


@pytest.mark.parametrize("name", ["FP16", "EXPLICIT_BATCH_NONE", "build_engine"])
def test_a_name_that_bindings_lack_is_found(name, monkeypatch):
    monkeypatch.setattr(tensorrt_names.fake_tensorrt, "names", lambda: {"TF32", name})
    assert tensorrt_names.missing(b"\0INT8\0TF32\0get_num_errors\0") == [name]


def test_a_name_that_is_the_end_of_another_counts(monkeypatch):
    monkeypatch.setattr(tensorrt_names.fake_tensorrt, "names", lambda: {"num_errors"})
    assert tensorrt_names.missing(b"\0get_num_errors\0") == []
