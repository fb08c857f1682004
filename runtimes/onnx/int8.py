"""Quantises an ONNX graph to int8 statically, with ranges calibrated on real rows.

ONNX Runtime's own tool quantises matrix products and convolutions: activations asymmetrically, with
one range for each tensor (from the smallest to the largest value that calibration meets), and
weights symmetrically, with one range for each channel. The result is an ordinary ONNX graph with
QuantizeLinear and DequantizeLinear around each operation (QDQ), which ONNX Runtime and OpenVINO
both compile to integer kernels.

Operations named in `keep_fp32` are not quantised. The quantised model is not run here; `headrace
verify` measures its accuracy. Source: ONNX Runtime's documentation of quantization.
"""

from __future__ import annotations

import difflib
import importlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runtimes import calibration
from runtimes.calibration import GraphInput
from runtimes.errors import LoadError, MissingBackend
from runtimes.graph.options import GraphOptions
from runtimes.onnx import model as onnx_model
from runtimes.onnx import session as onnxruntime_session
from runtimes.types import RuntimeSettings

KINDS = ("MatMul", "Gemm", "Conv")
FILE = "quantised.onnx"
REAL = ("tensor(float)", "tensor(float16)")

Array = np.ndarray[Any, Any]
Feed = Mapping[str, Array]


def build(model: Any, folder: Path, settings: RuntimeSettings, options: GraphOptions) -> Path:
    """Writes `quantised.onnx` and its weights into `folder`; returns the file.

    Raises `LoadError`.
    """
    _check_kept(model, options.keep_fp32)
    feeds = calibration.rows(settings, options, _inputs(model))
    typed = folder / "typed.onnx"
    _type_all(model, folder)
    onnx_model.save(model, typed)
    _quantise(typed, folder / FILE, feeds, options.keep_fp32)
    for file in folder.glob("typed.*"):
        file.unlink()
    return folder / FILE


def library() -> Any:
    """The module `onnxruntime.quantization`. Raises `MissingBackend`."""
    try:
        return importlib.import_module("onnxruntime.quantization")
    except ImportError as error:
        raise MissingBackend(
            "precision int8 needs onnxruntime and onnx: pip install 'headrace[onnxruntime]' "
            f"({error})"
        ) from error


def _quantise(plain: Path, made: Path, feeds: Sequence[Feed], keep: Sequence[str]) -> None:
    tool = library()
    logger = logging.getLogger()
    before = logger.level
    logger.setLevel(logging.ERROR)  # the tool warns, by the root logger, of what it does not change
    try:
        tool.quantize_static(
            str(plain),
            str(made),
            _reader(tool, feeds),
            quant_format=tool.QuantFormat.QDQ,
            op_types_to_quantize=list(KINDS),
            per_channel=True,
            activation_type=tool.QuantType.QUInt8,
            weight_type=tool.QuantType.QInt8,
            nodes_to_exclude=list(keep),
            calibrate_method=tool.CalibrationMethod.MinMax,
            use_external_data_format=True,
            extra_options={"ActivationSymmetric": False, "WeightSymmetric": True},
        )
    except Exception as error:  # the tool's errors share no base class
        raise LoadError(f"the model cannot be quantised: {error}") from error
    finally:
        logger.setLevel(before)


def _reader(tool: Any, feeds: Sequence[Feed]) -> Any:
    class FeedReader(tool.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left: Iterator[Feed] = iter(feeds)

        def get_next(self) -> Feed | None:
            return next(self._left, None)

    return FeedReader()


def _inputs(model: Any) -> list[GraphInput]:
    import onnx

    stored = {weight.name for weight in model.graph.initializer}
    return [
        GraphInput(
            value.name,
            onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type),
            len(value.type.tensor_type.shape.dim),
        )
        for value in model.graph.input
        if value.name not in stored
    ]


def _type_all(model: Any, folder: Path) -> None:
    """Adds the type of every floating-point tensor to the graph.

    The quantisation tool leaves tensors of unknown type in fp32, and onnx cannot infer types behind
    ONNX Runtime's own (contributed) operations. So a session of ONNX Runtime infers them.
    """
    import onnx

    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    onnx_model.expose(exposed)
    file = folder / "typed.exposed.onnx"
    onnx_model.save(exposed, file)
    real = [
        value.name for value in onnxruntime_session.plain(file).get_outputs() if value.type in REAL
    ]
    described = {value.name for value in (*model.graph.output, *model.graph.value_info)}
    for name in real:
        if name not in described:
            info = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
            model.graph.value_info.append(info)


def _check_kept(model: Any, keep: Sequence[str]) -> None:
    names = [node.name for node in model.graph.node]
    for name in keep:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=3)
            hint = f", did you mean {' or '.join(close)}?" if close else ""
            raise LoadError(f"option 'keep_fp32': the model has no operation '{name}'{hint}")
