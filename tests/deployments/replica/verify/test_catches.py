"""The six mistakes that a model answers to as if nothing were wrong, and what is said of each.

Each is made for real: the model runs, and its answers are others. Without the check it would serve.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from deployments.cli import main
from deployments.preprocess.images import prepared
from deployments.replica.describe import image_input, row_shapes
from deployments.settings.image import ImageSettings
from deployments.settings_files.load import load
from runtimes import fingerprint, ragged_file
from runtimes.types import Limits, TensorSpec

pytest.importorskip("openvino")
pytest.importorskip("onnxruntime")

TRAINED: dict[str, Any] = {
    "size": 8,
    "resize": "bicubic",
    "antialias": True,
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
    "colour": "RGB",
    "layout": "NCHW",
    "input": "pixels",
}


def verify(file: Path, *arguments: str):
    return CliRunner().invoke(main, ["verify", str(file), "m", *arguments])


def store_fingerprint(file: Path) -> int:
    return CliRunner().invoke(main, ["check", str(file), "--fingerprint", "m", "--write"]).exit_code


# ---- fp16 overflow ------------------------------------------------------------------------------


def test_fp16_overflow_is_caught_where_it_begins(settings_file, tokens_onnx):
    """Sums grow with the length: times 2,000 those of long rows pass 65,504, those of short do
    not."""
    whole = tokens_onnx("whole.onnx", scale=2000)
    half = tokens_onnx("half.onnx", scale=2000, between_half=True)
    file = settings_file(runtime="onnxruntime", source=str(half), accept={"artifact": str(whole)})
    done = verify(file, "--max-rel", "0.01")
    assert done.exit_code == 1
    assert "output y, rows of 9-64 tokens: max_rel is inf" in done.output
    assert "values are not finite on one side alone" in done.output
    assert "rows of 1-8 tokens" not in done.output


# ---- images: resize, colour, layout -------------------------------------------------------------


def sums_onnx(file: Path, shape: list[int], channel_axis: int) -> Path:
    """`pixels` → `y` [-1, 3]: a weighted sum, of weights that differ from place to place."""
    from onnx import TensorProto, helper, numpy_helper

    weights = np.random.default_rng(0).normal(size=(int(np.prod(shape)), 3)).astype(np.float32)
    stored = [
        numpy_helper.from_array(weights, "w"),
        numpy_helper.from_array(np.array([-1, len(weights)], np.int64), "flat"),
    ]
    nodes = [
        helper.make_node("Reshape", ["pixels", "flat"], ["row"]),
        helper.make_node("MatMul", ["row", "w"], ["y"]),
    ]
    pixels = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["rows", *shape])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 3])
    graph = helper.make_graph(nodes, "sums", [pixels], [y], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    file.write_bytes(model.SerializeToString())
    return file


def picture() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (21, 13, 3)).astype(np.uint8)


def fed(image: dict[str, Any]) -> np.ndarray:
    """What the model would get of `picture` with these settings."""
    spec = TensorSpec("pixels", "FP32", (-1, -1, -1, -1))
    asked = ImageSettings.model_validate(image)
    how = image_input(asked, Limits((spec,), (), row_shapes=row_shapes(asked)))
    assert how is not None
    return prepared(how, picture(), "image 0")


@pytest.mark.parametrize(
    ("field", "other"), [("resize", "bilinear"), ("antialias", False), ("colour", "BGR")]
)
def test_an_image_made_otherwise_than_in_training_is_refused_by_the_field(
    settings_file, tmp_path, field, other
):
    wrong = {**TRAINED, field: other}
    assert fed(wrong).shape == fed(TRAINED).shape
    assert np.abs(fed(wrong) - fed(TRAINED)).max() > 0.1
    sums_onnx(tmp_path / "m.onnx", [3, 8, 8], 1)
    good = settings_file(source="m.onnx", image=TRAINED, lengths={})
    assert store_fingerprint(good) == 0
    assert verify(good).exit_code == 0
    bad = settings_file(source="m.onnx", image=wrong, lengths={})
    refused = verify(bad)
    assert refused.exit_code == 2
    said = f"{field} is {_said(TRAINED[field])}, the service does {_said(other)}"
    assert f"models.m.source: {tmp_path / fingerprint.FILE}: {said}" in refused.output


def test_channels_last_fed_as_channels_first_are_refused_by_the_field(settings_file, tmp_path):
    """A size of 3 fits either way: no shape is wrong, and every value is in another's place."""
    trained = {**TRAINED, "size": 3, "layout": "NHWC"}
    wrong = {**trained, "layout": "NCHW"}
    assert fed(wrong).shape == fed(trained).shape == (3, 3, 3)
    assert np.abs(fed(wrong) - fed(trained)).max() > 0.1
    sums_onnx(tmp_path / "m.onnx", [3, 3, 3], 3)
    fingerprint.write(tmp_path / "m.onnx", {"layout": "NHWC"})
    good = settings_file(source="m.onnx", image=trained, lengths={})
    assert verify(good).exit_code == 0
    refused = verify(settings_file(source="m.onnx", image=wrong, lengths={}))
    assert refused.exit_code == 2
    assert 'layout is "NHWC", the service does "NCHW"' in refused.output


def _said(value: Any) -> str:
    return {True: "true", False: "false"}.get(value, f'"{value}"')


# ---- another tokenizer --------------------------------------------------------------------------


def test_another_tokenizer_is_refused_by_the_field(settings_file, tokens_onnx, tmp_path):
    """The same words, in another order: every id is in the table, and means another word."""
    write_tokenizer(tmp_path, ["a", "b", "c"])
    file = settings_file(source=str(tokens_onnx()))
    assert store_fingerprint(file) == 0
    assert load(file).models["m"]
    write_tokenizer(tmp_path, ["c", "b", "a"])
    refused = verify(file)
    assert refused.exit_code == 2
    assert 'preprocessing.json: tokenizer is "sha256:' in refused.output


def write_tokenizer(folder: Path, words: list[str]) -> None:
    from tokenizers import Tokenizer, models

    vocabulary = {word: at for at, word in enumerate(["[UNK]", *words])}
    Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]")).save(str(folder / "tokenizer.json"))


# ---- a calibration on short texts ---------------------------------------------------------------


def growing_onnx(file: Path) -> Path:
    """`input_ids` → `y` [-1, 4]: a product of the tokens' sum, as large as a row is long."""
    from onnx import TensorProto, helper, numpy_helper

    table = np.random.default_rng(0).normal(1, 0.1, (50, 4)).astype(np.float32)
    table[0] = 0  # rows of a batch are padded with it
    stored = [
        numpy_helper.from_array(table, "table"),
        numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"),
        numpy_helper.from_array(np.array([1], np.int64), "axes"),
    ]
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["vectors"], "look_up"),
        helper.make_node("ReduceSum", ["vectors", "axes"], ["sum"], "add_up", keepdims=0),
        helper.make_node("MatMul", ["sum", "w"], ["y"], "product"),
    ]
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["rows", "length"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 4])
    graph = helper.make_graph(nodes, "growing", [ids], [y], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    file.write_bytes(model.SerializeToString())
    return file


@pytest.fixture
def calibrated(settings_file, tmp_path):
    """A settings file whose model is calibrated with rows up to so many tokens."""
    growing_onnx(tmp_path / "m.onnx")

    def write(longest: int, runtime: str, **options: Any) -> Path:
        random = np.random.default_rng(0)
        rows = [random.integers(0, 50, 1 + at % longest) for at in range(256)]
        folder = tmp_path / f"up_to_{longest}"
        folder.mkdir(exist_ok=True)
        ragged_file.write(folder / "samples.npz", {"input_ids": rows})
        chosen = {"calibration": folder.name, **options}
        return settings_file(source="m.onnx", runtime=runtime, precision="int8", options=chosen)

    return write


INT8 = pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])


@INT8
def test_a_calibration_of_all_lengths_is_accepted(calibrated, runtime):
    done = verify(calibrated(64, runtime), "--max-abs", "2")
    assert done.exit_code == 0, done.output
    assert f"m: {runtime} int8 against" in done.output


@INT8
def test_a_calibration_on_short_texts_only_is_refused_before_it_is_used(calibrated, runtime):
    done = verify(calibrated(8, runtime), "--max-abs", "2")
    assert done.exit_code == 1
    assert "of 256 rows none are longer than 8 tokens" in done.output


@INT8
def test_what_a_short_calibration_cuts_off_is_caught_in_the_bucket_of_long_rows(
    calibrated, runtime
):
    file = calibrated(8, runtime, short_calibration=True)
    done = verify(file, "--max-abs", "2")
    assert done.exit_code == 1
    assert "output y, rows of 9-64 tokens: max_abs is" in done.output
    assert "rows of 1-8 tokens" not in done.output


def test_the_operation_that_eight_bits_spoil_is_found_and_kept_in_fp32(calibrated):
    file = calibrated(8, "onnxruntime", short_calibration=True)
    done = verify(file, "--max-abs", "2", "--layers")
    assert done.exit_code == 1
    assert "first: y (MatMul product)" in done.output
    assert "keep_fp32: [product" in done.output
    assert "with it the model is accepted" in done.output
    kept = calibrated(8, "onnxruntime", short_calibration=True, keep_fp32=["product"])
    assert verify(kept, "--max-abs", "2").exit_code == 0


@INT8
def test_eight_bits_without_a_calibration_are_refused_by_the_settings(
    settings_file, tmp_path, runtime
):
    growing_onnx(tmp_path / "m.onnx")
    file = settings_file(source="m.onnx", runtime=runtime, precision="int8")
    checked = CliRunner().invoke(main, ["check", str(file)])
    assert checked.exit_code == 2
    assert "models.m.options: precision int8 needs the option calibration" in checked.output


@pytest.mark.parametrize(
    ("runtime", "precision", "options", "said"),
    [
        ("tensorrt", "fp8", {}, "options: precision fp8 needs the option calibration"),
        ("onnxruntime", "fp8", {"calibration": "x"}, "computes fp8 on a GPU with TensorRT alone"),
        (
            "onnxruntime",
            "int8",
            {"calibration": "x", "device": "cuda"},
            "computes int8 on a GPU with TensorRT alone: set option tensorrt_engines to true",
        ),
        ("openvino", "fp8", {}, "openvino has no precision 'fp8'"),
    ],
)
def test_eight_bits_that_nothing_here_computes_are_refused_by_the_settings(
    settings_file, tmp_path, runtime, precision, options, said
):
    growing_onnx(tmp_path / "m.onnx")
    file = settings_file(source="m.onnx", runtime=runtime, precision=precision, options=options)
    checked = CliRunner().invoke(main, ["check", str(file)])
    assert checked.exit_code == 2
    assert said in " ".join(checked.output.split())
