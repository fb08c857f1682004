"""Are the right ways of running a model compared, and is what is missing named?"""

from __future__ import annotations

from typing import Any

import pytest

from deployments.settings.model import ModelSettings
from deployments.tools.profile.compare.candidates import Candidate, candidates
from deployments.tools.profile.errors import WrongArguments
from runtimes import catalog


def model(**fields: Any) -> ModelSettings:
    return ModelSettings.model_validate({"runtime": "openvino", "source": "m.onnx", **fields})


def named(names: list[str], cpus: int = 1, **fields: Any) -> list[str]:
    return [str(each) for each in candidates(names, model(**fields), cpus)[0]]


@pytest.fixture(autouse=True)
def everything_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "available", lambda name: None)


def test_each_precision_that_the_backend_has() -> None:
    assert named(["openvino"]) == ["openvino fp32, 1 thread", "openvino bf16, 1 thread"]
    assert named(["onnxruntime"]) == ["onnxruntime fp32, 1 thread"]


def test_the_models_own_precision_is_among_them() -> None:
    assert "openvino fp16, 1 thread" in named(["openvino"], precision="fp16")


def test_torch_comes_in_its_modes() -> None:
    found = named(["torch"])
    assert {"torch eager fp32, 1 thread", "torch compile bf16, 1 thread"} <= set(found)


def test_processors_are_one_replicas_or_shared_out() -> None:
    assert named(["onnxruntime"], 4) == [
        "onnxruntime fp32, 4 threads",
        "onnxruntime fp32, 2 replicas x 2 threads",
        "onnxruntime fp32, 4 replicas x 1 thread",
    ]


def test_options_that_the_other_backend_knows_hold_there_too() -> None:
    options = {"pad_multiple": 8, "shape_cache": 100}
    ov, ort = (candidates([name], model(options=options), 1)[0][0] for name in
               ("openvino", "onnxruntime"))  # fmt: skip
    assert dict(ov.options) == options
    assert dict(ort.options) == {"pad_multiple": 8}


def test_a_backend_named_twice_runs_once() -> None:
    assert named(["onnxruntime", "onnxruntime"]) == ["onnxruntime fp32, 1 thread"]


def test_a_precision_may_be_named() -> None:
    assert named(["openvino:bf16"]) == ["openvino bf16, 1 thread"]
    with pytest.raises(WrongArguments, match="onnxruntime has no precision 'bf16', but fp32"):
        named(["onnxruntime:bf16"])


@pytest.mark.parametrize("name", ["onnx", "", "synthetic"])
def test_a_backend_that_there_is_not_is_refused(name: str) -> None:
    with pytest.raises(WrongArguments, match=r"must be some of .*openvino"):
        candidates([name], model(), 1)


def test_a_missing_package_is_skipped_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        catalog, "available", lambda name: "pip install torch" if name == "torch" else None
    )
    found, skipped = candidates(["torch", "onnxruntime"], model(), 1)
    assert [each.runtime for each in found] == ["onnxruntime"]
    assert [(each.name, each.why) for each in skipped] == [("torch", "pip install torch")]


def test_names_are_unique() -> None:
    found = candidates(["torch", "openvino", "onnxruntime"], model(), 8)[0]
    assert len({str(each) for each in found}) == len(found)
    assert all(isinstance(each, Candidate) for each in found)
