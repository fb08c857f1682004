"""Answers requests to generate with a network that reads parts of several sequences in one pass.

One thread runs the network and draws tokens, step by step (`scheduler`). Everything else is done on
the event loop between two steps: requests join and leave, tokens become text, a stop ends an output
before the next step is planned. A fault of the network is followed by a step of one token. Where
that fails too, the engine is lost with all requests; else those of the first step fail alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import numpy as np
import torch

from runtimes import errors
from runtimes.errors import LoadError, RunError, Unhealthy
from runtimes.generation import requests
from runtimes.generation.answers import Answers, Counts, Piece
from runtimes.generation.requests import Asked, Defaults
from runtimes.generation.sampling import Drawn, Sampler
from runtimes.generation.scheduler import Reads, Scheduler, Shape
from runtimes.generation.scheduler import Sequence as Tokens
from runtimes.generation.texts import AnswerText, Prompts
from runtimes.synthetic.answers import InvalidRequest, error
from runtimes.types import BlockAccount, Chunk, EngineLoad, StreamRequest
from runtimes.warmup import LastRun

Ids = np.ndarray[Any, Any]
logger = logging.getLogger("headrace.replica")


@dataclass(frozen=True, slots=True)
class Part:
    """What a step reads of one sequence: `ids` (int64) behind the first `at` tokens, which were
    read before. `wanted`: whether the numbers behind the last are."""

    cache: Any  # of the network's making
    ids: Ids
    at: int
    wanted: bool = True


class Network(Protocol):
    """`cache`: makes a sequence's own keys and values; `begin_with(other, tokens)` of a new one
    makes the first tokens those of another one, `cut(tokens)` leaves the first alone. `step`:
    float32 [wanted parts, vocabulary]. `cache_bytes`: of all caches, with so many places together.
    `release` gives that memory back while there is no cache, and a GPU's memory of the `weights`;
    `restore` brings these back."""

    @property
    def vocabulary(self) -> int: ...
    def cache(self) -> Any: ...
    def step(self, parts: Sequence[Part]) -> torch.Tensor: ...
    def cache_bytes(self, places: int) -> int: ...
    def release(self, weights: bool) -> None: ...
    def restore(self) -> None: ...


def tried(vocabulary: int) -> Ids:
    """Two sequences of tokens that `check` reads, int64 [2, 24]."""
    return np.random.default_rng(0).integers(0, vocabulary, (2, 24))


def check(network: Network, drawn: Ids, own: torch.Tensor, what: str, tolerance: float) -> None:
    """Whether two sequences that are read in parts, beside one another, give the numbers that
    transformers' own module gives behind each. `own`: those, float32 [2, vocabulary]; `tolerance`:
    a share of the largest. Raises `LoadError` that begins with `what`."""
    rows = [(row, network.cache()) for row in drawn]
    bounds = [(0, 7, 20, drawn.shape[1]), (0, 9, 10, drawn.shape[1])]
    found = own
    try:
        for step in range(3):
            found = network.step(
                [
                    Part(cache, row[ends[step] : ends[step + 1]], ends[step])
                    for (row, cache), ends in zip(rows, bounds, strict=True)
                ]
            )
    except Exception as error:  # the library's
        raise LoadError(
            f"{what} cannot read several sequences at once: {error}; use runtime vllm"
        ) from error
    off = float((found - own).abs().max() / own.abs().max())
    if not off <= tolerance:
        raise LoadError(
            f"{what} gives other numbers where several sequences are read at once (off by "
            f"{off:.2g}); use runtime vllm"
        )


@dataclass(slots=True, eq=False)
class _Output:
    """One output on its way. `most`: tokens at which it ends."""

    index: int
    answer: _Answer
    text: AnswerText
    sampler: Sampler
    sequence: Tokens
    most: int
    done: bool = False


@dataclass(slots=True, eq=False)
class _Answer:
    """One request's outputs, what has come of them and is not told yet, and its counts. `most`:
    output tokens of each prompt."""

    asked: Asked
    prompts: list[list[int]]
    most: list[int]
    outputs: list[_Output] = field(default_factory=list)
    fresh: list[Piece] = field(default_factory=list)
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    fault: Exception | None = None

    @property
    def done(self) -> bool:
        return all(output.done for output in self.outputs) and not self.fresh

    def counts(self) -> Counts:
        cached = sum(output.sequence.cached or 0 for output in self.outputs[:: self.asked.n])
        outputs = sum(len(output.sequence.output) for output in self.outputs)
        return Counts(sum(map(len, self.prompts)), cached, outputs)

    def chunk(self, data: bytes) -> Chunk:
        counts = self.counts()
        held = sum(output.sequence.held for output in self.outputs)
        return Chunk(data, counts.inputs, counts.cached, counts.outputs, held)

    def fail(self, fault: Exception) -> None:
        self.fault = self.fault or fault
        self.moved.set()


@dataclass(frozen=True, slots=True)
class Model:
    """What answers. `context`: tokens of the longest prompt and output together."""

    name: str
    network: Network
    prompts: Prompts
    defaults: Defaults
    context: int


class Engine:
    """Runs on the event loop that made it. `thread`: the one that computes; closed with this."""

    def __init__(
        self, model: Model, shape: Shape, thread: ThreadPoolExecutor, blocks: BlockAccount
    ) -> None:
        self._model = model
        self._blocks = blocks
        self._scheduler = Scheduler(shape, self._cache, blocks.update)
        blocks.replace(())
        self._thread = thread
        self._work = asyncio.Event()
        self._answers: set[_Answer] = set()
        self._closed = False
        self._lost = ""  # why its steps have ended
        self._last = LastRun()
        self._stepping = asyncio.get_running_loop().create_task(self._step_until_closed())

    async def run(self, request: StreamRequest) -> AsyncGenerator[Chunk, None]:
        self._check()
        loop = asyncio.get_running_loop()
        try:
            # Off the loop: a long prompt takes its tokeniser some 10 ms.
            answer = await loop.run_in_executor(None, self._read, request)
        except InvalidRequest as fault:
            yield Chunk(error(fault), 0, 0, 0, 0, fault.status)
            return
        self._check()
        asked = self._blocks.ask(request.hashes, request.hashed_tokens)
        self._begin(answer, request)
        first = answer.outputs[0].sequence
        self._blocks.locate(asked, first.blocks(len(first.prompt)), len(first.prompt))
        try:
            async for data in self._answered(answer):
                yield answer.chunk(data)
        finally:
            self._answers.discard(answer)
            self._blocks.done(asked)
            for output in answer.outputs:
                self._scheduler.remove(output.sequence)

    def _cache(self, source: Any, tokens: int, moves: bool) -> Any:
        if moves:
            source.cut(tokens)
            return source
        made = self._model.network.cache()
        if source is not None:
            made.begin_with(source, tokens)
        return made

    def load(self) -> EngineLoad:
        self._check()
        scheduler, counts = self._scheduler, self._scheduler.counts
        return EngineLoad(
            running=scheduler.running,
            waiting=scheduler.waiting,
            cache_used=min(scheduler.held / scheduler.shape.cache_tokens, 1.0),
            preemptions=counts.preemptions,
            prefix_queries=counts.prefix_queries,
            prefix_hits=counts.prefix_hits,
            steps=counts.steps,
        )

    async def sleep(self, weights: bool = False) -> None:
        """Give back the memory of the cache, and a GPU's of the weights. Raises `RunError` while
        requests run."""
        self._check()
        if self._answers:
            raise RunError(f"{len(self._answers)} requests run")
        self._scheduler.forget()
        release = self._model.network.release
        await asyncio.get_running_loop().run_in_executor(self._thread, release, weights)

    async def wake(self) -> None:
        self._check()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._model.network.restore)

    async def close(self) -> None:
        self._closed = True
        self._stepping.cancel()
        await asyncio.gather(self._stepping, return_exceptions=True)
        for answer in self._answers:
            answer.fail(RunError("the engine was closed"))
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    def _check(self) -> None:
        if self._closed or self._stepping.done():
            raise Unhealthy(self._lost or "the engine is closed, or its steps have ended")

    # ---- one request ------------------------------------------------------------------------

    def _read(self, request: StreamRequest) -> _Answer:
        """Raises `InvalidRequest`. Runs on another thread."""
        model = self._model
        asked = requests.read(request.endpoint, request.body, model.name, model.defaults)
        if asked.chat:
            prompts = [model.prompts.of_chat(asked.messages, asked.arguments)]
        else:
            reads = model.prompts.of_text
            prompts = [reads(each) if isinstance(each, str) else each for each in asked.prompts]
        requests.check_vocabulary(asked, prompts, model.network.vocabulary)
        most = [requests.room(asked, len(prompt), model.context) for prompt in prompts]
        return _Answer(asked, prompts, most)

    def _begin(self, answer: _Answer, request: StreamRequest) -> None:
        asked = answer.asked
        salt = json.dumps([request.salt, asked.cache_salt])
        for prompt, most in zip(answer.prompts, answer.most, strict=True):
            ids = np.asarray(prompt, dtype=np.int64)
            for index in range(asked.n):
                text = AnswerText(
                    self._model.prompts.tokens, prompt, asked.stop, include=asked.include_stop,
                    skip_special=asked.skip_special,
                )  # fmt: skip
                sampler = Sampler(asked.sampling, index)
                sequence = Tokens(None, ids, request.priority, salt)
                output = _Output(len(answer.outputs), answer, text, sampler, sequence, most)
                sequence.owner = output
                answer.outputs.append(output)
        self._answers.add(answer)
        for output in answer.outputs:
            self._scheduler.add(output.sequence)
        self._work.set()

    async def _answered(self, answer: _Answer) -> AsyncGenerator[bytes, None]:
        """Parts are empty where the answer does not stream, but for the last, or where no text has
        come of a token: they say that counts have changed."""
        asked, tokens = answer.asked, self._model.prompts.tokens
        head = {
            "id": f"{'chatcmpl' if asked.chat else 'cmpl'}-{uuid.uuid4().hex}",
            "created": int(datetime.now(UTC).timestamp()),
            "model": self._model.name,
        }
        answers = Answers(asked, head, answer.prompts, tokens)
        pieces = [Piece(output.index) for output in answer.outputs]
        while not answer.done:
            await answer.moved.wait()
            answer.moved.clear()
            if answer.fault is not None:
                raise answer.fault
            fresh, answer.fresh = answer.fresh, []
            data = b""
            for piece in fresh:
                pieces[piece.index].join(piece)
                if asked.stream:
                    data += answers.event(piece)
            yield data
        counts = answer.counts()
        yield answers.last(counts) if asked.stream else answers.whole(pieces, counts)

    # ---- steps ------------------------------------------------------------------------------

    async def _step_until_closed(self) -> None:
        """A network that is lost, or a fault of this file itself, ends the engine, with all that
        runs there."""
        try:
            await self._step_for_ever()
        except Unhealthy as fault:
            self._lost = str(fault)
        except Exception as fault:
            self._lost = f"the engine's steps have ended: {fault!r}"
            logger.exception("the engine's steps have ended")
        for answer in self._answers:
            answer.fail(Unhealthy(self._lost))

    async def _step_for_ever(self) -> None:
        loop, scheduler = asyncio.get_running_loop(), self._scheduler
        while True:
            reads = scheduler.plan()
            if not reads:
                self._work.clear()
                await self._work.wait()
                continue
            parts = [_part(each) for each in reads]
            draws = [_drawing(each.sequence) for each in reads if each.draws]
            failed: RunError | None = None
            try:
                drawn = iter(
                    await loop.run_in_executor(
                        self._thread, _computed, self._model.network, parts, draws
                    )
                )
            except Unhealthy:
                raise
            except Exception as fault:  # the library's; the next step may succeed
                failed = errors.failed(f"the network failed: {fault}", fault)
            del parts, draws  # nothing else may hold the caches of those that end here
            if failed is not None:
                for each in reads:
                    scheduler.drop(each.sequence)
                self._last.failed()
                # Before they are told: a request that the network was lost with has not failed.
                await loop.run_in_executor(self._thread, self._last.check, self._smallest)
                for each in reads:
                    each.sequence.owner.answer.fail(failed)
                continue
            self._last.answered()
            scheduler.read(reads)
            for each in reads:
                token = next(drawn) if each.draws else None
                if not each.sequence.running:
                    continue
                if isinstance(token, Drawn):
                    self._take(each.sequence.owner, token)
                elif token is not None:
                    scheduler.drop(each.sequence)
                    each.sequence.owner.answer.fail(token)

    def _smallest(self) -> object:
        """A step of one token, on the thread that computes. Raises RunError."""
        network = self._model.network
        try:
            return network.step([Part(network.cache(), np.zeros(1, np.int64), 0)])
        except Exception as fault:  # the library's
            raise errors.failed(f"one token cannot be read: {fault}", fault) from fault

    def _take(self, output: _Output, drawn: Drawn) -> None:
        """An output's next token; it ends here if the token or the text says so."""
        sequence, asked = output.sequence, output.answer.asked
        sequence.output.append(drawn.token)
        count = len(sequence.output)
        finish: str | None = None
        stop: str | int | None = None
        text = ""
        if drawn.token in asked.sampling.ends and count > asked.sampling.min_tokens:
            finish = "stop"
            stop = None if drawn.token in self._model.defaults.ends else drawn.token
            text = output.text.add(drawn.token, may_stop=False) if asked.include_stop else ""
        else:
            text = output.text.add(drawn.token, may_stop=count > asked.sampling.min_tokens)
            if output.text.stopped is not None:
                finish, stop = "stop", output.text.stopped
            elif count >= output.most:
                finish = "length"
        if finish is not None:
            text += output.text.rest()
            output.done = True
            self._scheduler.remove(sequence)
        output.answer.fresh.append(Piece(output.index, text, [drawn], finish, stop))
        output.answer.moved.set()


Drawing = Callable[[torch.Tensor], Drawn]


def _part(reads: Reads) -> Part:
    sequence = reads.sequence
    return Part(sequence.cache, sequence.tokens(reads.start, reads.count), reads.start, reads.draws)


def _drawing(sequence: Tokens) -> Drawing:
    """Draws the sequence's next token. Its output does not grow meanwhile."""
    sampler: Sampler = sequence.owner.sampler
    return lambda scores: sampler.draw(scores, sequence.prompt, sequence.output)


def _computed(network: Network, parts: list[Part], draws: list[Drawing]) -> list[Drawn | RunError]:
    """A step, on the thread that computes."""
    scores = network.step(parts)
    with torch.inference_mode():
        return [_one(draw, row) for draw, row in zip(draws, scores, strict=True)]


def _one(draw: Drawing, scores: torch.Tensor) -> Drawn | RunError:
    """Penalties that overflow leave nothing that can be drawn; others' tokens are not theirs."""
    try:
        return draw(scores)
    except Exception as fault:  # the library's
        return errors.failed(f"no token can be drawn: {fault}", fault)
