"""Does anything leak when clients disconnect, time out and send malformed requests for minutes?

`python -m loadtests.benches.soak --minutes 10`: MiniLM under the ragged mix while one request in
ten misbehaves, a third each: its client leaves, it allows next to no time, or it is malformed.
Memory by process and the levels of `/metrics` are sampled. It holds when, after the load, queue,
inflight, ledger and drift are back to zero, no process was lost, memory does not grow, and nothing
was ever answered 500, malformed requests included.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence

from loadtests.benches.minilm_load import INPUT, PATH, minilm_load
from loadtests.benches.ragged_embeddings import settings_of
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
from loadtests.results.report_table import BenchReport, BenchVerdict, Table, at_most, publish
from loadtests.traffic.workload import infer_body, ragged_lengths

MOST_GROWTH_MIB_PER_HOUR = 60.0  # 10 MiB in 10 minutes: below what one leaked body a second makes
MOST_GROWTH_MIB = 10.0
SETTLE_S = 30.0
DRIFT = "headrace_accounting_drift"


def soak_load(url: str, asked: argparse.Namespace) -> Load:
    share = asked.misbehave / 3
    malformed = malformed_requests(Target.parse(url + PATH), infer_body(INPUT, [101, 2023, 102]))
    return minilm_load(
        url,
        ragged_lengths(2000, random.Random(0)),
        clients=asked.clients,
        seconds=asked.minutes * 60,
        binary=False,
        mischief=Mischief(share, share, share, malformed_requests=malformed),
    )


def faults(result: LoadResult) -> dict[str, int]:
    """Answers that no request may get, however bad: 500 and its like."""
    wrong = ("500", "501", "502")
    kinds = {**result.errors, **result.mischief}
    return {kind: count for kind, count in kinds.items() if kind.rpartition(" ")[2] in wrong}


def accepted_malformed(result: LoadResult) -> int:
    return sum(count for kind, count in result.mischief.items() if kind.startswith("malformed 2"))


def lost_processes(samples: Sequence[SoakSample], after: SoakSample) -> list[str]:
    """Replicas of the first sample that are gone after the load."""
    first = samples[0].rss_bytes if samples else {}
    return [name for name in first if "replica" in name and name not in after.rss_bytes]


def grown(samples: Sequence[SoakSample]) -> dict[str, tuple[float, float, float]]:
    """By process that lived to the end: first and last resident MiB, growth in MiB an hour."""
    if not samples:
        return {}
    first, last = samples[len(samples) // 3].rss_bytes, samples[-1].rss_bytes
    return {
        name: (first[name] / MIB, rss / MIB, growth_mib_per_hour(samples, name))
        for name, rss in last.items()
        if name in first
    }


def verdicts(
    result: LoadResult, samples: Sequence[SoakSample], after: SoakSample
) -> list[BenchVerdict]:
    nonzero = {name: value for name, value in after.levels.items() if value}
    wrong, lost = faults(result), lost_processes(samples, after)
    leaking = {
        name: f"{last - first:.0f} MiB"
        for name, (first, last, slope) in grown(samples).items()
        if slope > MOST_GROWTH_MIB_PER_HOUR and last - first > MOST_GROWTH_MIB
    }
    return [
        BenchVerdict("levels are back to zero", said(nonzero), bool(after.levels) and not nonzero),
        at_most("accounted − actual at the end", abs(after.levels.get(DRIFT, 1.0)), 0.0),
        BenchVerdict("no process grows", said(leaking), not leaking),
        BenchVerdict("no replica was lost", ", ".join(lost) or "none", not lost),
        BenchVerdict("nothing is answered 500", said(wrong), not wrong),
    ]


def said(kinds: dict[str, object] | dict[str, int] | dict[str, float] | dict[str, str]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in kinds.items()) or "none"


def report(
    result: LoadResult, samples: Sequence[SoakSample], after: SoakSample, asked: argparse.Namespace
) -> BenchReport:
    levels = tuple((name, peak(samples, name), value) for name, value in after.levels.items())
    memory = tuple((name, *values) for name, values in sorted(grown(samples).items()))
    outcomes = {"ok": result.ok, **result.errors, **dict(sorted(result.mischief.items()))}
    return BenchReport(
        name="soak",
        title=f"Soak, {asked.minutes:g} minutes",
        tables=(
            Table("What was answered", ("outcome", "requests"), tuple(outcomes.items())),
            Table("Levels", ("level", "peak", "after the load"), levels),
            Table("Memory", ("process", "MiB, a third in", "MiB, end", "MiB an hour"), memory),
        ),
        verdicts=tuple(verdicts(result, samples, after)),
        notes=(
            f"{result.weight_rate:,.0f} tokens/s in {result.rate:,.0f} good answers a second; "
            f"{accepted_malformed(result)} malformed requests were taken for good ones.",
        ),
        raw={"load": result.summary(), "samples": [[s.at_s, s.levels] for s in samples]},
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.benches.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--misbehave", type=float, default=0.1, help="share of requests")
    parser.add_argument("--runtime", default="openvino")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--every", type=float, default=5.0, help="s between samples")
    asked = parser.parse_args(argv)
    with headrace(settings_of(asked), name="soak") as running:
        load = soak_load(running.url, asked)
        with SoakWatch(running, asked.every) as watch:
            result = run(load)
        after = settled(running, SETTLE_S)
    return publish(report(result, watch.samples, after, asked), argv)


if __name__ == "__main__":
    sys.exit(main())
