"""Generates with transformers' own models, on processors or a GPU: small ones, for a few callers.

The engine is `runtimes.generation`'s, the network `causal`. Requests and answers are OpenAI's with
what vLLM adds; what this engine cannot do (tools, forms of answers, images) it refuses by the
field's name. On a GPU `vllm` is several times as fast; this needs nothing but torch.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runtimes import options
from runtimes.generation.runtime import GenerationOptions, LanguageModelRuntime
from runtimes.generation.scheduler import Shape

if TYPE_CHECKING:  # at run time it would import torch
    from runtimes.generation.engine import Network


@dataclass(frozen=True, slots=True)
class TorchStreamOptions(GenerationOptions):
    """See docs/runtimes.md."""

    device: str = options.AUTO  # see `runtimes.options`

    def __post_init__(self) -> None:
        GenerationOptions.__post_init__(self)  # `super` does not know a class with slots
        options.check_device(self.device)


def library() -> None:
    """Imports what a model needs; nothing without transformers."""
    if importlib.util.find_spec("transformers") is not None:
        for module in ("runtimes.torch.causal", "runtimes.generation.texts"):
            importlib.import_module(module)


class TorchStreamRuntime(LanguageModelRuntime):
    """See `runtimes.types.StreamRuntime`."""

    platform = "pytorch_eager"
    options_class = TorchStreamOptions

    def _network(self, folder: Path, shape: Shape, threads: int) -> Network:
        torch = importlib.import_module("torch")
        kinds = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
        runner = importlib.import_module("runtimes.torch.runner")
        chosen = options.parse(TorchStreamOptions, self._settings.options)
        place = options.chosen_device(chosen.device, runner.gpus(), "torch")
        if place.is_cuda:
            runner.settle_memory(True)
        self.device = str(place)
        opened = importlib.import_module("runtimes.torch.causal").opened
        network: Network = opened(folder, kinds[self._settings.precision], self.device)
        return network
