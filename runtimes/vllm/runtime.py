"""Runs a language model on vLLM: vLLM's engine batches, and vLLM's OpenAI layer reads requests.

Every parameter of a request means what it means in vLLM: tools, structured output, logprobs, stops,
seeds, chat templates, names of LoRA adapters. This module adds token counts of each request, the
engine's load, and that closing the iterator frees what the request held. The engine runs in a
process of its own, started by `load`. All code that depends on vLLM's internals is in `serving.py`
and `counts.py`. Source: vLLM's documentation and code, 0.32.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from runtimes import options
from runtimes.errors import LoadError, RunError, Unhealthy
from runtimes.types import Chunk, EngineLoad, RuntimeSettings, StreamLimits, StreamRequest
from runtimes.vllm import engine_args, inspection, names, speculative

if TYPE_CHECKING:
    from runtimes.vllm.serving import Serving

_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_GIB = 1024**3
_WARM_TOKENS = 4
_DIED = "vLLM's engine died"
_NO_HOST = "none.invalid"  # RFC 2606
_AT_LEAST_1 = (
    "max_num_seqs", "max_num_batched_tokens", "block_size", "tensor_parallel_size",
    "pipeline_parallel_size", "max_lora_rank",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class VLLMOptions:
    """Options of the engine; None: as vLLM chooses."""

    max_num_seqs: int | None = None  # sequences in a step
    max_num_batched_tokens: int | None = None  # tokens in a step
    scheduling: Literal["priority", "fcfs"] = "priority"  # priority: the engine runs urgent first

    # The KV cache.
    block_size: int | None = None  # tokens of a block
    kv_cache_gib: float | None = None  # on a GPU, None: what `gpu_memory_utilization` leaves
    gpu_memory_utilization: float | None = None  # share of the GPU's memory, 0..1
    kv_cache_dtype: str | None = None  # by vLLM's name
    enable_prefix_caching: bool = True  # whether prompts share blocks

    # A replica has as many GPUs as the product of both.
    tensor_parallel_size: int = 1  # parts of each layer
    pipeline_parallel_size: int = 1  # groups of layers
    max_lora_rank: int | None = None  # of adapters; None: of those that are on this node
    chat_template: str | None = None  # a file, in place of the model's own template
    tool_call_parser: str | None = None  # by vLLM's name
    reasoning_parser: str | None = None  # by vLLM's name
    # Whether names of special tokens in messages and prompts stay text.
    split_special_tokens: bool = True
    # Whether the model's folder may hold files that run code when they are read (`inspection`).
    trust_files: bool = False

    # As in vLLM.
    quantization: str | None = None
    enforce_eager: bool = False
    seed: int = 0
    speculative: Mapping[str, Any] | None = None  # see `speculative.Speculative`
    engine_args: Mapping[str, Any] | None = None  # see `engine_args`

    def __post_init__(self) -> None:
        for name in _AT_LEAST_1:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"option '{name}' is {value}, it must be 1 or more")
        if self.kv_cache_gib is not None and self.kv_cache_gib <= 0:
            raise ValueError(f"option 'kv_cache_gib' is {self.kv_cache_gib}, it must be above 0")
        share = self.gpu_memory_utilization
        if share is not None and not 0 < share <= 1:
            raise ValueError(f"option 'gpu_memory_utilization' is {share}, it must be in (0, 1]")
        for option, listed in (
            ("tool_call_parser", names.TOOL_PARSERS), ("quantization", names.QUANTISATIONS),
            ("reasoning_parser", names.REASONING_PARSERS), ("kv_cache_dtype", names.CACHE_TYPES),
        ):  # fmt: skip
            names.check(option, getattr(self, option), listed)
        speculative.parsed(self.speculative)
        engine_args.check(self.engine_args or {})


def arguments(settings: RuntimeSettings, chosen: VLLMOptions) -> list[str]:
    """What the same model would be given on `vllm serve`'s command line."""
    given = {
        "model": settings.source,
        "served-model-name": settings.name,
        "dtype": _DTYPES[settings.precision],
        "max-model-len": settings.max_length,
        "max-num-seqs": chosen.max_num_seqs,
        "max-num-batched-tokens": chosen.max_num_batched_tokens,
        "block-size": chosen.block_size,
        "gpu-memory-utilization": chosen.gpu_memory_utilization,
        "scheduling-policy": chosen.scheduling,
        "tensor-parallel-size": chosen.tensor_parallel_size,
        "pipeline-parallel-size": chosen.pipeline_parallel_size,
        "kv-cache-dtype": chosen.kv_cache_dtype,
        "chat-template": chosen.chat_template,
        # Left to vLLM, each request chooses, and the first one binds all that follow.
        "structured-outputs-config.backend": "xgrammar",
        "tool-call-parser": chosen.tool_call_parser,
        "reasoning-parser": chosen.reasoning_parser,
        "quantization": chosen.quantization,
        "seed": chosen.seed,
    }
    proposer = speculative.parsed(chosen.speculative)
    if proposer is not None:
        given["speculative-config"] = proposer.command_line()
    if chosen.kv_cache_gib is not None:
        given["kv-cache-memory-bytes"] = int(chosen.kv_cache_gib * _GIB)
    if settings.adapters_resident:
        given |= {
            "max-loras": settings.adapters_resident,
            "max-cpu-loras": settings.adapters_resident,
            "max-lora-rank": settings.max_lora_rank or chosen.max_lora_rank,
        }
    flags = {
        "enable-prefix-caching": chosen.enable_prefix_caching,
        "no-enable-prefix-caching": not chosen.enable_prefix_caching,
        "enable-auto-tool-choice": chosen.tool_call_parser is not None,
        "enable-lora": settings.adapters_resident > 0,
        "enforce-eager": chosen.enforce_eager,
        "enable-prompt-tokens-details": True,
        "enable-sleep-mode": settings.sleeps,
    }
    made = [f"--{name}={value}" for name, value in given.items() if value is not None]
    made += [f"--{name}" for name, wanted in flags.items() if wanted]
    made += engine_args.command_line(chosen.engine_args or {})
    # Gateways fetch images and sounds; an empty list would allow every host.
    made += ["--allowed-media-domains", _NO_HOST]
    return made


class VLLMRuntime:
    """See `runtimes.types.StreamRuntime`."""

    def __init__(self, settings: RuntimeSettings) -> None:
        self._settings = settings
        self._options = options.parse(VLLMOptions, settings.options)
        self._serving: Serving | None = None

    async def load(self) -> None:
        # Importing it takes seconds, so it is done off the loop, and late.
        self._settings.progress("staging", 0.0)
        loop = asyncio.get_running_loop()
        given = arguments(self._settings, self._options)
        await loop.run_in_executor(None, self._inspect)
        start = await loop.run_in_executor(None, _importer)
        self._settings.progress("staging", 1.0)
        self._settings.progress("compiling", 0.0)
        self._serving = await start(
            given, self._settings, split_special_tokens=self._options.split_special_tokens
        )
        self._settings.progress("compiling", 1.0)

    def _inspect(self) -> None:
        """The files, before vLLM reads them. Raises LoadError."""
        chosen = self._options
        if chosen.chat_template is not None:
            inspection.check_template(chosen.chat_template)
        if not chosen.trust_files:
            inspection.check(self._folders())
            inspection.check_quantisation(str(self._settings.source), chosen.quantization)

    def _folders(self) -> list[str]:
        proposer = speculative.parsed(self._options.speculative)
        draft = proposer.model if proposer else None
        return [str(folder) for folder in (self._settings.source, draft) if folder]

    async def warm(self) -> None:
        """A short prompt, the longest one, one whose answer has log-probabilities and one whose
        answer has a grammar: the engine sets up or compiles what makes them with the first, for up
        to 20 s in which nobody is served."""
        longest = max(self.limits().context_tokens - _WARM_TOKENS, 1)
        name = self._settings.name
        grammar = {"regex": "[ab]{8}"}
        asks = [
            {"prompt": [1, 2, 3], "max_tokens": _WARM_TOKENS},
            {"prompt": [1] * longest, "max_tokens": 1},
            {"prompt": [1, 2, 3], "max_tokens": 1, "logprobs": 1},
            {"prompt": [1, 2, 3], "max_tokens": _WARM_TOKENS, "structured_outputs": grammar},
        ]
        for number, fields in enumerate(asks):
            self._settings.progress("warming", number / len(asks))
            body = json.dumps({"model": name, "ignore_eos": True, **fields}).encode()
            request = StreamRequest(f"warm-{number}", "completions", body)
            async with aclosing(self.run(request)) as chunks:
                async for chunk in chunks:
                    # A tokeniser of which no grammar can be made has those requests refused.
                    if chunk.status != 200 and "structured_outputs" not in fields:
                        raise LoadError(f"the engine refused to warm up: {chunk.data.decode()}")
        self._settings.progress("warming", 1.0)

    def limits(self) -> StreamLimits:
        return self._loaded().limits(self._settings.precision)

    async def run(self, request: StreamRequest) -> AsyncGenerator[Chunk, None]:
        serving = self._loaded()
        try:
            async with aclosing(serving.answers(request)) as chunks:
                async for chunk in chunks:
                    if serving.dead:
                        break  # vLLM's layer ends a stream with an event that says so, and [DONE]
                    yield chunk
        except RunError:
            if not serving.dead:
                raise
        if serving.dead:
            raise Unhealthy(_DIED)

    async def health(self) -> EngineLoad:
        serving = self._loaded()
        if serving.dead:
            raise Unhealthy(_DIED)
        return serving.load()

    async def sleep(self) -> None:
        await self._loaded().sleep()

    async def wake(self) -> None:
        await self._loaded().wake()

    async def close(self) -> None:
        serving, self._serving = self._serving, None
        if serving is not None:
            await serving.adapters.close()
            await asyncio.get_running_loop().run_in_executor(None, serving.shutdown)

    def _loaded(self) -> Serving:
        if self._serving is None:
            raise Unhealthy("the engine is closed or was never loaded")
        return self._serving


def _importer():  # type: ignore[no-untyped-def]
    from runtimes.vllm.serving import start

    return start
