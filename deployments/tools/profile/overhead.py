"""Measures what a request costs beside the device's time: memory, the hop to it, tokenising.

Memory is this process's own peak of resident memory, which Linux counts and lets it reset: that of
the first batch of its kind, before warm-up has made the allocator keep what it once had; a device's
memory is not looked at. The hop is what the smallest batch takes beside its run, through the very
thread and line that a replica has. Tokenising is timed on plain English texts of the lengths that
are asked about, none of them twice and nothing cached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter

from deployments.preprocess.tokenizer import TextTokenizer
from deployments.replica.device import DeviceWorker, HangLimits, Job
from deployments.tools.profile.backend_loop import plain_batch
from deployments.tools.profile.sweep import TimedBatch
from loadtests.traffic.texts import texts
from routers.staging import Staged
from runtimes.types import Runtime

_HANG_S = 60.0
_MIN_HOPS = 20
_SELF = Path("/proc/self")
_RESET_PEAK = "5"
_AT_ONCE = 32


def hop_s(runtime: Runtime, timed: TimedBatch, seconds: float) -> float:
    """Median over about `seconds`; the backend's own faults come through."""
    return asyncio.run(_hops(runtime, timed, seconds))


async def _hops(runtime: Runtime, timed: TimedBatch, seconds: float) -> float:
    worker = DeviceWorker(runtime, 1, limits=HangLimits(_HANG_S), on_hang=lambda: None)
    batch = plain_batch(runtime.limits(), timed.lengths)
    found: list[float] = []
    end = perf_counter() + seconds
    try:
        while len(found) < _MIN_HOPS or perf_counter() < end:
            begin = perf_counter()
            done: asyncio.Future[Job] = asyncio.get_running_loop().create_future()
            staged = Staged("profile", len(found) + 1)
            worker.queue.put(Job(staged, batch, done.set_result, begin))
            job = await done
            if job.fault is not None:
                raise job.fault
            found.append(perf_counter() - begin - job.service_s)
    finally:
        worker.close()
    return median(found)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes. `loaded`: resident once the model is; `request`: peak above that of the first request
    of one longest row; `row`: what each further row of the largest batch added; `rows` of it."""

    loaded: int
    request: int
    row: float = 0.0
    rows: int = 1


def measured(
    request: Callable[[], object], batch: Callable[[], object], rows: int
) -> MemoryUse | None:
    """Runs one request, then a batch of `rows` of them; None where the system does not tell."""
    loaded = _resident("VmRSS")
    alone = _peak_of(request)
    if loaded is None or alone is None:
        return None
    together = _peak_of(batch) if rows > 1 else None
    if together is None:
        return MemoryUse(loaded, alone - loaded)
    return MemoryUse(loaded, alone - loaded, max(0.0, (together - alone) / (rows - 1)), rows)


def _peak_of(action: Callable[[], object]) -> int | None:
    try:
        (_SELF / "clear_refs").write_text(_RESET_PEAK)
    except OSError:
        return None
    action()
    return _resident("VmHWM")


def _resident(field: str) -> int | None:
    try:
        lines = (_SELF / "status").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return int(found[0]) * 1024 if found else None


@dataclass(frozen=True, slots=True)
class Tokenising:
    """One thread's seconds: a row of the mean length, and a token."""

    row_s: float
    token_s: float
    texts: int

    @property
    def rows_per_s(self) -> float:
        return 1.0 / self.row_s


def tokenising(
    tokenizer_json: bytes, max_length: int, lengths: Sequence[int], seconds: float, rng: Random
) -> Tokenising | None:
    """None of a model without a tokeniser. Longer texts are cut, as rows are."""
    if not tokenizer_json:
        return None
    tokenizer = TextTokenizer(tokenizer_json, max_length, True, 0)
    done = tokens = 0
    spent_s = 0.0
    while spent_s < seconds:
        chosen = texts([rng.choice(lengths) for _ in range(_AT_ONCE)], rng)
        begin = perf_counter()
        found = tokenizer.tokenize(list(enumerate(chosen)))
        spent_s += perf_counter() - begin
        done += len(found)
        tokens += sum(len(ids) for ids in found)
    return Tokenising(spent_s / done, spent_s / max(1, tokens), done)
