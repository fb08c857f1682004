"""The list of backends: names, what is wrong with settings, what is missing."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from runtimes import catalog
from runtimes.errors import LoadError, MissingBackend
from runtimes.synthetic.runtime import SyntheticRuntime
from runtimes.types import RuntimeSettings


def settings(**fields: object) -> RuntimeSettings:
    return RuntimeSettings(**{"name": "m", "source": None, "cache_dir": Path("unused"), **fields})


def test_backend_is_made_by_name():
    assert isinstance(catalog.create(settings(runtime="synthetic")), SyntheticRuntime)


def test_unknown_backend_gets_the_list_and_the_close_one():
    with pytest.raises(LoadError, match=r"'openvno', did you mean 'openvino'\? known: onnx"):
        catalog.check("openvno", {}, "fp32")


def test_wrong_options_and_precisions_are_named():
    with pytest.raises(LoadError, match="'base_m', did you mean 'base_ms'"):
        catalog.check("synthetic", {"base_m": 1}, "fp32")
    with pytest.raises(LoadError, match="torch has no precision 'int4', known: fp32, bf16"):
        catalog.check("torch", {}, "int4")


def test_missing_package_is_told_with_the_extra_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install 'headrace[torch]'" in (catalog.available("torch") or "")
    assert catalog.available("synthetic") is None
    with pytest.raises(MissingBackend, match=r"headrace\[torch\]"):
        catalog.create(settings(runtime="torch"))


def test_preloading_imports_a_backends_library_its_own_way(monkeypatch):
    asked = []
    module = importlib.import_module("runtimes.openvino.runtime")
    monkeypatch.setattr(module, "library", lambda: asked.append("openvino"))
    monkeypatch.setattr(catalog, "available", lambda runtime: None)
    for runtime in ("openvino", "synthetic"):
        catalog.preload(runtime)
    assert asked == ["openvino"]


def test_preloading_what_is_not_installed_does_nothing(monkeypatch):
    monkeypatch.setattr(catalog, "available", lambda runtime: "it is not installed")
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    catalog.preload("onnxruntime")
    assert "onnxruntime" not in sys.modules
