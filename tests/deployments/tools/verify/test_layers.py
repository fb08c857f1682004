"""A precision that a graph cannot bear is traced to its origin, and the cure tried."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from deployments.cli import main
from runtimes.openvino.model import library

pytest.importorskip("openvino")
pytest.importorskip("onnxruntime")
WIDTH = 16


def verify(file, *arguments):
    return CliRunner().invoke(main, ["verify", str(file), "m", *arguments])


def cancelling_onnx(file: Path) -> Path:
    """`x` [-1, 16] → `y`: a product far from zero, brought back by a norm, and another product."""
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    constants = [
        numpy_helper.from_array(random.normal(0, 0.2, (WIDTH, WIDTH)).astype(np.float32), name)
        for name in ("w1", "w2")
    ]
    constants.append(numpy_helper.from_array(np.float32(1000), "far"))
    constants.append(numpy_helper.from_array(np.ones(WIDTH, np.float32), "scale"))
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["first"], "first_product"),
        helper.make_node("Add", ["first", "far"], ["away"], "go_away"),
        helper.make_node("LayerNormalization", ["away", "scale"], ["back"], "come_back"),
        helper.make_node("MatMul", ["back", "w2"], ["y"], "second_product"),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["r", WIDTH]) for n in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    file.write_bytes(model.SerializeToString())
    return file


@pytest.fixture
def without_bf16() -> None:
    if "BF16" not in library().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("this processor has no bf16: nothing to lose precision with")


@pytest.mark.usefixtures("without_bf16")
def test_the_operation_that_loses_precision_is_named_and_kept_in_fp32_to_the_model_s_cure(
    settings_file, tmp_path
):
    cancelling_onnx(tmp_path / "m.onnx")
    bounds = ("--max-abs", "0.05")
    done = verify(settings_file(source="m.onnx", precision="bf16"), *bounds, "--layers")
    assert done.exit_code == 1
    assert "layers: 4 tensors of sample" in done.output
    assert "against onnxruntime fp32" in done.output
    first = next(line for line in done.output.splitlines() if line.startswith("  first: "))
    assert "go_away" in first or "come_back" in first
    assert "with it the model is accepted" in done.output
    kept = next(line for line in done.output.splitlines() if "keep_fp32" in line)
    names = kept[kept.index("[") + 1 : kept.index("]")].split(", ")
    assert "come_back" in names
    cured = settings_file(source="m.onnx", precision="bf16", options={"keep_fp32": names})
    assert verify(cured, *bounds).exit_code == 0


def test_a_model_that_agrees_has_no_drift(settings_file, tokens_onnx):
    done = verify(settings_file(source=str(tokens_onnx())), "--layers")
    assert done.exit_code == 0, done.output
    assert "none drifts" in done.output


def test_overflow_is_traced_to_the_operation_that_overflows(settings_file, tokens_onnx):
    whole = tokens_onnx("whole.onnx", scale=1e4)
    spoilt = tokens_onnx("half.onnx", scale=1e4, between_half=True)
    file = settings_file(runtime="onnxruntime", source=str(spoilt), accept={"artifact": str(whole)})
    done = verify(file, "--layers")
    assert done.exit_code == 1
    assert "max_abs is inf" in done.output
    assert "first: kept (Cast narrow): error inf" in done.output


def test_an_operation_that_the_model_lacks_cannot_be_kept(settings_file, tokens_onnx):
    file = settings_file(source=str(tokens_onnx()), options={"keep_fp32": ["scale_upp"]})
    done = verify(file)
    assert done.exit_code == 1
    assert "option 'keep_fp32': the model has no operation 'scale_upp', did you mean" in done.output


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    pytest.importorskip("torch")
    import sys

    sys.path.append(str(Path(__file__).parents[3] / "conformance"))
    from tiny_models import bert_folder

    return bert_folder(tmp_path / "bert")


@pytest.mark.usefixtures("bert")
def test_torch_names_its_tensors_by_operation_and_weight_and_can_keep_none(settings_file):
    file = settings_file(runtime="torch", source="bert", task="embed", precision="bf16")
    done = verify(file, "--layers", "--max-abs", "1e-6")
    assert done.exit_code == 1
    assert "against torch fp32, drift is a relative error above 0.039" in done.output


@pytest.mark.usefixtures("bert")
def test_a_folder_s_tensors_have_the_same_names_in_the_backends_that_run_its_graph(settings_file):
    file = settings_file(source="bert", task="embed")
    done = verify(file, "--layers", "--against", "onnxruntime")
    assert done.exit_code == 0, done.output
    assert "against onnxruntime fp32" in done.output
    assert "none drifts" in done.output


@pytest.mark.usefixtures("bert")
def test_a_folder_s_tensors_have_names_of_their_own_in_torch(settings_file):
    file = settings_file(source="bert", task="embed")
    done = verify(file, "--layers")
    assert done.exit_code == 2
    assert "no names in common" in done.output
