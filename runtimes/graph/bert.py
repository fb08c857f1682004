"""A BERT encoder as an ONNX graph, for what starts without torch, and its weights.

`read_config` takes a Hugging Face `config.json`, `build` writes the network against `GraphOps`:
token ids, mask and token types in (int64 [rows, length]), hidden states, a pooled embedding or a
classifier's logits out. Each task computes its own output alone, so nothing else is copied out.
Weights are read from safetensors through numpy as float32, their shapes checked; never a pickle.
It answers as the export of the same folder does, and as fast; what it saves is torch, transformers
and the export at a node's first start.

Left out: decoders, relative positions, dropout, pre-training heads. Source: Devlin et al. 2018
(post-norm encoder) and `transformers`' BertModel, whose tensor names the weights carry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from runtimes.errors import LoadError
from runtimes.folder import NO_POOLING, Pooling, configuration
from runtimes.graph.pooling import EMBEDDING_OUTPUT, HIDDEN_OUTPUT, Activation, GraphOps, N, pool
from runtimes.source import Source

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Weights:
    """A view on named tensors: `places` maps a full name to its file, `root` is the model's own
    prefix (such as "bert." under a classifier), `prefix` where this view stands below it."""

    places: Mapping[str, Path]
    root: str = ""
    prefix: str = ""

    def below(self, name: str) -> Weights:
        return Weights(self.places, self.root, f"{self.prefix}{name}.")

    def top(self, name: str) -> Weights:
        """A view beside the model's own prefix, where heads live."""
        return Weights(self.places, "", f"{name}.")

    def read(self, name: str, shape: tuple[int, ...]) -> Array:
        """float32, C-contiguous; -1 in `shape` takes any size. Raises `LoadError`."""
        full = f"{self.root}{self.prefix}{name}"
        if full not in self.places:
            raise LoadError(f"the weights hold no tensor '{full}'")
        with safe_open(str(self.places[full]), "np") as tensors:
            array: Array = tensors.get_tensor(full)
        fits = len(array.shape) == len(shape) and all(
            want in (-1, have) for want, have in zip(shape, array.shape, strict=True)
        )
        if not fits:
            raise LoadError(f"tensor '{full}' is {list(array.shape)}, expected {list(shape)}")
        return np.ascontiguousarray(array, np.float32)


def open_weights(files: Iterable[Path], marker: str, root: str) -> Weights:
    """All tensors of the files. They stand below `root` if `root + marker` is one, else at the top.

    Raises `LoadError` for a file that is no safetensors and for a name that two files hold.
    """
    places: dict[str, Path] = {}
    for file in files:
        try:
            with safe_open(str(file), "np") as tensors:
                names = list(tensors.keys())
        except (SafetensorError, OSError) as error:
            raise LoadError(f"{file} is not a readable safetensors file: {error}") from error
        for name in names:
            if name in places:
                raise LoadError(f"tensor '{name}' is in {places[name].name} and in {file.name}")
            places[name] = file
    return Weights(places, root if f"{root}{marker}" in places else "")


INPUT_IDS, ATTENTION_MASK, TOKEN_TYPES = "input_ids", "attention_mask", "token_type_ids"
HIDDEN, EMBEDDING, LOGITS = HIDDEN_OUTPUT, EMBEDDING_OUTPUT, "logits"
ACTIVATIONS: Mapping[str, Activation] = {
    **{"gelu": "gelu", "gelu_python": "gelu", "relu": "relu", "tanh": "tanh"},
    **{"gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"},
}


@dataclass(frozen=True, slots=True)
class BertConfig:
    """The part of a `config.json` that decides the graph. `max_length`: positions, in tokens."""

    hidden_size: int
    layers: int
    heads: int
    max_length: int
    vocab_size: int
    epsilon: float
    activation: Activation


@dataclass(frozen=True, slots=True)
class BertHead:
    """What stands on the encoder: a classifier, a pooling, or nothing but the hidden states.

    tensors: hidden states, and the embedding beside them where `pooling` is set.
    """

    task: str
    pooling: Pooling | None = None


def read_config(folder: Path) -> BertConfig:
    """Of a folder that `is_built`. Raises `LoadError` for sizes that no network has."""
    file, raw = folder / "config.json", configuration(folder)
    config = BertConfig(
        hidden_size=_count(raw, "hidden_size", file),
        layers=_count(raw, "num_hidden_layers", file),
        heads=_count(raw, "num_attention_heads", file),
        max_length=_count(raw, "max_position_embeddings", file),
        vocab_size=_count(raw, "vocab_size", file),
        epsilon=float(raw.get("layer_norm_eps", 1e-12)),
        activation=ACTIVATIONS[raw.get("hidden_act", "gelu")],
    )
    if config.hidden_size % config.heads:
        raise LoadError(f"{file}: hidden_size is no multiple of num_attention_heads")
    return config


def is_built(folder: Path, task: str, pooling: Pooling | None) -> bool:
    """Whether this module writes the folder's network; all others are exported from transformers.
    Raises `LoadError` for a folder without a configuration."""
    raw = configuration(folder)
    known = raw.get("hidden_act", "gelu") in ACTIVATIONS
    plain = task == "classify" or pooling is None or pooling.plain
    return raw.get("model_type") == "bert" and known and plain


def open_bert(
    source: Source, task: str, pooling: Pooling | None
) -> tuple[BertConfig, Weights, BertHead]:
    """What `build` takes, of a Hugging Face folder; `LoadError` where `embed` has no pooling."""
    config = read_config(source.path)
    if task == "embed" and pooling is None:
        raise LoadError(f"{source.path} {NO_POOLING}")
    weights = open_weights(source.weights, "embeddings.word_embeddings.weight", "bert.")
    return config, weights, BertHead(task, pooling)


def build(ops: GraphOps[N], config: BertConfig, weights: Weights, head: BertHead) -> dict[str, N]:
    """Outputs by name. Raises `LoadError` where a weight is missing or has another shape."""
    ids, mask, types = ops.ids(INPUT_IDS), ops.ids(ATTENTION_MASK), ops.ids(TOKEN_TYPES)
    hidden = _embeddings(ops, config, weights, ids, types)
    attention_mask = ops.attention_mask(mask)
    for layer in range(config.layers):
        hidden = _layer(
            ops, config, weights.below(f"encoder.layer.{layer}"), hidden, attention_mask
        )
    if head.task == "classify":
        return {LOGITS: _classify(ops, weights, hidden)}
    pooled = {EMBEDDING: pool(ops, hidden, mask, head.pooling)} if head.pooling else {}
    return pooled if head.task == "embed" else {HIDDEN: hidden, **pooled}


def _embeddings(ops: GraphOps[N], config: BertConfig, weights: Weights, ids: N, types: N) -> N:
    part = weights.below("embeddings")
    words = part.read("word_embeddings.weight", (config.vocab_size, config.hidden_size))
    places = part.read("position_embeddings.weight", (config.max_length, config.hidden_size))
    kinds = part.read("token_type_embeddings.weight", (-1, config.hidden_size))
    total = ops.add(
        ops.add(ops.lookup(words, ids, "words"), ops.lookup(kinds, types, "token_types")),
        ops.positions(places, ids, "positions"),
    )
    return _norm(ops, config, part.below("LayerNorm"), total)


def _layer(ops: GraphOps[N], config: BertConfig, part: Weights, x: N, mask: N) -> N:
    own = part.below("attention.self")
    query, key, value = (_linear(ops, own.below(name), x) for name in ("query", "key", "value"))
    mixed = ops.attention(query, key, value, mask, config.heads)
    attended = _linear(ops, part.below("attention.output.dense"), mixed)
    x = _norm(ops, config, part.below("attention.output.LayerNorm"), ops.add(attended, x))
    inner = ops.activation(_linear(ops, part.below("intermediate.dense"), x), config.activation)
    outer = _linear(ops, part.below("output.dense"), inner)
    return _norm(ops, config, part.below("output.LayerNorm"), ops.add(outer, x))


def _classify(ops: GraphOps[N], weights: Weights, hidden: N) -> N:
    first = _linear(ops, weights.below("pooler.dense"), ops.first_token(hidden))
    return _linear(ops, weights.top("classifier"), ops.activation(first, "tanh"))


def _linear(ops: GraphOps[N], part: Weights, x: N) -> N:
    weight = part.read("weight", (-1, -1))
    return ops.linear(x, weight, part.read("bias", (weight.shape[0],)), part.prefix)


def _norm(ops: GraphOps[N], config: BertConfig, part: Weights, x: N) -> N:
    shape = (config.hidden_size,)
    scale, shift = part.read("weight", shape), part.read("bias", shape)
    return ops.layer_norm(x, scale, shift, config.epsilon, part.prefix)


def _count(raw: Mapping[str, Any], name: str, file: Path) -> int:
    value = raw.get(name)
    if type(value) is not int or value < 1:
        raise LoadError(f"{file}: {name} is {value!r}, it must be a whole number from 1")
    return value
