"""Bench: how much throughput and latency does Headrace cost, compared with vLLM's own server?

`python -m loadtests.benches.generation`: one client process streams completions in a closed loop.
The servers take turns within each repeat. There are two models: a toy whose steps take about 2 ms,
and a larger random Llama whose steps take 30 ms and more. vLLM's own server runs twice: with the
same engine settings as in Headrace, which is the comparison, and with its defaults. The engine gets
all processors but one, which is left to servers and client.

Measured are output tokens a second, and p50 and p99 of the time to the first token. Greedy outputs
must be equal token for token. After 200 streams are cancelled at once, nothing may run 2 s later.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from operator import methodcaller
from pathlib import Path
from typing import Any

import httpx

from loadtests.benches import metrics_page
from loadtests.benches.played import percentile
from loadtests.benches.runner import (
    Bench,
    BenchOption,
    BenchRun,
    Options,
    Runs,
    alternate,
    median,
    spread,
)
from loadtests.benches.server import (
    BENCH_DIR,
    HOME_DIR,
    Launch,
    RunningServer,
    changed,
    example,
    free_port,
    headrace,
    launched,
)
from loadtests.results.report_table import BenchVerdict, at_least, at_most, number, ratio

HEADRACE, VLLM, AS_IT_COMES = "headrace", "vllm", "vllm as it comes"
MODEL = "llm"
SIZES = {"toy": (128, 2), "large": (1024, 8)}  # hidden width, layers
MIN_SHARE = {"toy": 0.0, "large": 0.95}
JUDGED = ("large",)  # engine steps of 30 ms and more
MAX_TIMES, MAX_MORE_MS = 1.05, 10.0
GONE_S = 2.0
RUNNING = {HEADRACE: "headrace_replica_running_sequences"}  # metric; of the others vLLM's own
_SEQUENCES, _CONTEXT, _BLOCK = 32, 2048, 32
_PROCESSORS = len(os.sched_getaffinity(0))
THREADS = max(1, _PROCESSORS - 1)
_SEED = 11
_LEFT, _LEAVE_S, _POLL_S, _LIMIT_S = 200, 1.5, 0.05, 30.0


# ---- servers -------------------------------------------------------------------------------------


def made(size: str) -> Path:
    """The model's folder, which the first call creates."""
    hidden, layers = SIZES[size]
    folder = BENCH_DIR / "llm" / f"{hidden}x{layers}"
    if not (folder / "model.safetensors").is_file():
        command = [sys.executable, "-m", "examples.make_llm", str(folder)]
        sizes = [f"--hidden={hidden}", f"--layers={layers}", f"--context={_CONTEXT}"]
        subprocess.run([*command, *sizes], check=True)
    return folder.absolute()


def ours(size: str) -> AbstractContextManager[RunningServer]:
    settings = changed(
        example("llm"),
        {
            "models.llm.source": str(made(size)),
            "models.llm.slo": {"ttft_ms": 60_000},
            "models.llm.options.max_num_seqs": _SEQUENCES,
            "models.llm.options.block_size": _BLOCK,
            "models.llm.options.kv_cache_gib": 1,
            "models.llm.replicas.threads": THREADS,
        },
    )
    return headrace(settings, name=f"{HEADRACE}-{size}")


def theirs(size: str, name: str = VLLM) -> AbstractContextManager[RunningServer]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server",
        "--host", "127.0.0.1", "--port", str(port),
        "--model", str(made(size)), "--served-model-name", MODEL, "--dtype", "float32",
        "--max-model-len", str(_CONTEXT), "--max-num-seqs", str(_SEQUENCES),
        "--block-size", str(_BLOCK), "--kv-cache-memory-bytes", str(2**30),
        "--scheduling-policy", "priority", "--enable-prefix-caching", "--seed", "0",
        "--enable-prompt-tokens-details",
        "--tool-call-parser", "hermes", "--enable-auto-tool-choice",
        "--disable-uvicorn-access-log",
    ]  # fmt: skip
    environ = {
        "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_CACHE_ROOT": str(HOME_DIR.absolute() / "vllm"),
    }  # fmt: skip
    if name == VLLM:  # as Headrace has it
        command += ["--distributed-executor-backend", "uni"]
        environ |= {
            "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(THREADS),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        }  # fmt: skip
    log = f"{name}-{size}".replace(" ", "-")
    return launched(Launch(log, command, url, f"{url}/health", environ))


# ---- the client ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Streamed:
    """The result of a measurement. A token is an event with text; its time is when the event's
    bytes were read."""

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


class StreamsClient:
    """Streams completions from one event loop. Prompts and lengths are drawn from a seed, the same
    for every server."""

    def __init__(self, url: str) -> None:
        self._url = url
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx.AsyncClient(limits=limits, timeout=httpx.Timeout(120.0))

    async def measured(self, running: str, options: Options) -> Streamed:
        """`running`: the metric of the sequences that run at the server."""
        async with self._http:
            found = await self.throughput(options.clients, options.warmup, options.seconds)
            found.texts = await self.texts()
            found.gone_s = await self.abandoned(running)
        return found

    async def throughput(self, clients: int, warmup_s: float, seconds: float) -> Streamed:
        """Runs a closed loop, whose clients start one after another within the warm-up.

        After the warm-up, every token of the next `seconds` counts, and the first token of every
        stream that began in them, however late it came.
        """
        found, begin = Streamed(seconds), time.perf_counter() + warmup_s

        async def client(number: int) -> None:
            drawn = random.Random(_SEED * 1000 + number)
            await asyncio.sleep(warmup_s * number / clients)
            while time.perf_counter() < begin + seconds:
                prompt = [drawn.randrange(10, 250) for _ in range(drawn.randrange(8, 200))]
                await self._counted(found, begin, prompt, drawn.randrange(32, 128))

        await asyncio.gather(*map(client, range(clients)))
        return found

    async def _counted(self, found: Streamed, begin: float, prompt: list[int], tokens: int) -> None:
        began, last = time.perf_counter(), 0.0
        async with self._stream(prompt, tokens) as texts:
            async for _ in texts:
                now = time.perf_counter()
                if not last and began >= begin:
                    found.first_s.append(now - began)
                if now > begin + found.seconds:
                    return
                if now >= begin:
                    found.tokens += 1
                    if last:
                        found.gaps_s.append(now - last)
                last = now

    async def texts(self) -> list[str]:
        """Greedy answers to 16 fixed prompts, which are sent all at once."""
        drawn = random.Random(_SEED)
        prompts = [[drawn.randrange(10, 250) for _ in range(24)] for _ in range(16)]

        async def text(prompt: list[int]) -> str:
            async with self._stream(prompt, 64) as texts:
                return "".join([text async for text in texts])

        return list(await asyncio.gather(*map(text, prompts)))

    async def abandoned(self, running: str) -> float:
        """Starts 200 long streams, cancels all of them, and reads the server's metrics until no
        sequence runs. Returns the seconds that this took; `inf` after half a minute."""

        async def leave(number: int) -> None:
            async with self._stream([10 + number % 200] * 8, 1500) as texts:
                async for _ in texts:
                    pass

        tasks = [asyncio.create_task(leave(number)) for number in range(_LEFT)]
        await asyncio.sleep(_LEAVE_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        left = time.perf_counter()
        while time.perf_counter() - left < _LIMIT_S:
            samples = await asyncio.to_thread(metrics_page.fetch, self._url)
            if not metrics_page.total(samples, running):
                return time.perf_counter() - left
            await asyncio.sleep(_POLL_S)
        return float("inf")

    @asynccontextmanager
    async def _stream(self, prompt: list[int], tokens: int) -> AsyncIterator[AsyncIterator[str]]:
        """The texts of a completion, one for each event."""
        body: dict[str, Any] = {
            "model": MODEL, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True,
            "temperature": 0, "stream": True,
        }  # fmt: skip
        asked = self._http.stream("POST", f"{self._url}/v1/completions", json=body)
        async with asked as answer:
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


# ---- the bench -----------------------------------------------------------------------------------


def runs(options: Options) -> Iterator[BenchRun]:
    for size in options.sizes:

        def start(side: str, size: str = size) -> AbstractContextManager[RunningServer]:
            return ours(size) if side == HEADRACE else theirs(size, side)

        def drive(side: str, running: RunningServer, case: str) -> Streamed:
            metric = RUNNING.get(side, "vllm:num_requests_running")

            async def measured() -> Streamed:
                return await StreamsClient(running.url).measured(metric, options)

            with punctual():
                return asyncio.run(measured())

        yield from alternate((HEADRACE, VLLM, AS_IT_COMES), options.repeats, start, drive, (size,))


def caption(size: str, options: Options) -> str:
    hidden, layers = SIZES[size]
    return f"{size}: {layers} layers of {hidden}, {options.clients} streams at once"


def thresholds(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    for size in options.sizes:
        mine, other = done.of(HEADRACE, size), done.of(VLLM, size)
        share = ratio(mine.median("tokens_per_s"), other.median("tokens_per_s"))
        claim = f"{size}: output tokens/s against vLLM's own server"
        yield at_least(claim, share, MIN_SHARE[size], " ×")
        if size in JUDGED:
            yield from first_token_bars(mine, other, size)
        same = all(each.texts == other.results[0].texts for each in (*mine.results, *other.results))
        yield BenchVerdict(f"{size}: greedy outputs alike, token for token", str(same), same)
        gone_s = max(each.gone_s for each in mine.results)
        yield at_most(f"{size}: nothing runs after 200 left streams", gone_s, GONE_S, " s")


def first_token_bars(mine: Runs, other: Runs, size: str) -> Iterator[BenchVerdict]:
    """Times to the first token may be at most 5 % longer, or 10 ms."""
    for percent in (50, 99):
        value = methodcaller("first_ms", percent)
        ours_ms, theirs_ms = mine.median(value), other.median(value)
        claim = f"{size}: first token's p{percent} at most 5 % or 10 ms more"
        max_ms = max(MAX_TIMES * theirs_ms, theirs_ms + MAX_MORE_MS)
        said = f"{number(ours_ms)} against {number(theirs_ms)} ms"
        yield BenchVerdict(claim, said, ours_ms <= max_ms)


BENCH = Bench(
    name="generation",
    about=__doc__,
    title="Streams of tokens, beside vLLM's own server",
    options={
        "sizes": BenchOption(list(SIZES), choices=SIZES),
        "clients": BenchOption(16),
        "seconds": BenchOption(30.0, "a trial (%(default)s)"),
        "warmup": BenchOption(8.0, "s before it (%(default)s)"),
        "repeats": BenchOption(3),
    },
    measure=runs,
    columns=(
        ("output tokens/s", median("tokens_per_s")),
        ("least–most", spread("tokens_per_s")),
        ("first token p50 ms", median(methodcaller("first_ms", 50))),
        ("p99 ms", median(methodcaller("first_ms", 99))),
        ("between tokens, median ms", median("gap_ms")),
        ("200 left streams gone, s", median("gone_s")),
    ),
    caption=caption,
    first="system",
    thresholds=thresholds,
    notes=(
        "Prompts of 8 to 200 tokens, outputs of 32 to 128; float32. The engine computes with "
        f"{THREADS} of {_PROCESSORS} processors but where vLLM decides (as it comes). The "
        "client runs at real-time priority, where it may.",
    ),
    record=asdict,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
