"""What backends that generate with a network of their own share: all but the network.

A backend's `_network` makes it, on the thread that will compute. torch and transformers are
imported only when a model is loaded, so that settings can be checked without them.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runtimes import errors, host, options
from runtimes.errors import LoadError, Unhealthy
from runtimes.generation import files
from runtimes.generation.scheduler import BLOCK_TOKENS, Shape
from runtimes.types import Chunk, EngineLoad, RuntimeSettings, StreamLimits, StreamRequest
from runtimes.vllm import inspection

if TYPE_CHECKING:  # at run time it would import torch
    from runtimes.generation.engine import Engine, Model, Network

_WARM_TOKENS = 4


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """Options of the engine."""

    max_sequences: int = 4  # in a step
    cache_tokens: int | None = None  # places of the cache; None: for all at their longest
    step_tokens: int = 256  # of a step; longer prompts are read in parts
    chat_template: str | None = None  # a file, in place of the model's own template
    # Whether names of special tokens in messages and prompts stay text.
    split_special_tokens: bool = True

    def __post_init__(self) -> None:
        for name in ("max_sequences", "cache_tokens", "step_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"option '{name}' is {value}, it must be 1 or more")
        if self.step_tokens < self.max_sequences:
            raise ValueError(
                f"option 'step_tokens' is {self.step_tokens}, it must be at least 'max_sequences' "
                f"({self.max_sequences}): a step gives each sequence a token"
            )

    def shape(self, context: int) -> Shape:
        """For sequences of so many tokens. Raises `LoadError`."""
        cache = self.cache_tokens or context * self.max_sequences
        if context > cache:
            raise LoadError(
                f"lengths.max is {context}, the cache has room for {cache} tokens: raise option "
                "'cache_tokens' or lower lengths.max"
            )
        return Shape(self.max_sequences, cache, self.step_tokens)


class LanguageModelRuntime:
    """See `runtimes.types.StreamRuntime`."""

    platform = ""
    options_class = GenerationOptions
    device = "cpu"  # `_network` may choose another

    def __init__(self, settings: RuntimeSettings) -> None:
        self._settings = settings
        self._options = options.parse(self.options_class, settings.options)
        self._engine: Engine | None = None
        self._limits: StreamLimits | None = None

    def _network(self, folder: Path, shape: Shape, threads: int) -> Network:
        """Of the folder, which has been looked through. Raises `LoadError`."""
        raise NotImplementedError

    async def load(self) -> None:
        settings = self._settings
        folder = settings.source
        if folder is None:
            raise LoadError(f"runtime {settings.runtime} needs the folder of a language model")
        settings.progress("staging", 0.0)
        inspection.check([str(folder)])
        longest = files.check(folder, settings.max_length, settings.runtime)
        shape = self._options.shape(longest)
        thread = ThreadPoolExecutor(1, thread_name_prefix="generation")
        loop = asyncio.get_running_loop()
        try:
            model = await loop.run_in_executor(thread, self._opened, folder, shape, longest)
            cache_bytes = await loop.run_in_executor(
                thread, model.network.cache_bytes, shape.cache_tokens
            )
        except BaseException:
            thread.shutdown(wait=False)
            raise
        self._engine = importlib.import_module("runtimes.generation.engine").Engine(
            model, shape, thread, settings.blocks
        )
        self._limits = StreamLimits(
            context_tokens=longest,
            cache_tokens=shape.cache_tokens,
            max_sequences=shape.max_sequences,
            cache_bytes=cache_bytes,
            block_tokens=BLOCK_TOKENS,
            precision=settings.precision,
            device=self.device,
            platform=self.platform,
        )
        settings.progress("staging", 1.0)

    def _opened(self, folder: Path, shape: Shape, context: int) -> Model:
        settings, template = self._settings, self._options.chat_template
        needed = f"runtime {settings.runtime} generates with torch and transformers"
        for package in ("torch", "transformers"):
            errors.library(package, needed, "headrace[torch]")
        # These modules import them.
        engine, texts = map(
            importlib.import_module, ("runtimes.generation.engine", "runtimes.generation.texts")
        )
        prompts = texts.Prompts(
            folder, None if template is None else Path(template),
            split_special_tokens=self._options.split_special_tokens,
        )  # fmt: skip
        threads = settings.threads or host.allowed_cpus()
        importlib.import_module("torch").set_num_threads(threads)  # of this thread; draws tokens
        network = self._network(folder, shape, threads)
        model: Model = engine.Model(
            settings.name, network, prompts, files.defaults(folder), context
        )
        return model

    async def warm(self) -> None:
        """A short prompt and the longest one."""
        longest = max(self.limits().context_tokens - _WARM_TOKENS, 1)
        for number, (prompt, most) in enumerate([([1, 2, 3], _WARM_TOKENS), ([1] * longest, 1)]):
            self._settings.progress("warming", number / 2)
            said = {"prompt": prompt, "max_tokens": most, "ignore_eos": True, "logprobs": 1}
            request = StreamRequest(f"warm-{number}", "completions", json.dumps(said).encode())
            async with aclosing(self.run(request)) as chunks:
                async for chunk in chunks:
                    if chunk.status != 200:
                        raise LoadError(f"the engine refused to warm up: {chunk.data.decode()}")
        self._settings.progress("warming", 1.0)

    def limits(self) -> StreamLimits:
        self._loaded()
        assert self._limits is not None
        return self._limits

    async def run(self, request: StreamRequest) -> AsyncGenerator[Chunk, None]:
        async with aclosing(self._loaded().run(request)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def health(self) -> EngineLoad:
        return self._loaded().load()

    async def sleep(self) -> None:
        await self._loaded().sleep(weights=self._settings.sleeps)

    async def wake(self) -> None:
        await self._loaded().wake()

    async def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()

    def _loaded(self) -> Engine:
        if self._engine is None:
            raise Unhealthy("the engine is closed or was never loaded")
        return self._engine
