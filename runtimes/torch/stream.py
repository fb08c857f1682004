"""Generates with transformers' own models on a processor: for small models and a few callers.

The engine is `runtimes.generation`'s, the network `causal`. Requests and answers are OpenAI's with
what vLLM adds; what this engine cannot do (tools, forms of answers, images) it refuses by the
field's name. Processors alone: on a GPU `vllm` is the runtime to choose.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from runtimes.generation.runtime import GenerationOptions, LanguageModelRuntime
from runtimes.generation.scheduler import Shape

if TYPE_CHECKING:  # at run time it would import torch
    from runtimes.generation.engine import Network


TorchStreamOptions = GenerationOptions


def library() -> None:
    """Imports what a model needs; nothing without transformers."""
    if importlib.util.find_spec("transformers") is not None:
        for module in ("runtimes.torch.causal", "runtimes.generation.texts"):
            importlib.import_module(module)


class TorchStreamRuntime(LanguageModelRuntime):
    """See `runtimes.types.StreamRuntime`."""

    platform = "pytorch_eager"

    def _network(self, folder: Path, shape: Shape, threads: int) -> Network:
        torch = importlib.import_module("torch")
        kinds = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
        opened = importlib.import_module("runtimes.torch.causal").opened
        network: Network = opened(folder, kinds[self._settings.precision])
        return network
