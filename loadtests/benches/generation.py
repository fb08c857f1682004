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
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from operator import methodcaller
from pathlib import Path

from loadtests.benches.launched import Launch, RunningServer, free_port, launched
from loadtests.benches.runner import (
    Bench,
    BenchRun,
    Column,
    Option,
    Options,
    Runs,
    in_turn,
    median,
    say,
    spread,
    table,
)
from loadtests.benches.server import HOME_DIR, changed, example, headrace
from loadtests.benches.streams_client import Streamed, abandoned, punctual, texts, throughput
from loadtests.results.report_table import (
    BenchVerdict,
    Table,
    at_least,
    at_most,
    number,
    ratio,
)

HEADRACE, VLLM, AS_IT_COMES = "headrace", "vllm", "vllm as it comes"
MODELS_DIR = Path("out/bench/llm")
SIZES = {"toy": (128, 2), "large": (1024, 8)}  # hidden width, layers
MIN_SHARE = {"toy": 0.0, "large": 0.95}
JUDGED = ("large",)  # engine steps of 30 ms and more
MAX_TIMES, MAX_MORE_MS = 1.05, 10.0
GONE_S = 2.0
_SEQUENCES, _CONTEXT, _BLOCK = 32, 2048, 32
_PROCESSORS = len(os.sched_getaffinity(0))
_THREADS = max(1, _PROCESSORS - 1)


def made(size: str) -> Path:
    """The model's folder, which the first call creates."""
    hidden, layers = SIZES[size]
    folder = MODELS_DIR / f"{hidden}x{layers}"
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
            "models.llm.replicas.threads": _THREADS,
        },
    )
    return headrace(settings, name=f"{HEADRACE}-{size}")


def theirs(size: str, name: str = VLLM) -> AbstractContextManager[RunningServer]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server",
        "--host", "127.0.0.1", "--port", str(port),
        "--model", str(made(size)), "--served-model-name", "llm", "--dtype", "float32",
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
            "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(_THREADS),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        }  # fmt: skip
    return launched(
        Launch(f"{name}-{size}".replace(" ", "-"), command, url, f"{url}/health", environ)
    )


def runs(options: Options) -> Iterator[BenchRun]:
    for size in options.sizes:
        for _, name in in_turn((HEADRACE, VLLM, AS_IT_COMES), options.repeats):
            with ours(size) if name == HEADRACE else theirs(size, name) as running, punctual():
                found = asyncio.run(streamed(running.url, name == HEADRACE, options))
            say(
                f"{size:>6} {name:>16} {found.tokens_per_s:8.0f} tokens/s first token p50 "
                f"{found.first_ms(50):7.1f} ms p99 {found.first_ms(99):7.1f} ms, gap "
                f"{found.gap_ms:5.1f} ms, left {found.gone_s:.2f} s"
            )
            yield BenchRun(name, found, size)


async def streamed(url: str, ours: bool, options: Options) -> Streamed:
    found = await throughput(url, options.clients, options.warmup, options.seconds)
    found.texts = await texts(url)
    found.gone_s = await abandoned(url, ours)
    return found


COLUMNS: tuple[Column, ...] = (
    ("output tokens/s", median("tokens_per_s")),
    ("least–most", spread("tokens_per_s")),
    ("first token p50 ms", median(lambda each: each.first_ms(50))),
    ("p99 ms", median(lambda each: each.first_ms(99))),
    ("between tokens, median ms", median("gap_ms")),
    ("200 left streams gone, s", median("gone_s")),
)


def tables(done: Runs, options: Options) -> Iterator[Table]:
    for size in options.sizes:
        hidden, layers = SIZES[size]
        caption = f"{size}: {layers} layers of {hidden}, {options.clients} streams at once"
        rows = {name: done.of(name, size) for name in (HEADRACE, VLLM, AS_IT_COMES)}
        yield table(caption, COLUMNS, rows, "system")


def bars(done: Runs, options: Options) -> Iterator[BenchVerdict]:
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
        "sizes": Option(list(SIZES), choices=SIZES),
        "clients": Option(16),
        "seconds": Option(30.0, "a trial (%(default)s)"),
        "warmup": Option(8.0, "s before it (%(default)s)"),
        "repeats": Option(3),
    },
    measure=runs,
    tables=tables,
    bars=bars,
    notes=(
        "Prompts of 8 to 200 tokens, outputs of 32 to 128; float32. The engine computes with "
        f"{_THREADS} of {_PROCESSORS} processors but where vLLM decides (as it comes). The "
        "client runs at real-time priority, where it may.",
    ),
    record=asdict,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
