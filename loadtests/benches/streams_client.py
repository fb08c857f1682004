"""A client of streamed completions: measures tokens a second and times to the first token, and
cancels streams.

Streams over HTTP from one event loop, in a closed loop (a client sends its next request when its
answer has ended) or an open loop (each request is sent at its own time). A token is an event with
text; its time is when the event's bytes were read. Prompts and lengths are drawn from a seed, the
same for every server.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from loadtests.benches import metrics_page

MODEL = "llm"
_SEED = 11
_LEFT = 200
_POLL_S = 0.05
_LIMIT_S = 30.0
_RUNNING = {True: "headrace_replica_running_sequences", False: "vllm:num_requests_running"}


@dataclass(slots=True)
class Streamed:
    """The result of a measurement."""

    seconds: float
    tokens: int = 0
    first_s: list[float] = field(default_factory=list)  # time to the first token, by stream
    gaps_s: list[float] = field(default_factory=list)  # between two tokens of a stream
    texts: list[str] = field(default_factory=list)  # greedy answers to fixed prompts
    gone_s: float = 0.0  # from cancelling streams until nothing ran

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    @property
    def gap_ms(self) -> float:
        return percentile(self.gaps_s, 50) * 1e3

    def first_ms(self, percent: int) -> float:
        return percentile(self.first_s, percent) * 1e3


async def throughput(url: str, clients: int, warmup: float, seconds: float) -> Streamed:
    """Runs a closed loop, whose clients start one after another within `warmup` seconds.

    After the warm-up, every token of the next `seconds` counts, and the first token of every stream
    that began in them, however late it came.
    """
    found = Streamed(seconds)
    async with _client() as http:
        begin = time.perf_counter() + warmup
        await asyncio.gather(
            *(
                _ask_until(
                    http,
                    url,
                    n,
                    _MeasuredWindow(begin, begin + seconds, warmup * n / clients),
                    found,
                )
                for n in range(clients)
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class _MeasuredWindow:
    """The time in which tokens count, and how long one client waits before it starts."""

    begin: float
    end: float
    wait_s: float


async def _ask_until(
    http: httpx.AsyncClient, url: str, number: int, window: _MeasuredWindow, found: Streamed
) -> None:
    drawn = random.Random(_SEED * 1000 + number)
    await asyncio.sleep(window.wait_s)
    while (began := time.perf_counter()) < window.end:
        prompt = [drawn.randrange(10, 250) for _ in range(drawn.randrange(8, 200))]
        last = 0.0
        async with _stream(http, url, prompt, drawn.randrange(32, 128)) as lines:
            async for _ in lines:
                now = time.perf_counter()
                if not last and began >= window.begin:
                    found.first_s.append(now - began)
                if now > window.end:
                    return
                if now >= window.begin:
                    found.tokens += 1
                    if last:
                        found.gaps_s.append(now - last)
                last = now


async def texts(url: str) -> list[str]:
    """Greedy answers to 16 fixed prompts, which are sent all at once."""
    drawn = random.Random(_SEED)
    prompts = [[drawn.randrange(10, 250) for _ in range(24)] for _ in range(16)]
    async with _client() as http:
        asked = (_text(http, url, prompt) for prompt in prompts)
        return list(await asyncio.gather(*asked))


async def _text(http: httpx.AsyncClient, url: str, prompt: list[int]) -> str:
    async with _stream(http, url, prompt, 64) as lines:
        return "".join([text async for text in lines])


async def abandoned(url: str, ours: bool) -> float:
    """Starts 200 long streams, cancels all of them, and reads the server's metrics until no
    sequence runs. Returns the seconds that this took; `inf` after half a minute."""
    async with _client() as http:
        tasks = [asyncio.create_task(_leave(http, url, n)) for n in range(_LEFT)]
        await asyncio.sleep(1.5)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    left = time.perf_counter()
    while time.perf_counter() - left < _LIMIT_S:
        samples = await asyncio.to_thread(metrics_page.fetch, url)
        if not metrics_page.total(samples, _RUNNING[ours]):
            return time.perf_counter() - left
        await asyncio.sleep(_POLL_S)
    return float("inf")


async def _leave(http: httpx.AsyncClient, url: str, number: int) -> None:
    async with _stream(http, url, [10 + number % 200] * 8, 1500) as lines:
        async for _ in lines:
            pass


@asynccontextmanager
async def _stream(
    http: httpx.AsyncClient, url: str, prompt: list[int], tokens: int
) -> AsyncIterator[AsyncIterator[str]]:
    """The texts of a completion, one for each event."""
    body: dict[str, Any] = {
        "model": MODEL, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True,
        "temperature": 0, "stream": True,
    }  # fmt: skip
    async with http.stream("POST", f"{url}/v1/completions", json=body) as answer:
        if answer.status_code != 200:
            raise RuntimeError(f"{answer.status_code}: {(await answer.aread()).decode()[:300]}")
        yield _texts(answer)


async def _texts(answer: httpx.Response) -> AsyncIterator[str]:
    rest = b""  # httpx's own lines would also end at U+2028 or U+0085 in a text
    async for data in answer.aiter_bytes():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                for choice in json.loads(line.removeprefix(b"data: "))["choices"]:
                    yield choice["text"]


def _client() -> Any:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(limits=limits, timeout=httpx.Timeout(120.0))


def percentile(values: list[float], percent: int) -> float:
    """The percentile of `values`; 0.0 if there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else 0.0


@dataclass(frozen=True, slots=True)
class PlannedStream:
    """One stream of an open loop."""

    at_s: float  # when it is due to be sent
    kind: str
    prompt: list[int]
    tokens: int


async def open_loop(url: str, planned: list[PlannedStream]) -> dict[str, list[float]]:
    """Sends each stream at its time; returns seconds from that time to the first token, by kind.

    Infinite for a stream that was refused or broke off before its first token.
    """
    found: dict[str, list[float]] = {each.kind: [] for each in planned}
    async with _client() as http:
        start = time.perf_counter()
        tasks = [
            asyncio.create_task(_first_token(http, url, each, start, found)) for each in planned
        ]
        await asyncio.gather(*tasks)
    return found


async def _first_token(
    http: httpx.AsyncClient,
    url: str,
    each: PlannedStream,
    start: float,
    found: dict[str, list[float]],
) -> None:
    await asyncio.sleep(start + each.at_s - time.perf_counter())
    first_s = float("inf")
    try:
        async with _stream(http, url, each.prompt, each.tokens) as lines:
            async for _ in lines:
                first_s = min(first_s, time.perf_counter() - start - each.at_s)
    except (RuntimeError, httpx.HTTPError):
        pass  # counts as one without a first token, unless it had one
    found[each.kind].append(first_s)


@contextmanager
def punctual() -> Iterator[bool]:
    """Gives this thread, but no process that it starts, real-time priority; yields whether the
    system allowed it.

    On a machine whose processors a model keeps busy, a client of ordinary priority would read
    answers late, and the delay would count against the server.
    """
    try:
        policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
        first = os.sched_param(os.sched_get_priority_min(os.SCHED_FIFO))
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, first)
    except (AttributeError, PermissionError):
        yield False
        return
    try:
        yield True
    finally:
        # Without the flag, a user who may not raise priorities could not lower this one either.
        os.sched_setscheduler(0, policy | os.SCHED_RESET_ON_FORK, parameters)
