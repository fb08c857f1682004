"""A backend that generates and only takes time, for load tests and tests of what surrounds a model.

`runtime: synthetic` with `task: generate`: a `SyntheticEngine` that sleeps through its steps.
Requests and answers (`answers`) are the part of each API's JSON that a stand-in needs; whatever
else a body holds is passed over. The output depends only on the prompt, so that a mix-up of
requests shows; each output token is one word. Texts are cut into tokens by the `tokenizer.json` of
`source` if there is one; else every four bytes are a token.

Faults can be injected by words in a prompt. They are for tests; a service would never set them.
"""

from __future__ import annotations

import asyncio
import os
import time
import zlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtimes import fingerprint, options
from runtimes.adapters import AdapterUnavailable, ResidentAdapters
from runtimes.errors import LoadError, RunError, Unhealthy
from runtimes.synthetic import answers as written
from runtimes.synthetic.answers import Answers, GenerationRequest, InvalidRequest
from runtimes.synthetic.engine import EngineShape, Sequence
from runtimes.synthetic.runtime import Hiccups
from runtimes.types import Chunk, EngineLoad, RuntimeSettings, StreamLimits, StreamRequest

EXIT_CODE = 70  # what a process ends with that `die_words` killed
_DIED = "the synthetic engine died"
_CONTEXT = 8192
_SEQUENCES = 64  # of one request at most
_POSITIVE = ("step_tokens", "max_sequences", "cache_tokens", "block_tokens")
_NOT_NEGATIVE = (
    "base_ms", "per_sequence_us", "per_prefill_token_us", "output_tokens", "load_s", "warm_s",
    "hiccup_every", "hiccup_ms", "adapter_load_ms", "weights_mib", "cache_mib", "wake_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SyntheticStreamOptions:
    """The engine's speed and size, and faults for tests."""

    # The time of a step.
    base_ms: float = 2.0
    per_sequence_us: float = 0.0
    per_prefill_token_us: float = 0.0
    step_tokens: int = 2048  # most prompt and output tokens of a step

    # What the engine holds.
    max_sequences: int = 64
    cache_tokens: int = 65536
    block_tokens: int = 16
    prefix_cache: bool = True

    output_tokens: int = 0  # after so many an output ends by itself; 0: never
    load_s: float = 0.0
    warm_s: float = 0.0
    adapter_load_ms: float = 0.0  # of an adapter
    wake_s: float = 0.0
    weights_mib: int = 0  # of memory, from `load` on
    cache_mib: int = 0  # as it says; its cache takes no memory

    # Stalls, in steps; see `Hiccups`.
    hiccup_every: int = 0
    hiccup_ms: float = 0.0
    hiccup_seed: int = 0

    # Faults of a prompt that has one of these words.
    fail_words: tuple[str, ...] = ()  # the request fails
    hang_words: tuple[str, ...] = ()  # the engine stops for all requests
    engine_die_words: tuple[str, ...] = ()  # the engine ends, the process goes on
    die_words: tuple[str, ...] = ()  # the whole process ends at once

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise ValueError(f"option '{name}' is {getattr(self, name)}, it must be 1 or more")
        for name in _NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise ValueError(f"option '{name}' is {getattr(self, name)}, it must be 0 or more")

    def shape(self) -> EngineShape:
        return EngineShape(
            base_s=self.base_ms / 1e3,
            sequence_s=self.per_sequence_us / 1e6,
            token_s=self.per_prefill_token_us / 1e6,
            cache_tokens=self.cache_tokens,
            max_sequences=self.max_sequences,
            step_tokens=self.step_tokens,
            block_tokens=self.block_tokens if self.prefix_cache else 0,
        )


@dataclass(slots=True, eq=False)
class _Generation:
    """One request's sequences, and who of them got a token (by index) that it has not taken yet."""

    prompt: tuple[int, ...]
    n: int
    most: int
    salt: str = ""
    adapter: str = ""  # the digest of its adapter's content; "": it has none
    sequences: list[Sequence] = field(default_factory=list)
    fresh: asyncio.Queue[int] = field(default_factory=asyncio.Queue)

    def output_tokens(self) -> int:
        return sum(sequence.output for sequence in self.sequences)

    def held_tokens(self) -> int:
        return sum(sequence.held for sequence in self.sequences)


class SyntheticStreamRuntime:
    """See `runtimes.types.StreamRuntime`; stages nothing."""

    def __init__(self, settings: RuntimeSettings) -> None:
        self._settings = settings
        self._options = options.parse(SyntheticStreamOptions, settings.options)
        self._engine = self._options.shape().engine()
        self._engine.tell_blocks(settings.blocks.update)
        self._hiccups = Hiccups(
            self._options.hiccup_every,
            self._options.hiccup_ms,
            self._options.hiccup_seed,
            os.getpid(),
        )
        self._context = settings.max_length or _CONTEXT
        self._jobs: set[_Generation] = set()
        self._work: asyncio.Event | None = None
        self._stepping: asyncio.Task[None] | None = None
        self._tokenizer: Any = None
        self._closed = self._hung = self._dead = self._asleep = False
        self._weights: Any = None
        self._digests: dict[str, str] = {}  # of the adapters that are loaded
        self._adapters = ResidentAdapters(
            settings.adapters, settings.adapters_resident, self._load_adapter, self._unload_adapter
        )

    async def load(self) -> None:
        if self._settings.precision != "fp32":
            raise LoadError(f"precision is '{self._settings.precision}', synthetic has fp32 only")
        room = self._options.cache_tokens - self._options.block_tokens
        if self._context > room:
            raise LoadError(
                f"lengths.max is {self._context}, the cache has room for {room} tokens of one "
                f"sequence: raise option 'cache_tokens' or lower lengths.max"
            )
        self._tokenizer = _tokenizer(self._settings.source)
        self._weights = bytearray(b"w") * (self._options.weights_mib << 20)
        await self._spend(self._options.load_s, "staging")
        if self._engine.shape.block_tokens:
            self._settings.blocks.replace(())
        self._work = asyncio.Event()
        self._stepping = asyncio.get_running_loop().create_task(self._step_for_ever(self._work))

    async def warm(self) -> None:
        await self._spend(self._options.warm_s, "warming")

    def limits(self) -> StreamLimits:
        shape = self._engine.shape
        return StreamLimits(
            context_tokens=self._context,
            cache_tokens=shape.cache_tokens,
            max_sequences=shape.max_sequences,
            cache_bytes=self._options.cache_mib << 20,
            block_tokens=shape.block_tokens,
            platform="headrace_synthetic",
        )

    async def run(self, request: StreamRequest) -> AsyncGenerator[Chunk, None]:
        self._check()
        try:
            parsed = written.read(
                request.endpoint, request.body, self._settings.name, self._adapters
            )
            if request.endpoint in written.COUNTS:
                yield Chunk(self._counted(parsed), 0, 0, 0, 0)
                return
            job = self._job(parsed, request.salt)
            if parsed.adapter:
                await self._adapters.use(parsed.adapter)
                job.adapter = self._digests[parsed.adapter]
        except InvalidRequest as fault:
            yield Chunk(written.error(fault), 0, 0, 0, 0, fault.status)
            return
        except AdapterUnavailable as fault:
            unavailable = InvalidRequest(str(fault), "model", 503)
            yield Chunk(written.error(unavailable), 0, 0, 0, 0, unavailable.status)
            return
        try:
            self._check()  # it may have died while the adapter was loaded
            async with aclosing(self._chunks(request, parsed, job)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            if parsed.adapter:
                self._adapters.done(parsed.adapter)

    async def _chunks(
        self, request: StreamRequest, parsed: GenerationRequest, job: _Generation
    ) -> AsyncGenerator[Chunk, None]:
        self._inject(request.body.decode(errors="replace"))
        name = self._settings.name
        shown = f"{name}:{parsed.adapter}" if parsed.adapter else name
        answers = written.answers(parsed, shown, request.request_id)
        asked = self._settings.blocks.ask(request.hashes, request.hashed_tokens)
        self._begin(job)
        self._settings.blocks.locate(asked, job.sequences[0].blocks, len(job.prompt))
        try:
            async for data in self._answered(job, parsed, answers):
                cached, held = job.sequences[0].cached, job.held_tokens()
                yield Chunk(data, len(job.prompt), cached, job.output_tokens(), held)
        finally:
            self._jobs.discard(job)
            for sequence in job.sequences:
                self._engine.abort(sequence)
            self._settings.blocks.done(asked)

    async def health(self) -> EngineLoad:
        self._check()
        engine, counts = self._engine, self._engine.counts
        return EngineLoad(
            running=engine.running,
            waiting=engine.waiting,
            cache_used=engine.held / engine.shape.cache_tokens,
            preemptions=counts.preemptions,
            prefix_queries=counts.prefix_queries,
            prefix_hits=counts.prefix_hits,
            steps=counts.steps,
            adapters=self._adapters.load if self._settings.adapters_resident else None,
        )

    async def close(self) -> None:
        self._closed = True
        if self._stepping is not None:
            self._stepping.cancel()
            self._stepping = None
        self._end_jobs()
        self._weights = None
        await self._adapters.close()

    async def sleep(self) -> None:
        if self._jobs:
            raise RunError(f"{len(self._jobs)} requests run")
        self._engine.forget()
        self._asleep = True

    async def wake(self) -> None:
        await _until(time.perf_counter() + self._options.wake_s)
        self._asleep = False

    # ---- one request ------------------------------------------------------------------------

    async def _answered(
        self, job: _Generation, request: GenerationRequest, answers: Answers
    ) -> AsyncGenerator[bytes, None]:
        """Of an answer that does not stream the parts are empty but for the last: they say that
        counts have changed."""
        most = job.most
        finish = "stop" if most == self._options.output_tokens else "length"
        words_of = (job.prompt, job.adapter) if job.adapter else (job.prompt,)
        seeds = [zlib.crc32(repr((*words_of, index)).encode()) for index in range(job.n)]
        words: list[list[str]] = [[] for _ in seeds]
        start, reported = answers.first(len(job.prompt)), 0
        while any(len(of_one) < most for of_one in words):
            index = await job.fresh.get()
            if index < 0:
                raise (
                    Unhealthy(_DIED) if self._dead else RunError("the synthetic engine was closed")
                )
            of_one = words[index]
            said = zlib.crc32(f"{seeds[index]} {len(of_one)}".encode()) % 1000
            of_one.append(f" w{said}")
            if request.stream:
                ends = finish if len(of_one) == most else None
                yield start + answers.token(index, of_one[-1], ends)
                start = b""
            elif job.held_tokens() != reported:
                reported = job.held_tokens()
                yield b""
        counted = len(job.prompt), job.sequences[0].cached, job.output_tokens()
        texts = ["".join(of_one) for of_one in words]
        yield answers.last(counted) if request.stream else answers.whole(texts, finish, counted)

    def _counted(self, request: GenerationRequest) -> bytes:
        if request.endpoint == "detokenize":
            return written.detokenized(self._text(request.prompt))
        return written.counted(request.endpoint, self._tokens(request.prompt), self._context)

    def _text(self, ids: str | tuple[int, ...]) -> str:
        """Of tokens that `_tokens` makes."""
        if self._tokenizer is not None:
            return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))
        raw = b"".join((int(token) % 2**32).to_bytes(4, "little") for token in ids)
        return raw.rstrip(b"\0").decode(errors="replace")

    def _job(self, request: GenerationRequest, salt: str) -> _Generation:
        prompt = self._tokens(request.prompt)
        if request.n > min(_SEQUENCES, self._options.max_sequences):
            raise InvalidRequest(f"n is {request.n}, more than this model answers at once", "n")
        room = self._context - len(prompt)
        if not prompt or room < 1:
            raise InvalidRequest(
                f"This model's maximum context length is {self._context} tokens, the prompt has "
                f"{len(prompt)}", "prompt",
            )  # fmt: skip
        most = min(request.most or room, room)
        if self._options.output_tokens:
            most = min(most, self._options.output_tokens)
        return _Generation(prompt, request.n, most, salt)

    def _begin(self, job: _Generation) -> None:
        own = f"{job.adapter}\0{job.salt}" if job.adapter else job.salt
        blocks = _blocks(job.prompt, self._engine.shape.block_tokens, own)
        job.sequences = [
            self._engine.add((job, index), len(job.prompt), job.most, blocks)
            for index in range(job.n)
        ]
        self._jobs.add(job)
        assert self._work is not None
        self._work.set()

    async def _load_adapter(self, name: str, folder: Path, digest: str) -> None:
        await _until(time.perf_counter() + self._options.adapter_load_ms / 1e3)
        self._digests[name] = digest

    async def _unload_adapter(self, name: str) -> None:
        del self._digests[name]

    def _tokens(self, prompt: str | tuple[int, ...]) -> tuple[int, ...]:
        if not isinstance(prompt, str):
            return prompt
        if self._tokenizer is not None:
            return tuple(self._tokenizer.encode(prompt).ids)
        raw = prompt.encode()
        return tuple(int.from_bytes(raw[i : i + 4], "little") for i in range(0, len(raw), 4))

    def _inject(self, text: str) -> None:
        if any(word in text for word in self._options.die_words):
            os._exit(EXIT_CODE)
        if any(word in text for word in self._options.engine_die_words):
            self._dead = True
            self._end_jobs()
            raise Unhealthy(_DIED)
        if any(word in text for word in self._options.hang_words):
            self._hung = True
        if any(word in text for word in self._options.fail_words):
            raise RunError("the prompt held a word that fails")

    def _end_jobs(self) -> None:
        for job in self._jobs:
            job.fresh.put_nowait(-1)

    # ---- the engine's time ------------------------------------------------------------------

    async def _step_for_ever(self, work: asyncio.Event) -> None:
        """Each step is due when the one before it ended, not when the loop noticed."""
        due = time.perf_counter()
        while True:
            if self._engine.idle or self._hung or self._dead:
                work.clear()
                await work.wait()
                due = time.perf_counter()
                continue
            took_s = self._engine.begin_step() + self._hiccups.next_s()
            due = max(due + took_s, time.perf_counter())
            await _until(due)
            for sequence in self._engine.end_step():
                job, index = sequence.owner
                job.fresh.put_nowait(index)

    async def _spend(self, seconds: float, phase: str, steps: int = 10) -> None:
        for step in range(steps):
            self._settings.progress(phase, step / steps)
            await _until(time.perf_counter() + seconds / steps)
        self._settings.progress(phase, 1.0)

    def _check(self) -> None:
        if self._dead:
            raise Unhealthy(_DIED)
        if self._asleep:
            raise RunError("the synthetic engine sleeps")
        if self._closed or self._stepping is None or self._stepping.done():
            raise Unhealthy("the synthetic engine is closed or was never loaded")


def _tokenizer(source: Path | None) -> Any:
    if source is None:
        return None
    path = fingerprint.beside(source, fingerprint.TOKENIZER_FILE)
    if path is None:
        return None
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(path))


def _blocks(prompt: tuple[int, ...], size: int, salt: str) -> tuple[int, ...]:
    """Chained hashes of the whole blocks but for the one with the last token, which is always read.
    None where `size` is 0."""
    chain, blocks = zlib.crc32(salt.encode()), []
    for end in range(size, len(prompt), size) if size else ():
        chain = hash((chain, prompt[end - size : end]))
        blocks.append(chain)
    return tuple(blocks)


async def _until(due: float) -> None:
    """Returns at `due` (`perf_counter`), after one turn of the loop at least."""
    loop = asyncio.get_running_loop()
    turn: asyncio.Future[None] = loop.create_future()
    loop.call_later(max(due - time.perf_counter(), 0.0), _set, turn)
    await turn


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
