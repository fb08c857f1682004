"""What a model must agree with: checked where it stands, and only where it is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from settings_files import mistakes, write

from deployments.settings.plain import dump, parse
from deployments.settings_files.load import load

ONNX = b"\x08\x09"  # ir_version: 9, and nothing else


def test_a_model_made_for_other_inputs_is_named_by_the_field_that_differs(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(ONNX)
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "preprocessing.json").write_text('{"tokenizer": "sha256:0"}')
    (only,) = mistakes(tmp_path, "models:\n  a:\n    runtime: openvino\n    source: m.onnx\n")
    assert only.startswith("4: models.a.source: ")
    assert 'preprocessing.json: tokenizer is "sha256:0", the service does "sha256:44136fa' in only


def test_what_a_model_must_agree_with_is_checked_where_it_stands(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(ONNX)
    text = """models:
  a:
    runtime: openvino
    source: m.onnx
    accept:
      against: torch:fp12
      artifact: none.onnx
      samples: 20
"""
    (only,) = mistakes(tmp_path, text)
    assert only == "8: models.a.accept.samples: is 20; must be a whole number, 200 to 1000000"
    against, artifact = mistakes(tmp_path, text.replace("samples: 20", "samples: 200"))
    assert against.startswith(
        "6: models.a.accept.against: 'torch:fp12' is not valid; must be RUNTIME"
    )
    assert artifact == (
        f"7: models.a.accept.artifact: no file or folder '{tmp_path / 'none.onnx'}'; "
        f"{tmp_path} holds m.onnx, some.yaml"
    )


def test_a_device_that_is_nothing_but_time_has_nothing_to_agree_with(tmp_path: Path) -> None:
    (only,) = mistakes(tmp_path, "models:\n  a: {runtime: synthetic, accept: {max_abs: 1}}\n")
    assert only == "2: models.a.accept: must be left out: a synthetic model has no artifact"


def test_what_a_changed_model_may_cost_is_said_of_any_model_of_batches(tmp_path: Path) -> None:
    text = "models:\n  a: {runtime: synthetic, accept: {max_cost_ratio: 0}}\n"
    accept = load(write(tmp_path, text)).models["a"].accept
    assert (accept.max_cost_ratio, accept.required) == (0, False)
    generates = text.replace("synthetic", "synthetic, task: generate")
    (only,) = mistakes(tmp_path, generates)
    assert only == (
        "2: models.a.accept.max_cost_ratio: must be left out: an engine's steps are not compared"
    )


@pytest.mark.parametrize(("accept", "asked"), [("{}", False), ("", False), ("{top1: 1}", True)])
def test_an_empty_section_asks_for_no_agreement(tmp_path: Path, accept: str, asked: bool) -> None:
    (tmp_path / "m.onnx").write_bytes(ONNX)
    text = f"models:\n  a: {{runtime: openvino, source: m.onnx, accept: {accept}}}\n"
    settings = load(write(tmp_path, text))
    assert settings.models["a"].accept.required is asked
    assert parse(dump(settings)) == settings
