"""Bench: do the scheduling policies keep their promises? Simulated.

For each promise, `headrace simulate` runs a scenario of `loadtests/scenarios`, and the run that it
is compared with: first in first out, the tenants alone, no hedging, healthy replicas. The ragged
mix runs at multiples of its peak, the highest rate of which 99 % are answered in time. A length's
fair share of the device is the lesser of its demand and an equal part of what the other lengths
leave (`compare.shares` computes the same for real servers). The scenarios' seeds decide everything,
so the results do not depend on this machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from loadtests.benches.compare.shares import COSTS_MS, NAMES, Kept, kept_of
from loadtests.benches.played import SCENARIOS
from loadtests.benches.runner import Bench, BenchOption, BenchRun, Column, Options, Runs, say, table
from loadtests.benches.server import simulate
from loadtests.results.report_table import BenchVerdict, Cell, Table, at_least, at_most

RESOLUTION = 1.02  # percentiles come from histograms, so equal runs may differ by this factor
LONGEST = 1.5  # times the longest batch's service time
VICTIMS = ("one", "two", "three")
PEAK = 820.0  # of the mix, requests a second; the run `mix 1` shows whether it still is
MIX_LOADS = ("1.5", "2", "3", "10")
NO_HEDGE = ("--set", "settings.models.device.hedge.mode=off")
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
    **{
        f"mix {load}": ("ragged-mix", ("--set", f"arrivals.rate={PEAK * float(load):g}"))
        for load in ("1", *MIX_LOADS)
    },
    "hiccups": ("hiccups", ()),
    "hiccups, no hedges": ("hiccups", NO_HEDGE),
    "hiccups, busy": ("hiccups-busy", ()),
    "hiccups, busy, no hedges": ("hiccups-busy", NO_HEDGE),
    "slow replica": ("slow-replica", ()),
    "healthy pool": ("slow-replica", ("--set", "faults.slow=[]")),
    "chaos": ("chaos", ("--set", "duration_s=3600")),
}
Found = Mapping[str, Any]


def run(name: str) -> dict[str, Any]:
    scenario, arguments = RUNS[name]
    found = simulate(SCENARIOS / f"{scenario}.yaml", arguments)
    say(f"{name}: done")
    return found


def runs(options: Options) -> Iterator[BenchRun]:
    with ThreadPoolExecutor(options.workers) as pool:
        yield from map(BenchRun, RUNS, pool.map(run, RUNS))


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
    def named(*starts: str) -> dict[str, Runs]:
        return {name: done.of(name) for name in RUNS if name.startswith(starts)}

    flood = done.of("flood")
    fifo = Runs([BenchRun("fifo", flood.results[0]["fifo"])])
    caption = "A flood of documents (90 % of the device), a chat (5 %)"
    yield table(caption, FLOOD, {"headrace": flood, "first in, first out": fifo})
    yield tenants_table(done)
    caption = "Overload: `overload` and `burst` with callers that come again, `mix` without"
    yield table(caption, OVERLOAD, named("overload", "mix", "burst"), "scenario")
    rows = tuple(
        (f"{load} ×", *kept.cells()) for load in MIX_LOADS for kept in by_length(done, load)
    )
    headers = ("load", "tokens", "device asked for", "served in time", "fair", "of its fair share")
    yield Table("`mix`: the device's time by length", headers, rows)
    pools = named("hiccups", "slow", "healthy", "chaos")
    yield table("Pools of eight replicas", POOL, pools, "scenario")


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


def by_length(done: Runs, load: str) -> list[Kept]:
    (found,) = done.of(f"mix {load}").results
    buckets, seconds = found["buckets"], found["seconds"]
    asked = {edge: buckets[edge]["offered"] * COSTS_MS[edge] / 1e3 / seconds for edge in NAMES}
    return kept_of(asked, {edge: buckets[edge]["in_slo"] for edge in NAMES})


# ---- promises ------------------------------------------------------------------------------------


def thresholds(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    found = {run.side: run.result for run in done}
    yield from fairness_bars(found)
    yield from overload_bars(found, done)
    yield from pool_bars(found)


def fairness_bars(found: Mapping[str, Found]) -> Iterator[BenchVerdict]:
    flood, aggressor, alone = found["flood"], found["aggressor"], found["alone"]
    claim = f"flood: the chat's p99 wait at most {LONGEST} × the longest batch"
    waits = flood["tenants"]["chat"]["wait_p99_ms"] / flood["longest_batch_ms"]
    yield at_most(claim, waits, LONGEST, " ×")
    worst_ms = max(
        aggressor["tenants"][who]["p99_ms"] - alone["tenants"][who]["p99_ms"] for who in VICTIMS
    )
    claim = f"aggressor: victims' p99 at most {LONGEST} × the longest batch above theirs alone"
    yield at_most(claim, worst_ms / aggressor["longest_batch_ms"], LONGEST, " ×")
    for name in ("aggressor", "sleeper"):
        yield at_least(f"{name}: Jain at least 0.98 in any 10 s", found[name]["jain"], 0.98)
    for name in ("weights", "two gateways"):
        tenants = found[name]["tenants"]
        got = tenants["four"]["device_s"] / tenants["one"]["device_s"]
        yield BenchVerdict(f"{name}: 4 to 1 within 5 %", f"{got:.3f}", 3.8 <= got <= 4.2)


def overload_bars(found: Mapping[str, Found], done: Runs) -> Iterator[BenchVerdict]:
    """The burst ends 30 s into the measured time."""
    best = max(found[f"overload {load}"]["in_slo_per_s"] for load in ("1.2", "2", "10"))
    for load in ("2", "10"):
        kept = found[f"overload {load}"]["in_slo_per_s"] / best
        claim = f"overload, {load} times capacity: at least 95 % of the best rate in SLO"
        yield at_least(claim, 100 * kept, 95, " %")
    yield at_least("mix, the peak: at least 99 % in time", 100 * found["mix 1"]["in_slo"], 99, " %")
    for load in MIX_LOADS:
        of_peak = 100 * found[f"mix {load}"]["in_slo_per_s"] / PEAK
        yield at_least(f"mix, {load} × the peak: at least 95 % of it in time", of_peak, 95, " %")
        claim = f"mix, {load} × the peak: each length at least 80 % of its fair share"
        yield at_least(claim, min(kept.part for kept in by_length(done, load)), 0.8)
    seconds = found["burst"]["time_series"]
    offered, in_slo = (sum(seconds[key]["default"][40:]) for key in ("offered", "in_slo"))
    yield at_least("burst: in SLO again 10 s after it", 100 * in_slo / max(1, offered), 95, " %")


def pool_bars(found: Mapping[str, Found]) -> Iterator[BenchVerdict]:
    def p99(name: str, beside: str) -> float:
        ratio: float = found[name]["p99_ms"] / found[beside]["p99_ms"]
        return ratio

    yield at_most("hiccups: p99 at most half", p99("hiccups", "hiccups, no hedges"), 0.5, " ×")
    yield at_most("hiccups: at most 5 % extra work", 100 * found["hiccups"]["extra_work"], 5, " %")
    busy = p99("hiccups, busy", "hiccups, busy, no hedges")
    yield at_most("hiccups, busy: p99 no worse than without hedging", busy, RESOLUTION, " ×")
    claim = "one of eight replicas five times slower: p99 at most 1.3 × the healthy pool's"
    yield at_most(claim, p99("slow replica", "healthy pool"), 1.3, " ×")
    left = found["chaos"]["left_over"]  # anything left at the end is a bug
    claim = "chaos: an hour, nothing left over, no drift"
    yield BenchVerdict(claim, str(left), not any(left.values()))


BENCH = Bench(
    name="policies",
    about=__doc__,
    title="What the policies promise, on virtual time",
    options={"workers": BenchOption(2, "runs at a time")},
    measure=runs,
    tables=tables,
    thresholds=thresholds,
    notes=(
        "Percentiles are of answered requests; shares in SLO of all that were offered.",
        "`chaos` is an hour of replicas that die, hang, hiccup and start slowly under two "
        "gateways; a run fails if a request ends twice or never, or a lease is left over.",
        "The best rate of `overload` is that at 1.2 times capacity, where the longest rows are "
        "served less than their share. Beyond it each length gets its share "
        "(docs/decisions/0031-each-length-is-let-in-for-itself.md), and a long row takes the time "
        "of six short ones.",
    ),
    record=lambda found: {k: found[k] for k in found if k not in ("time_series", "fifo")},
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
