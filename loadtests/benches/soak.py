"""Bench: does a server leak while clients disconnect, time out and send malformed requests?

`python -m loadtests.benches.soak --minutes 10`: MiniLM gets the ragged mix, of which one request in
ten misbehaves. Of these, a third each are cancelled by their client, have next to no timeout, or
are malformed. Memory by process and the levels of `/metrics` are sampled. Promises: after the load,
queue, inflight batches, ledger and drift are zero; no process died; memory does not grow; no
request, malformed or not, got a 500.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from loadtests.benches.minilm_load import INPUT, PATH, minilm_load
from loadtests.benches.ragged_embeddings import settings_of
from loadtests.benches.runner import Bench, BenchRun, Option, Options, Runs
from loadtests.benches.server import headrace
from loadtests.benches.soak_watch import (
    MIB,
    SoakSample,
    SoakWatch,
    growth_mib_per_hour,
    peak,
    settled,
)
from loadtests.client.closed_loop import run
from loadtests.client.http1 import Target
from loadtests.client.load import Load
from loadtests.client.mischief import Mischief, malformed_requests
from loadtests.client.tally import LoadResult
from loadtests.results.report_table import BenchVerdict, Table, at_most
from loadtests.traffic.workload import infer_body, ragged_lengths

MAX_GROWTH_MIB_PER_HOUR = 60.0  # 10 MiB in 10 minutes: one leaked body a second would make more
MAX_GROWTH_MIB = 10.0
SETTLE_S = 30.0
DRIFT = "headrace_accounting_drift"


@dataclass(frozen=True, slots=True)
class Soak:
    load: LoadResult
    samples: Sequence[SoakSample]
    after: SoakSample


def soak_load(url: str, options: Options) -> Load:
    share = options.misbehave / 3
    malformed = malformed_requests(Target.parse(url + PATH), infer_body(INPUT, [101, 2023, 102]))
    return minilm_load(
        url,
        ragged_lengths(2000, random.Random(0)),
        clients=options.clients,
        seconds=options.minutes * 60,
        binary=False,
        mischief=Mischief(share, share, share, malformed_requests=malformed),
    )


def faults(result: LoadResult) -> dict[str, int]:
    """Numbers of answers that not even a malformed request may get: 500, 501 and 502."""
    wrong = ("500", "501", "502")
    kinds = {**result.errors, **result.mischief}
    return {kind: count for kind, count in kinds.items() if kind.rpartition(" ")[2] in wrong}


def accepted_malformed(result: LoadResult) -> int:
    return sum(count for kind, count in result.mischief.items() if kind.startswith("malformed 2"))


def lost_processes(samples: Sequence[SoakSample], after: SoakSample) -> list[str]:
    """Replicas in the first sample that no longer exist after the load."""
    first = samples[0].rss_bytes if samples else {}
    return [name for name in first if "replica" in name and name not in after.rss_bytes]


def grown(samples: Sequence[SoakSample]) -> dict[str, tuple[float, float, float]]:
    """By process that lived to the end: first and last resident MiB, and growth in MiB an hour."""
    if not samples:
        return {}
    first, last = samples[len(samples) // 3].rss_bytes, samples[-1].rss_bytes
    return {
        name: (first[name] / MIB, rss / MIB, growth_mib_per_hour(samples, name))
        for name, rss in last.items()
        if name in first
    }


def runs(options: Options) -> Iterator[BenchRun]:
    with headrace(settings_of(options), name="soak") as running:
        load = soak_load(running.url, options)
        with SoakWatch(running, options.every) as watch:
            result = run(load)
        yield BenchRun("soak", Soak(result, watch.samples, settled(running, SETTLE_S)))


def tables(done: Runs, options: Options) -> Iterator[Table]:
    (soak,) = done.results
    result, samples = soak.load, soak.samples
    outcomes = {"ok": result.ok, **result.errors, **dict(sorted(result.mischief.items()))}
    yield Table("What was answered", ("outcome", "requests"), tuple(outcomes.items()))
    levels = tuple((name, peak(samples, name), value) for name, value in soak.after.levels.items())
    yield Table("Levels", ("level", "peak", "after the load"), levels)
    memory = tuple((name, *values) for name, values in sorted(grown(samples).items()))
    yield Table("Memory", ("process", "MiB, a third in", "MiB, end", "MiB an hour"), memory)


def bars(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    (soak,) = done.results
    levels = soak.after.levels
    nonzero = {name: value for name, value in levels.items() if value}
    yield BenchVerdict("levels are back to zero", said(nonzero), bool(levels) and not nonzero)
    yield at_most("accounted − actual at the end", abs(levels.get(DRIFT, 1.0)), 0.0)
    leaking = {
        name: f"{last - first:.0f} MiB"
        for name, (first, last, slope) in grown(soak.samples).items()
        if slope > MAX_GROWTH_MIB_PER_HOUR and last - first > MAX_GROWTH_MIB
    }
    yield BenchVerdict("no process grows", said(leaking), not leaking)
    lost = lost_processes(soak.samples, soak.after)
    yield BenchVerdict("no replica was lost", ", ".join(lost) or "none", not lost)
    wrong = faults(soak.load)
    yield BenchVerdict("nothing is answered 500", said(wrong), not wrong)


def said(kinds: Mapping[str, object]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in kinds.items()) or "none"


def notes(done: Runs, options: Options) -> Iterator[str]:
    load = done.results[0].load
    yield (
        f"{load.weight_rate:,.0f} tokens/s in {load.rate:,.0f} good answers a second; "
        f"{accepted_malformed(load)} malformed requests were taken for good ones."
    )


BENCH = Bench(
    name="soak",
    about=__doc__,
    title=lambda options: f"Soak, {options.minutes:g} minutes",
    options={
        "minutes": Option(10.0),
        "clients": Option(32),
        "misbehave": Option(0.1, "share of requests"),
        "runtime": Option("openvino"),
        "precision": Option("bf16"),
        "every": Option(5.0, "s between samples"),
    },
    measure=runs,
    tables=tables,
    bars=bars,
    notes=notes,
    record=lambda soak: [soak.load.summary(), [[s.at_s, s.levels] for s in soak.samples]],
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
