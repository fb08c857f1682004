"""Bench: do the scheduling policies keep their promises? Simulated.

For each promise, `headrace simulate` runs a scenario of `loadtests/scenarios`, and the run that it
is compared with: first in first out, the tenants alone, no hedging, healthy replicas. The
scenarios' seeds decide everything, so the results do not depend on this machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from loadtests.benches.runner import Bench, BenchRun, Column, Option, Options, Runs, say, table
from loadtests.results.report_table import BenchVerdict, Cell, Table, at_least, at_most

SCENARIOS = Path("loadtests/scenarios")
RESOLUTION = 1.02  # percentiles come from histograms, so equal runs may differ by this factor
LONGEST = 1.5  # times the longest batch's service time
LIMIT_S = 3600
VICTIMS = ("one", "two", "three")
NO_HEDGE = ("settings.models.device.hedge.mode=off",)
RUNS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "flood": ("flood-of-long", ("--fifo",)),
    "aggressor": ("aggressor", ()),
    "alone": ("aggressor", ("--set", "tenants.aggressor.arrivals.rate=0")),
    "weights": ("weights-4-1", ()),
    "two gateways": ("two-gateways-skewed", ()),
    "sleeper": ("sleeper", ()),
    "overload 1.2": ("overload-2x", ("--set", "arrivals.rate=119")),
    "overload 2": ("overload-2x", ()),
    "overload 10": ("overload-10x", ()),
    "burst": ("burst", ()),
    "mix 0.8": ("ragged-mix", ("--set", "arrivals.rate=784")),
    "mix 1.2": ("ragged-mix", ("--set", "arrivals.rate=1176")),
    "mix 2": ("ragged-mix", ("--set", "arrivals.rate=1960")),
    "mix 10": ("ragged-mix", ("--set", "arrivals.rate=9800")),
    "hiccups": ("hiccups", ()),
    "hiccups, no hedges": ("hiccups", ("--set", *NO_HEDGE)),
    "hiccups, busy": ("hiccups-busy", ()),
    "hiccups, busy, no hedges": ("hiccups-busy", ("--set", *NO_HEDGE)),
    "slow replica": ("slow-replica", ()),
    "healthy pool": ("slow-replica", ("--set", "faults.slow=[]")),
    "chaos": ("chaos", ("--set", "duration_s=3600")),
}
Found = Mapping[str, Any]


def simulated(name: str, scenario: str, more: Sequence[str]) -> dict[str, Any]:
    """The result of `headrace simulate` for a scenario. `more`: further arguments.

    Raises RuntimeError.
    """
    path = str(SCENARIOS / f"{scenario}.yaml")
    command = [sys.executable, "-m", "deployments.cli", "simulate", path, "--json", *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    say(f"{name}: done")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def runs(options: Options) -> Iterator[BenchRun]:
    with ThreadPoolExecutor(options.workers) as pool:
        found_of = pool.map(lambda name: simulated(name, *RUNS[name]), RUNS)
        for name, found in zip(RUNS, found_of, strict=True):
            yield BenchRun(name, found)


# ---- tables --------------------------------------------------------------------------------------


def of(*path: str, times: float = 1) -> Callable[[Runs], Cell]:
    """A column: the value at a path of a run's JSON."""

    def value(mine: Runs) -> Cell:
        found: Any = mine.results[0]
        for key in path:
            found = found[key]
        cell: Cell = found if times == 1 else times * found
        return cell

    return value


FLOOD: tuple[Column, ...] = (
    ("chat: wait p99 ms", of("tenants", "chat", "wait_p99_ms")),
    ("longest batch ms", of("longest_batch_ms")),
    ("chat in SLO %", of("tenants", "chat", "in_slo", times=100)),
    ("documents in SLO %", of("tenants", "documents", "in_slo", times=100)),
)
OVERLOAD: tuple[Column, ...] = (
    ("offered/s", lambda mine: mine.median(lambda found: found["offered"] / found["seconds"])),
    ("in SLO/s", of("in_slo_per_s")),
    ("p99 ms", of("p99_ms")),
    ("rejected", of("rejected")),
    ("expired", lambda mine: mine.results[0]["reasons"].get("expired", 0)),
    ("retries", of("retries")),
)
POOL: tuple[Column, ...] = (
    ("offered", of("offered")),
    ("in SLO %", of("in_slo", times=100)),
    ("p50 ms", of("p50_ms")),
    ("p99 ms", of("p99_ms")),
    ("hedged batches %", of("hedge_ratio", times=100)),
    ("extra work %", of("extra_work", times=100)),
)


def tables(done: Runs, options: Options) -> Iterator[Table]:
    flood = done.of("flood")
    fifo = Runs([BenchRun("fifo", flood.results[0]["fifo"])])
    caption = "A flood of documents (90 % of the device), a chat (5 %)"
    yield table(caption, FLOOD, {"headrace": flood, "first in, first out": fifo})
    yield tenants_table(done)
    overload = {
        name: done.of(name) for name in RUNS if name.startswith(("overload", "mix", "burst"))
    }
    caption = "Overload: `overload` and `burst` with callers that come again, `mix` without"
    yield table(caption, OVERLOAD, overload, "scenario")
    pools = ("hiccups", "slow", "healthy", "chaos")
    pool = {name: done.of(name) for name in RUNS if name.startswith(pools)}
    yield table("Pools of eight replicas", POOL, pool, "scenario")


def tenants_table(done: Runs) -> Table:
    rows = tuple(
        (
            name, tenant, each["offered"], 100 * each["in_slo"], each["p50_ms"], each["p99_ms"],
            each["device_s"], done.of(name).results[0]["jain"],
        )
        for name in ("aggressor", "alone", "weights", "two gateways", "sleeper")
        for tenant, each in done.of(name).results[0]["tenants"].items()
        if each["offered"]
    )  # fmt: skip
    headers = (
        "scenario", "tenant", "offered", "in SLO %", "p50 ms", "p99 ms", "device s", "least Jain",
    )  # fmt: skip
    return Table("Tenants", headers, rows)


# ---- promises ------------------------------------------------------------------------------------


def bars(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    found = {run.side: run.result for run in done}
    yield from fairness_bars(found)
    yield from overload_bars(found)
    yield from pool_bars(found)
    yield from end_bars(found)


def fairness_bars(found: Found) -> Iterator[BenchVerdict]:
    flood, aggressor, alone = found["flood"], found["aggressor"], found["alone"]
    claim = f"flood: the chat's p99 wait at most {LONGEST} × the longest batch"
    waits = flood["tenants"]["chat"]["wait_p99_ms"] / flood["longest_batch_ms"]
    yield at_most(claim, waits, LONGEST, " ×")
    yield at_least("aggressor: Jain at least 0.98 in any 10 s", aggressor["jain"], 0.98)
    worst_ms = max(
        aggressor["tenants"][who]["p99_ms"] - alone["tenants"][who]["p99_ms"] for who in VICTIMS
    )
    claim = f"aggressor: victims' p99 at most {LONGEST} × the longest batch above theirs alone"
    yield at_most(claim, worst_ms / aggressor["longest_batch_ms"], LONGEST, " ×")
    yield at_least("sleeper: Jain at least 0.98 in any 10 s", found["sleeper"]["jain"], 0.98)
    for name in ("weights", "two gateways"):
        tenants = found[name]["tenants"]
        got = tenants["four"]["device_s"] / tenants["one"]["device_s"]
        yield BenchVerdict(f"{name}: 4 to 1 within 5 %", f"{got:.3f}", 3.8 <= got <= 4.2)


def overload_bars(found: Found) -> Iterator[BenchVerdict]:
    for kind, loads in (("overload", ("1.2", "2", "10")), ("mix", ("0.8", "1.2", "2", "10"))):
        best = max(found[f"{kind} {load}"]["in_slo_per_s"] for load in loads)
        for load in ("2", "10"):
            kept = found[f"{kind} {load}"]["in_slo_per_s"] / best
            claim = f"{kind}, {load} times capacity: at least 95 % of the best rate in SLO"
            yield at_least(claim, 100 * kept, 95, " %")


def pool_bars(found: Found) -> Iterator[BenchVerdict]:
    def p99(name: str, beside: str) -> float:
        ratio: float = found[name]["p99_ms"] / found[beside]["p99_ms"]
        return ratio

    yield at_most("hiccups: p99 at most half", p99("hiccups", "hiccups, no hedges"), 0.5, " ×")
    yield at_most("hiccups: at most 5 % extra work", 100 * found["hiccups"]["extra_work"], 5, " %")
    busy = p99("hiccups, busy", "hiccups, busy, no hedges")
    yield at_most("hiccups, busy: p99 no worse than without hedging", busy, RESOLUTION, " ×")
    claim = "one of eight replicas five times slower: p99 at most 1.3 × the healthy pool's"
    yield at_most(claim, p99("slow replica", "healthy pool"), 1.3, " ×")


def end_bars(found: Found) -> Iterator[BenchVerdict]:
    """The burst ends 30 s into the measured time. Anything left at the end is a bug."""
    seconds, left = found["burst"]["time_series"], found["chaos"]["left_over"]
    offered, in_slo = (sum(seconds[key]["default"][40:]) for key in ("offered", "in_slo"))
    yield at_least("burst: in SLO again 10 s after it", 100 * in_slo / max(1, offered), 95, " %")
    claim = "chaos: an hour, nothing left over, no drift"
    yield BenchVerdict(claim, str(left), not any(left.values()))


BENCH = Bench(
    name="policies",
    about=__doc__,
    title="What the policies promise, on virtual time",
    options={"workers": Option(2, "runs at a time")},
    measure=runs,
    tables=tables,
    bars=bars,
    notes=(
        "Percentiles are of answered requests; shares in SLO of all that were offered.",
        "`chaos` is an hour of replicas that die, hang, hiccup and start slowly under two "
        "gateways; a run fails if a request ends twice or never, or a lease is left over.",
        "The best rate of `overload` and `mix` is that at 1.2 times capacity, where the longest "
        "rows are served less than their share. Beyond it each length gets its share "
        "(docs/decisions/0031-each-length-is-let-in-for-itself.md), and a long row takes the time "
        "of six short ones: of the peak that leaves all lengths in time, 2 and 10 times capacity "
        "keep 101 and 99 % (each length in overload, below).",
    ),
    record=lambda found: {k: found[k] for k in found if k not in ("time_series", "fifo")},
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
