"""How much of a GPU's memory a model takes, from the headers of its files and its config.json.

Weights are counted in the number format that they are computed in; what stands beside them while a
batch runs is a rule for transformers, on the safe side of what backends do. No weights are loaded
and no GPU is asked. What neither file nor config says is None: whoever asks has to say it. Of the
rules none was compared with a GPU yet.

Sources: the tensors of a transformer layer (Vaswani et al. 2017; Shazeer 2019 for shared keys and
values); a cache of keys and values is 2 x layers x heads x head size a token; DeepSeek-V2 (2024)
for latent ones.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtimes.source import Source, SourceKind

ITEM_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 4, "fp8": 2}
"""Of what is computed between weights; most int8 backends keep that in fp32."""
# Tables that are looked up by row; nothing is multiplied with them.
_LOOKED_UP = ("embeddings.weight", "embed_tokens.weight", "wte.weight", "wpe.weight")
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_STORED_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "I16": 2, "U16": 2}
_HIDDEN_PER_TOKEN = 6  # residual, its norm, queries, keys, values, attention's output
_INTERMEDIATE_PER_TOKEN = 3  # gate, product, activation
_SCORES = 2  # before and after the softmax


@dataclass(frozen=True, slots=True)
class Architecture:
    """Of a transformer. cached: elements that a token adds to the cache of keys and values."""

    hidden: int
    intermediate: int
    heads: int
    vocabulary: int
    cached: int


def weights_bytes(source: Source, precision: str) -> int:
    """Of a Hugging Face folder its tensors in that format; of other files what they hold as
    stored, which a narrower format can only make less."""
    if source.kind is SourceKind.HUGGING_FACE:
        tensors = (each for file in source.weights for each in _header(file))
        return sum(
            elements * _element_bytes(kind, precision, axes >= 2 and not name.endswith(_LOOKED_UP))
            for name, elements, axes, kind in tensors
        )
    files = [file for file in source.files if file.suffix != ".xml"]
    return sum(file.stat().st_size for file in files)


def _header(file: Path) -> list[tuple[str, int, int, str]]:
    """(name, elements, axes, datatype) of each tensor of a safetensors file."""
    with file.open("rb") as stream:
        (size,) = struct.unpack("<Q", stream.read(8))
        header: dict[str, Any] = json.loads(stream.read(size))
    header.pop("__metadata__", None)
    return [
        (name, math.prod(each["shape"]), len(each["shape"]), each["dtype"])
        for name, each in header.items()
    ]


def _element_bytes(kind: str, precision: str, multiplied: bool) -> int:
    """Floats are converted; what was quantised before stays as it is."""
    if kind not in _FLOATS:
        return _STORED_BYTES.get(kind, 1)
    if precision in ("int8", "fp8") and multiplied:
        return 1
    return ITEM_BYTES[precision]


def architecture(source: Source) -> Architecture | None:
    """By the config.json in the folder, or beside the file; None where it says too little."""
    folder = source.path if source.path.is_dir() else source.path.parent
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return _of_config(config.get("text_config", config))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        return None


def _of_config(config: Mapping[str, Any]) -> Architecture:
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    return Architecture(
        hidden=hidden,
        intermediate=int(config.get("intermediate_size") or 4 * hidden),
        heads=heads,
        vocabulary=int(config.get("vocab_size") or 0),
        cached=int(config["num_hidden_layers"]) * _cached_in_layer(config, hidden, heads),
    )


def _cached_in_layer(config: Mapping[str, Any], hidden: int, heads: int) -> int:
    latent = config.get("kv_lora_rank")
    if latent:
        return int(latent) + int(config.get("qk_rope_head_dim") or 0)
    size = int(config.get("head_dim") or hidden // heads)
    return 2 * int(config.get("num_key_value_heads") or heads) * size


def batch_bytes(of: Architecture, rows: int, tokens: int, length: int, item_bytes: int) -> int:
    """What one layer holds at once for a batch: `tokens` in all, padding included, `rows` of them
    of the longest `length`, whose scores are written out in full."""
    scores = _SCORES * rows * of.heads * length * length
    return (tokens * _per_token(of) + scores) * item_bytes


def sparse_bytes(of: Architecture, tokens: int) -> int:
    """What a sparse vector takes besides: a number for each entry of the vocabulary at each token,
    twice, in fp32."""
    return 2 * tokens * of.vocabulary * 4


def step_bytes(of: Architecture, sequences: int, tokens: int, item_bytes: int) -> int:
    """The same of an engine's step, whose attention writes no scores; the logits are fp32."""
    return tokens * _per_token(of) * item_bytes + sequences * of.vocabulary * 4


def _per_token(of: Architecture) -> int:
    return _HIDDEN_PER_TOKEN * of.hidden + _INTERMEDIATE_PER_TOKEN * of.intermediate


def cache_bytes(of: Architecture, tokens: int, item_bytes: int) -> int:
    """Of the keys and values of so many tokens; too many for layers that look back a window."""
    return tokens * of.cached * item_bytes
