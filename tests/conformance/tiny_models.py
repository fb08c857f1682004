"""Tiny models of every source kind, made on the spot into a folder: weights random but seeded.

A BERT in Hugging Face layout (hidden 32, 2 layers, 100 ids), ONNX graphs made node by node, the
OpenVINO IR and the torch.export archive of a small text model. Nothing is fetched.
`BUILDERS` has them by the file's name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from runtimes import ragged_file

HIDDEN, LAYERS, VOCABULARY, POSITIONS, LABELS = 32, 2, 100, 64, 3
CONFIG = {
    "model_type": "bert",
    "architectures": ["BertForSequenceClassification"],
    "id2label": {str(label): str(label) for label in range(LABELS)},
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": POSITIONS,
    "vocab_size": VOCABULARY,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
}


def bert_folder(folder: Path, normalize: bool = True) -> Path:
    """A folder as sentence-transformers writes it, with mean pooling declared."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(_bert_weights(), str(folder / "model.safetensors"))
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    listing = [
        {"path": path, "type": f"sentence_transformers.models.{kind}"}
        for path, kind in modules[: 3 if normalize else 2]
    ]
    (folder / "modules.json").write_text(json.dumps(listing))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": HIDDEN, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


CLASSES = '''
import numpy as np


class Sums:
    """Of ids that are ragged: their sum, and each of them doubled."""

    inputs = {"ids": "INT64[?]"}
    outputs = {"sum": "FP32[1]", "doubled": "INT64[?]"}

    def load(self, settings):
        pass

    def predict(self, batch):
        return {
            "sum": [[float(row.sum()) + len(row) / 7] for row in batch["ids"]],
            "doubled": [row * 2 for row in batch["ids"]],
        }


class Padded(Sums):
    async def predict(self, batch):
        ids = batch["ids"]
        real = np.arange(ids.shape[1]) < batch.lengths[:, None]
        return {
            "sum": ((ids * real).sum(1) + batch.lengths / 7)[:, None],
            "doubled": [row[:length] * 2 for row, length in zip(ids, batch.lengths)],
        }


class Pair:
    inputs = {"left": "FP32[3]", "text": "BYTES[2]"}
    outputs = {"scaled": "FP32[3]", "joined": "BYTES[1]"}

    def load(self, settings):
        pass

    def predict(self, batch):
        joined = [[b"+".join(text)] for text in batch["text"]]
        return {"scaled": np.asarray(batch["left"]) * 3, "joined": joined}
'''


def python_classes(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "classes.py").write_text(CLASSES)
    return folder


def image_onnx(file: Path) -> Path:
    """`pixels` FP32 [-1, 3, 4, 4] → `scores` FP32 [-1, 3]: the mean of each channel."""
    from onnx import TensorProto, helper

    nodes = [helper.make_node("ReduceMean", ["pixels", "axes"], ["scores"], keepdims=0)]
    axes = helper.make_tensor("axes", TensorProto.INT64, [2], [2, 3])
    return _save_onnx(
        file,
        nodes,
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 3, 4, 4])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 3])],
        [axes],
    )


def pair_onnx(file: Path) -> Path:
    """`left` and `right`, FP32 [-1, 2] each → `sum` and `product`."""
    from onnx import TensorProto, helper

    names = {"left": [], "right": [], "sum": [], "product": []}
    info = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2]) for name in names
    }
    nodes = [
        helper.make_node("Add", ["left", "right"], ["sum"]),
        helper.make_node("Mul", ["left", "right"], ["product"]),
    ]
    return _save_onnx(
        file, nodes, [info["left"], info["right"]], [info["sum"], info["product"]], []
    )


def text_onnx(file: Path) -> Path:
    """`text` BYTES [-1] → `same` BYTES [-1]."""
    from onnx import TensorProto, helper

    return _save_onnx(
        file,
        [helper.make_node("Identity", ["text"], ["same"])],
        [helper.make_tensor_value_info("text", TensorProto.STRING, ["batch"])],
        [helper.make_tensor_value_info("same", TensorProto.STRING, ["batch"])],
        [],
    )


def heavy_onnx(file: Path, width: int = 1024) -> Path:
    """`x` FP32 [-1, width] → `y`: enough arithmetic for a second thread to show."""
    from onnx import TensorProto, helper, numpy_helper

    weight = np.random.default_rng(3).normal(0, 0.01, (width, width)).astype(np.float32)
    return _save_onnx(
        file,
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", width])],
        [numpy_helper.from_array(weight, "w")],
    )


def pair_ir(file: Path) -> Path:
    """The same as `pair_onnx`, as OpenVINO IR (the .xml; its .bin lies beside it)."""
    import openvino
    from openvino import opset13

    left = opset13.parameter([-1, 2], np.float32, name="left")
    right = opset13.parameter([-1, 2], np.float32, name="right")
    for parameter in (left, right):
        parameter.output(0).tensor.names = {parameter.friendly_name}
    results = [opset13.add(left, right), opset13.multiply(left, right)]
    for result, name in zip(results, ("sum", "product"), strict=True):
        result.output(0).tensor.names = {name}
    openvino.save_model(openvino.Model(results, [left, right]), file, compress_to_fp16=False)
    return file


def pair_archive(file: Path) -> Path:
    """The same as `pair_onnx`, as a torch.export archive."""
    import torch

    class Pair(torch.nn.Module):
        def forward(self, left: Any, right: Any) -> Any:
            return {"sum": left + right, "product": left * right}

    batch = torch.export.Dim("batch", min=1, max=64)
    sample = (torch.ones(2, 2), torch.ones(2, 2))
    sizes = {"left": {0: batch}, "right": {0: batch}}
    torch.export.save(torch.export.export(Pair(), sample, dynamic_shapes=sizes), file)
    return file


def text_archive(file: Path) -> Path:
    """`input_ids`, `attention_mask` → `hidden` [-1, -1, 8] and `pooled` [-1, 8]."""
    import torch

    class Text(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(VOCABULARY, 8)

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            hidden = self.table(input_ids) * attention_mask[..., None]
            count = attention_mask.sum(1, keepdim=True).clamp(min=1)
            return {"hidden": hidden, "pooled": hidden.sum(1) / count}

    torch.manual_seed(5)
    batch = torch.export.Dim("batch", min=1, max=64)
    length = torch.export.Dim("length", min=1, max=POSITIONS)
    sample = (torch.ones(2, 3, dtype=torch.int64), torch.ones(2, 3, dtype=torch.int64))
    sizes = {name: {0: batch, 1: length} for name in ("input_ids", "attention_mask")}
    torch.export.save(torch.export.export(Text().eval(), sample, dynamic_shapes=sizes), file)
    return file


def recorded_rows(folder: Path) -> Path:
    """What `headrace record` would have written of the small BERT's traffic."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(5)
    rows = [random.integers(1, VOCABULARY, 1 + at % POSITIONS) for at in range(2 * POSITIONS)]
    ragged_file.write(folder / ragged_file.FILE, {"input_ids": rows})
    return folder


BUILDERS: dict[str, Callable[[Path], Path]] = {
    "bert": bert_folder,
    "classes": python_classes,
    "recorded": recorded_rows,
    "heavy.onnx": heavy_onnx,
    "image.onnx": image_onnx,
    "pair.onnx": pair_onnx,
    "pair.pt2": pair_archive,
    "pair.xml": pair_ir,
    "text.onnx": text_onnx,
    "text.pt2": text_archive,
}


def _save_onnx(file: Path, nodes: Any, inputs: Any, outputs: Any, constants: Any) -> Path:
    import onnx
    from onnx import helper

    graph = helper.make_graph(nodes, "tiny", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    onnx.save(model, file)
    return file


def _bert_weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)

    def matrix(*shape: int) -> np.ndarray:
        return random.normal(0, 0.3, shape).astype(np.float32)

    def norm(name: str) -> dict[str, np.ndarray]:
        return {f"{name}.weight": 1 + matrix(HIDDEN), f"{name}.bias": matrix(HIDDEN)}

    def linear(name: str, to: int, of: int = HIDDEN) -> dict[str, np.ndarray]:
        return {f"{name}.weight": matrix(to, of), f"{name}.bias": matrix(to)}

    weights = {
        "embeddings.word_embeddings.weight": matrix(VOCABULARY, HIDDEN),
        "embeddings.position_embeddings.weight": matrix(POSITIONS, HIDDEN),
        "embeddings.token_type_embeddings.weight": matrix(2, HIDDEN),
        **norm("embeddings.LayerNorm"),
        **linear("pooler.dense", HIDDEN),
    }
    classifier = linear("classifier", LABELS)
    for layer in range(LAYERS):
        base = f"encoder.layer.{layer}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            weights |= linear(f"{base}.attention.{part}", HIDDEN)
        weights |= norm(f"{base}.attention.output.LayerNorm")
        weights |= linear(f"{base}.intermediate.dense", 64)
        weights |= linear(f"{base}.output.dense", HIDDEN, 64)
        weights |= norm(f"{base}.output.LayerNorm")
    return {**{f"bert.{name}": value for name, value in weights.items()}, **classifier}
