"""Bench: does each length of rows get its fair share of the device in overload? Simulated.

`headrace simulate` runs the scenario `ragged-mix`, first at rising rates to find the peak (the
highest rate up to which at least 99 % of the offered requests are answered in time), then at
multiples of the peak. Shares are of the device seconds of all rows answered in time. A length's
fair share is the lesser of its demand and an equal part of what the other lengths leave. A row
counts for the seconds that it takes as part of a full batch of its own length (`compare.shares`
computes the same for real servers).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from loadtests.benches.compare.shares import COSTS_MS, NAMES, Kept, water_filled
from loadtests.benches.policies import Found, simulated
from loadtests.benches.runner import Bench, BenchRun, Option, Options, Runs
from loadtests.results.report_table import BenchVerdict, Table, at_least

SCENARIO = "ragged-mix"
RATES = (740.0, 760.0, 780.0, 800.0, 820.0, 840.0, 860.0, 880.0)
IN_TIME = 0.99
MIN_OF_SHARE = 0.8
MIN_OF_PEAK = 95.0
SEARCHED, OVER = "searched", "over"


def runs(options: Options) -> Iterator[BenchRun]:
    searched: list[tuple[float, Found]] = []
    with ThreadPoolExecutor(options.workers) as pool:
        for rate, found in zip(RATES, pool.map(lambda r: at(r, options), RATES), strict=True):
            searched.append((rate, found))
            yield BenchRun(SEARCHED, found, (rate,))
        peak = peak_of(searched)
        rates = [peak * load for load in options.loads]
        over = zip(options.loads, pool.map(lambda r: at(r, options), rates), strict=True)
        for load, found in over:
            yield BenchRun(OVER, found, (load, peak))


def at(rate: float, options: Options) -> Found:
    changes = (f"arrivals.rate={rate:g}", f"duration_s={options.seconds:g}")
    sets = [part for change in changes for part in ("--set", change)]
    return simulated(f"{rate:g}/s", SCENARIO, ("--seed", str(options.seed), *sets))


def peak_of(searched: list[tuple[float, Found]]) -> float:
    """The last rate before the first at which too few requests are in time."""
    best = RATES[0]
    for rate, found in searched:
        if found["in_slo"] < IN_TIME:
            break
        best = rate
    return best


def kept_shares(found: Found) -> list[Kept]:
    """Each length's share of the device's time."""
    buckets, seconds = found["buckets"], found["seconds"]
    asked = {edge: buckets[edge]["offered"] * COSTS_MS[edge] / 1e3 / seconds for edge in NAMES}
    served = {edge: asked[edge] * buckets[edge]["in_slo"] for edge in NAMES}
    fair = water_filled(asked, sum(served.values()))
    return [
        Kept(name, asked[edge], served[edge], fair[edge], buckets[edge]["in_slo"])
        for edge, name in NAMES.items()
    ]


def tables(done: Runs, options: Options) -> Iterator[Table]:
    rows = tuple(
        (
            f"{run.case[0]:g} ×", kept.name, f"{kept.asked:.1%}", f"{kept.served:.1%}",
            f"{kept.fair:.1%}", f"{kept.part:.0%}",
        )
        for run in done.of(OVER)
        for kept in kept_shares(run.result)
    )  # fmt: skip
    headers = ("load", "tokens", "device asked for", "served in time", "fair", "of its fair share")
    yield Table("The device's time by length", headers, rows)
    rates = tuple(
        (
            f"{run.case[0]:g} ×", run.result["in_slo_per_s"], of_peak(run),
            100 * run.result["rejected"] / run.result["offered"],
            100 * run.result["reasons"].get("expired", 0) / run.result["offered"],
        )
        for run in done.of(OVER)
    )  # fmt: skip
    columns = ("load", "in time/s", "% of the peak", "% refused at once", "% told when it was late")
    yield Table("Goodput", columns, rates)


def of_peak(run: BenchRun) -> float:
    return 100 * float(run.result["in_slo_per_s"]) / float(run.case[1])


def bars(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    for run in done.of(OVER):
        if run.case[0] <= 1:
            continue
        least = min(kept.part for kept in kept_shares(run.result))
        claim = f"at {run.case[0]:g} × the peak each length at least 80 % of its fair share"
        yield at_least(claim, least, MIN_OF_SHARE)
        claim = f"at {run.case[0]:g} × the peak at least 95 % of it in time"
        yield at_least(claim, of_peak(run), MIN_OF_PEAK, " %")


BENCH = Bench(
    name="lengths_in_overload",
    about=__doc__,
    title="Each length in overload, on virtual time",
    options={
        "loads": Option([1.0, 1.5, 2.0, 3.0, 10.0], "times the peak"),
        "seconds": Option(30.0, "a run (%(default)s), its warm-up of 10 s apart"),
        "seed": Option(1),
        "workers": Option(2, "runs at a time"),
    },
    measure=runs,
    tables=tables,
    bars=bars,
    record=lambda found: {k: found[k] for k in ("offered", "in_slo", "rejected", "buckets")},
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
