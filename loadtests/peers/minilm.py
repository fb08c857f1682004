"""Embeds batches of texts with MiniLM on OpenVINO, for a peer.

Compiles the graph that Headrace has staged (mean pooling and normalisation included) with the
options that Headrace uses, so that the servers are compared and not their backends. Texts are
tokenised as a batch and padded to the longest, to a multiple of 8 as in Headrace's example.
Imported in the peer's own environment; needs numpy, openvino and tokenizers there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import openvino
from tokenizers import Tokenizer

LONGEST = 512
PAD_MULTIPLE = 8
OPTIONS = {
    "INFERENCE_PRECISION_HINT": "bf16",
    "PERFORMANCE_HINT": "LATENCY",
    "NUM_STREAMS": 1,
    "ENABLE_CPU_PINNING": False,
    "CPU_RUNTIME_CACHE_CAPACITY": 1000,
}


class Embedder:
    """A compiled model with one inference request, so it runs one batch at a time."""

    def __init__(self, model: Path, tokenizer: Path) -> None:
        """`model`: a folder with model.xml."""
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self._tokenizer.enable_truncation(LONGEST)
        self._tokenizer.enable_padding(pad_to_multiple_of=PAD_MULTIPLE)
        compiled = openvino.Core().compile_model(str(model / "model.xml"), "CPU", OPTIONS)
        self._request = compiled.create_infer_request()

    def run(self, texts: Sequence[str]) -> list[list[float]]:
        found = self._tokenizer.encode_batch(list(texts))
        ids = np.array([each.ids for each in found], np.int64)
        mask = np.array([each.attention_mask for each in found], np.int64)
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        output = self._request.infer(inputs)[0]
        vectors: list[list[float]] = np.asarray(output, np.float32).tolist()
        return vectors
