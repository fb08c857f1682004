"""Generates with a language model's folder on OpenVINO's CPU plugin: for a few callers.

The engine is `runtimes.generation`'s, the network `causal`. The graph is written at the first start
on a host and staged; that needs torch and transformers, as drawing tokens does.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from runtimes import exporting
from runtimes.generation.runtime import GenerationOptions, LanguageModelRuntime
from runtimes.generation.scheduler import MAX_KEPT, Shape
from runtimes.openvino import model

if TYPE_CHECKING:  # at run time it would import torch
    from runtimes.generation.engine import Network


OpenVINOStreamOptions = GenerationOptions


def library() -> None:
    """Imports what a model needs; nothing of that without torch and transformers."""
    model.library()
    if all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
        for module in ("runtimes.openvino.causal", "runtimes.generation.texts"):
            importlib.import_module(module)


class OpenVINOStreamRuntime(LanguageModelRuntime):
    """See `runtimes.types.StreamRuntime`."""

    platform = "openvino_paged"

    def _network(self, folder: Path, shape: Shape, threads: int) -> Network:
        model.library()  # before anything is exported for it
        entry = exporting.language_model(folder, self._settings)
        causal = importlib.import_module("runtimes.openvino.causal")
        # Twice, because who has just left may still be in the running step.
        sequences = MAX_KEPT + 2 * shape.max_sequences
        network: Network = causal.opened(entry, threads, shape.cache_tokens, sequences)
        return network
