"""The tokens that each request has had, and the engine's state, by vLLM's own account.

Counts by request come from the engine's outputs on their way to the serving layer, and for answers
that come whole, which have one output at the end, from the engine's books after each step. The
engine's account comes from its scheduler's statistics, one a step. Leans on vLLM 0.32's insides.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import RequestOutputKind
from vllm.v1.metrics.loggers import PrometheusStatLogger

from runtimes.types import Chunk, EngineLoad
from runtimes.vllm import block_events
from runtimes.vllm.block_events import BlockReports

# Output tokens after which an answer that comes whole tells its counts again: at most so many, and
# those of a step, are not charged where its caller leaves.
_TOLD_TOKENS = 16


@dataclass(slots=True)
class _Total:
    """Tokens of all prompts and sequences, kept up as each changes: an answer has a chunk a step
    for each of its sequences."""

    inputs: int = 0
    cached: int = 0
    outputs: int = 0
    held: int = 0


class TokenCounter:
    """One request's counts, over all its prompts and sequences. `moved` is set when they change."""

    def __init__(self, block_tokens: int) -> None:
        self.moved = asyncio.Event()
        self.generators: list[AsyncGenerator[Any, None]] = []
        self.names: list[str] = []  # of its prompts at the engine
        self.fault: Exception | None = None  # what the engine said of one of them
        self.adapter = ""  # that it uses; "": none
        self.asked = 0  # its number at the index of blocks; 0: it has none there
        self._block = max(block_tokens, 1)
        self._inputs: dict[str, int] = {}
        self._cached: dict[str, int] = {}
        self._outputs: dict[tuple[str, int], int] = {}
        self._places: dict[str, dict[int, int]] = {}  # by prompt that is not done, by sequence
        self._total = _Total()
        self._told_held = self._told_outputs = 0  # when `moved` was last set for them

    @property
    def has_output(self) -> bool:
        return self._total.outputs > 0

    def note(self, output: Any, kind: RequestOutputKind) -> None:
        """One of the engine's outputs: of a prompt, for some of its sequences."""
        name = output.request_id
        if output.prompt_token_ids is not None:
            self._read(name, len(output.prompt_token_ids), self._cached.get(name, 0))
        if output.num_cached_tokens is not None:
            self._read(name, self._inputs.get(name, 0), output.num_cached_tokens)
        for part in output.outputs:
            before = self._outputs.get((name, part.index), 0)
            more = len(part.token_ids)
            added = before + more if kind is RequestOutputKind.DELTA else more
            self._wrote(name, part.index, added)
        if output.finished:
            self._total.held -= sum(self._places.pop(name, {}).values())

    def refresh(self, books: Any) -> None:
        """From the engine's books: for a request whose outputs come at its end."""
        for name in self.names:
            for index, own in enumerate(books.external_req_ids.get(name, ())):
                state = books.request_states.get(own)
                if state is not None and not state.is_prefilling:
                    self._read(name, state.prompt_len, state.num_cached_tokens)
                    index = getattr(state, "request_index", index) or 0
                    self._wrote(name, index, state.stats.num_generation_tokens)
        held, outputs = self._total.held, self._total.outputs
        if held != self._told_held or outputs - self._told_outputs >= _TOLD_TOKENS:
            self._told_held, self._told_outputs = held, outputs
            self.moved.set()

    def chunk(self, data: bytes, status: int = 200) -> Chunk:
        total = self._total
        return Chunk(data, total.inputs, total.cached, total.outputs, total.held, status)

    def _read(self, name: str, inputs: int, cached: int) -> None:
        self._total.inputs += inputs - self._inputs.get(name, 0)
        self._total.cached += cached - self._cached.get(name, 0)
        self._inputs[name], self._cached[name] = inputs, cached

    def _wrote(self, name: str, index: int, outputs: int) -> None:
        """A sequence takes its prompt's and its output's tokens, in whole blocks."""
        self._total.outputs += outputs - self._outputs.get((name, index), 0)
        self._outputs[name, index] = outputs
        places = self._places.setdefault(name, {})
        tokens = self._inputs.get(name, 0) + outputs
        held = -(-tokens // self._block) * self._block
        self._total.held += held - places.get(index, 0)
        places[index] = held


TOKEN_COUNTER: contextvars.ContextVar[TokenCounter | None] = contextvars.ContextVar(
    "token_counter", default=None
)


class Counted:
    """The engine as the serving layer sees it: itself, but that its outputs are noted. `adapters`:
    those that are loaded, as the engine knows them, by the names that callers know."""

    def __init__(self, engine: Any, adapters: Mapping[str, Any], blocks: BlockReports) -> None:
        self._engine = engine
        self._adapters = adapters
        self._blocks = blocks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(self, prompt: Any, sampling_params: Any, request_id: str, **more: Any) -> Any:
        if (asked := more.get("lora_request")) is not None:
            more["lora_request"] = self._adapters[asked.lora_name]
        counter = TOKEN_COUNTER.get()
        if counter is not None and counter.asked and not counter.names:  # of its first prompt
            everything = self._blocks.wants_all
            sampling_params = block_events.asked(
                sampling_params, counter.asked, everything=everything
            )
        outputs = self._engine.generate(prompt, sampling_params, request_id, **more)
        if counter is None:
            return outputs
        counter.names.append(request_id)
        if sampling_params.structured_outputs is not None:
            outputs = _compiled(outputs)
        noted = _noted(counter, outputs, sampling_params.output_kind)
        counter.generators.append(noted)
        return noted


async def _noted(
    counter: TokenCounter, outputs: AsyncGenerator[Any, None], kind: RequestOutputKind
) -> AsyncGenerator[Any, None]:
    """A request of several prompts is refused as a whole: the engine looks at all of them before it
    answers one, but the layer above may come upon that answer first."""
    async with aclosing(outputs):
        try:
            async for output in outputs:
                if counter.fault is not None:
                    raise counter.fault
                counter.note(output, kind)
                yield output
        except Exception as fault:
            counter.fault = fault
            raise


async def _compiled(outputs: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """Refuses a request whose grammar the engine could not compile: it ends in an error before it
    has a token."""
    async with aclosing(outputs):
        async for output in outputs:
            if any(part.finish_reason == "error" and not part.token_ids for part in output.outputs):
                raise VLLMValidationError(
                    "no grammar can be made of what the request demands of its answer",
                    parameter="structured_outputs",
                )
            yield output


class Account:
    """The engine's, kept up by its statistics. `on_step` is called after each of its steps."""

    def __init__(self, on_step: Callable[[], None], blocks: BlockReports) -> None:
        self.load = EngineLoad()
        self._on_step = on_step
        self._blocks = blocks

    def logger(self) -> Any:
        """For the engine: makes what is told of every step, in the place of vLLM's own metrics,
        which nobody could read here."""
        account = self

        class Logger(PrometheusStatLogger):  # type: ignore[misc]
            def __init__(self, vllm_config: Any, engine_indexes: Any = None) -> None:
                pass

            def record(
                self, scheduler_stats: Any, iteration_stats: Any, *args: Any, **more: Any
            ) -> None:
                account.take(scheduler_stats, iteration_stats)

            def log(self, *args: Any) -> None:
                pass

            log_engine_initialized = record_sleep_state = record_admission_rejection = log

        return Logger

    def take(self, scheduler: Any, iteration: Any) -> None:
        if scheduler is None:
            return
        self._blocks.take(scheduler.kv_connector_stats)
        old, prefix = self.load, scheduler.prefix_cache_stats
        drafts = scheduler.spec_decoding_stats
        preempted = 0 if iteration is None else iteration.num_preempted_reqs
        self.load = EngineLoad(
            running=scheduler.num_running_reqs,
            waiting=scheduler.num_waiting_reqs + scheduler.num_skipped_waiting_reqs,
            cache_used=scheduler.kv_cache_usage,
            preemptions=old.preemptions + preempted,
            prefix_queries=old.prefix_queries + (prefix.queries if prefix else 0),
            prefix_hits=old.prefix_hits + (prefix.hits if prefix else 0),
            steps=old.steps + 1,
            drafted=old.drafted + (drafts.num_draft_tokens if drafts else 0),
            accepted=old.accepted + (drafts.num_accepted_tokens if drafts else 0),
        )
        self._on_step()
