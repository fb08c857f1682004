"""vLLM's own reading and writing of requests over an engine that only draws tokens.

Requests are parsed, rendered, checked and tokenised, and answers detokenised, cut at stops and
written, by vLLM's code as in production; the engine's process is played. Its tokens depend on the
prompt and the sequence alone, so that a request is given the same ones streamed and whole: most are
drawn from the whole vocabulary (characters come in parts), some are a call of a tool, and a request
with a grammar is given JSON. Grammars are checked as vLLM checks them, but bind no token.
Leans on vLLM 0.32's insides, as `runtimes.vllm.counts` does.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.engine.core_client import EngineCoreClient
from vllm.v1.outputs import LogprobsLists, LogprobsTensors

_BLOCKS = 128
_TOOL_CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
_CALLS = 8  # one in so many sequences is a call of a tool
_TURNS = 3


class _Sequence:
    def __init__(self, request: Any, tokens: list[int], vocabulary: int) -> None:
        self.request, self.tokens, self.vocabulary = request, tokens, vocabulary
        self.given = 0

    def step(self) -> EngineCoreOutput:
        params, token = self.request.sampling_params, self.tokens[self.given]
        tensors = self._prompt_logprobs() if self.given == 0 else None
        self.given += 1
        is_end = token == params.eos_token_id and not params.ignore_eos
        is_stop = token in params.stop_token_ids
        finish, reason = None, None
        if self.given >= max(params.min_tokens, 1) and (is_end or is_stop):
            finish, reason = FinishReason.STOP, None if is_end else token
        elif self.given == len(self.tokens):
            finish = FinishReason.LENGTH
        return EngineCoreOutput(
            self.request.request_id, [token], self._logprobs(token), tensors,
            finish_reason=finish, stop_reason=reason,
        )  # fmt: skip

    def _ids(self, first: int, count: int) -> list[int]:
        return [first, *((first + k) % self.vocabulary for k in range(1, count + 1))]

    def _logprobs(self, token: int) -> LogprobsLists | None:
        params = self.request.sampling_params
        if params.num_logprobs is None:
            return None
        if params.logprob_token_ids:
            ids = [token, *params.logprob_token_ids]
        else:
            ids = self._ids(token, params.num_logprobs)
        values = np.array([[-0.5 * k for k in range(len(ids))]], dtype=np.float32)
        return LogprobsLists(np.array([ids]), values, np.array([1]))

    def _prompt_logprobs(self) -> LogprobsTensors | None:
        params, prompt = self.request.sampling_params, self.request.prompt_token_ids
        if params.prompt_logprobs is None:
            return None
        ids = torch.tensor([self._ids(t, params.prompt_logprobs) for t in prompt[1:]])
        ids = ids.reshape(len(prompt) - 1, params.prompt_logprobs + 1)
        return LogprobsTensors(ids, -torch.ones(ids.shape), torch.ones(len(ids), dtype=torch.int))


class PlayedCore:
    """The client of an engine's process, as `AsyncLLM` uses it."""

    engine_ranks_managed = (0,)

    def __init__(self, vllm_config: Any, renderer: Any) -> None:
        vllm_config.cache_config.num_gpu_blocks = _BLOCKS
        self.resources = SimpleNamespace(engine_dead=False)
        self._tokenizer = renderer.tokenizer
        self._vocabulary = vllm_config.model_config.get_vocab_size()
        self._context = vllm_config.model_config.max_model_len
        self._running: dict[str, _Sequence] = {}
        self._work = asyncio.Event()

    async def get_supported_tasks_async(self) -> tuple[str, ...]:
        return ("generate",)

    async def add_request_async(self, request: Any) -> None:
        tokens = self._tokens(request)
        self._running[request.request_id] = _Sequence(request, tokens, self._vocabulary)
        self._work.set()

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        for each in request_ids:
            self._running.pop(each, None)

    async def get_output_async(self) -> EngineCoreOutputs:
        """One step of all that runs. No engine answers within the turn of the loop in which it was
        asked: a request of several prompts is checked in one."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        while not self._running:
            self._work.clear()
            await self._work.wait()
        outputs = [sequence.step() for sequence in self._running.values()]
        for output in outputs:
            if output.finished:
                del self._running[output.request_id]
        return EngineCoreOutputs(outputs=outputs)

    def shutdown(self, timeout: float | None = None) -> None:
        self.resources.engine_dead = True

    def _tokens(self, request: Any) -> list[int]:
        params, prompt = request.sampling_params, request.prompt_token_ids
        room = min(params.max_tokens, self._context - len(prompt))
        index = request.request_id.partition("_")[0] if params.n == 1 else "0"
        index = index if index.isdigit() else "0"  # of a child: `1_cmpl-...`
        seed = zlib.crc32(repr((prompt, index)).encode())
        grammar = params.structured_outputs
        if grammar is not None:
            text = _TOOL_CALL if grammar.structural_tag else "{}"
            return self._text(grammar.choice[0] if grammar.choice else text, room, params)
        if seed % _CALLS == 0:
            return self._text(_TOOL_CALL, room, params)
        draw = np.random.default_rng(seed)
        return [int(t) for t in draw.integers(0, self._vocabulary, room)]

    def _text(self, text: str, room: int, params: Any) -> list[int]:
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        end = params.eos_token_id if params.eos_token_id is not None else 0
        return [*ids, *([end] * room)][:room]


@contextmanager
def played_engine() -> Iterator[None]:
    """While it is entered, engines that vLLM starts are played."""

    def made(**given: Any) -> PlayedCore:
        return PlayedCore(given["vllm_config"], given["renderer"])

    with patch.object(EngineCoreClient, "make_async_mp_client", staticmethod(made)):
        yield
