"""Makes a BERT of a published size with random weights, for benches. Its answers mean nothing.

The model is written once, as a Hugging Face folder with mean pooling and float32 weights. Sizes are
those of Devlin et al. 2018, "BERT: Pre-training of Deep Bidirectional Transformers", section 3.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

VOCABULARY, POSITIONS = 30_522, 512
SPREAD = 0.02  # of the weights, as BERT is initialised


@dataclass(frozen=True, slots=True)
class BertSize:
    layers: int
    hidden: int
    heads: int


SIZES = {"base": BertSize(12, 768, 12), "large": BertSize(24, 1024, 16)}


def random_bert(size: str, folder: Path) -> Path:
    """The model's folder, which is made if it does not exist. `size`: one of `SIZES`."""
    if (folder / "modules.json").is_file():
        return folder
    chosen = SIZES[size]
    (folder / "1_Pooling").mkdir(parents=True, exist_ok=True)
    save_file(dict(_weights(chosen)), str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps(_config(chosen)))
    pooling = {"word_embedding_dimension": chosen.hidden, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    parts = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    listing = [
        {"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in parts
    ]
    (folder / "modules.json").write_text(json.dumps(listing))  # last: marks the folder complete
    return folder


def _config(size: BertSize) -> dict[str, object]:
    return {
        "model_type": "bert",
        "hidden_size": size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "intermediate_size": 4 * size.hidden,
        "max_position_embeddings": POSITIONS,
        "vocab_size": VOCABULARY,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "hidden_act": "gelu",
    }


def _weights(size: BertSize) -> Iterator[tuple[str, np.ndarray]]:
    random, hidden = np.random.default_rng(0), size.hidden

    def linear(name: str, to: int, of: int) -> Iterator[tuple[str, np.ndarray]]:
        yield f"{name}.weight", SPREAD * random.standard_normal((to, of), np.float32)
        yield f"{name}.bias", np.zeros(to, np.float32)

    def norm(name: str) -> Iterator[tuple[str, np.ndarray]]:
        yield f"{name}.weight", np.ones(hidden, np.float32)
        yield f"{name}.bias", np.zeros(hidden, np.float32)

    tables = {"word": VOCABULARY, "position": POSITIONS, "token_type": 2}
    for name, rows in tables.items():
        table = SPREAD * random.standard_normal((rows, hidden), np.float32)
        yield f"embeddings.{name}_embeddings.weight", table
    yield from norm("embeddings.LayerNorm")
    for layer in range(size.layers):
        base = f"encoder.layer.{layer}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            yield from linear(f"{base}.attention.{part}", hidden, hidden)
        yield from linear(f"{base}.intermediate.dense", 4 * hidden, hidden)
        yield from linear(f"{base}.output.dense", hidden, 4 * hidden)
        yield from norm(f"{base}.attention.output.LayerNorm")
        yield from norm(f"{base}.output.LayerNorm")
    yield from linear("pooler.dense", hidden, hidden)
