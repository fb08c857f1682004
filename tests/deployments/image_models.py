"""A convolutional model of a few random weights, any resolution, written as ONNX; and image files.

Its answer depends on every pixel, on the order of the channels and on what is beyond the border, so
that wrong preprocessing and padding both show.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

LABELS = ["ant", "bee", "cat", "dog", "eel"]


def write_model(
    folder: Path, *, channels: int = 3, layout: str = "NCHW", sides: Any = ("height", "width")
) -> Path:
    """`model.onnx`: image to logits [rows, 5]."""
    chance = np.random.default_rng(3)
    weights = {
        "kernel": chance.normal(size=(8, channels, 3, 3)),
        "bias": chance.normal(size=8),
        "table": chance.normal(size=(5, 8)),
    }
    nodes = [
        helper.make_node("Conv", ["first", "kernel", "bias"], ["conv"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv"], ["relu"]),
        helper.make_node("GlobalAveragePool", ["relu"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("Gemm", ["flat", "table"], ["logits"], transB=1),
    ]
    shape = ["rows", channels, *sides]
    if layout == "NHWC":
        shape = ["rows", *sides, channels]
        nodes.insert(0, helper.make_node("Transpose", ["image"], ["first"], perm=[0, 3, 1, 2]))
    else:
        nodes[0].input[0] = "image"
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, shape)
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["rows", 5])
    stored = [numpy_helper.from_array(v.astype(np.float32), k) for k, v in weights.items()]
    graph = helper.make_graph(nodes, "tiny", [image], [logits], stored)
    opset = helper.make_opsetid("", 20)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=10), str(file))
    (folder / "classify.json").write_text(json.dumps({"labels": LABELS}))
    return file


def picture(height: int, width: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def jpeg(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=90)
    return out.getvalue()
