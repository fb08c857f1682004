"""Bench: what is a real server's goodput at ten times its capacity, and how fast does it refuse?

`python -m loadtests.benches.overload`: a synthetic device with a capacity of 49/s behind `headrace
serve` gets an open loop at 0.9, 1, 2 and 10 times its capacity, then 80 % of its capacity with a
burst of 10 s at ten times. Refused callers try again, up to three attempts (five in the burst),
either at once or after the `Retry-After` of the refusal. A tenth of the load comes from a tenant
with a limit of 5/s, which gets 429; other tenants get 503 when the server is full. Rows are token
ids, or texts that the gateway tokenises.

Promises: answers within the SLO are at least 95 % of the best rate from 2 times the capacity on,
and again (or of all that is offered) within 10 s after the burst; at 10 times, p99 of refusals is
below 10 ms from the sending of a request. The client shares the machine; how late it sent is shown
as lag.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product

from loadtests.benches.overload_trials import (
    BODIES,
    BURST_S,
    CALLERS,
    TENFOLD,
    Burst,
    OverloadTrial,
    play_burst,
    play_load,
    settings_of,
)
from loadtests.benches.runner import (
    Bench,
    BenchRun,
    Column,
    Option,
    Options,
    Runs,
    median,
    say,
    table,
)
from loadtests.benches.server import headrace
from loadtests.results.report_table import BenchVerdict, Cell, Table, at_least, at_most, ratio

LOADS = (0.9, 1.0, 2.0, TENFOLD)
OVER = 2.0  # promises on goodput hold from here on
MIN_OF_BEST = 0.95
MAX_BACK_S = 10.0
MAX_REFUSAL_MS = 10.0
REFUSALS = (429, 503)
LOAD, BURST = "load", "burst"


def runs(options: Options) -> Iterator[BenchRun]:
    """Runs with a server for each kind of rows and of callers; the two are a run's case."""
    for body, caller in product(options.bodies, options.callers):
        with headrace(settings_of(body), name="overload") as running:
            for load in options.loads:
                trial = play_load(running, body, caller, load, options.seconds)
                tell(trial)
                yield BenchRun(LOAD, trial, (body, caller))
            if options.burst:
                burst = play_burst(running, body, caller)
                say(f"{body}, {caller}: kept {burst.kept[:12]}")
                yield BenchRun(BURST, burst, (body, caller))


def tell(trial: OverloadTrial) -> None:
    refusals = ", ".join(
        f"{status} p50 {trial.refusal(status, 50):.1f} p99 {trial.refusal(status, 99):.1f} ms"
        for status in trial.refusal_ms
    )
    busy = {role: round(cores, 2) for role, cores in trial.cpu_cores.items() if cores > 0.04}
    say(
        f"{trial.body}, {trial.caller}, {trial.load:g}x: {trial.in_slo_per_s:.1f}/s in time; "
        f"{refusals}; lag p99 {trial.lag_p99_ms:.1f} ms; {trial.statuses}; {busy}"
    )


def tables(done: Runs, options: Options) -> Iterator[Table]:
    for case in product(options.bodies, options.callers):
        yield load_table(done, case)
    if bursts := done.of(BURST).results:
        rows = tuple((b.body, b.caller, back_s(done, b), by_second(b)) for b in bursts)
        headers = ("rows", "callers come again", "back after s")
        caption = f"After {BURST_S:g} s at ten times the capacity"
        yield Table(caption, (*headers, "in time of tries, by second after it"), rows)


def load_table(done: Runs, case: tuple[str, str]) -> Table:
    best = best_of(done, case)
    columns: list[Column] = [
        ("tries/s", median(lambda trial: trial.offered / trial.seconds)),
        ("in time/s", median("in_slo_per_s")),
        ("of the best", median(lambda trial: ratio(trial.in_slo_per_s, best))),
        *(refusal_column(status, percent) for status in REFUSALS for percent in (50, 99)),
        ("lag p99 ms", median("lag_p99_ms")),
        ("gateway cores", median(lambda trial: trial.cpu_cores.get("gateway replica", 0.0))),
        ("client cores", median(lambda trial: trial.cpu_cores.get("client", 0.0))),
    ]
    rows = {f"{run.result.load:g}x": Runs([run]) for run in done.of(LOAD, case)}
    body, caller = case
    return table(f"{body}; refused callers come again {caller}", columns, rows, "load")


def refusal_column(status: int, percent: int) -> Column:
    def refusal(mine: Runs) -> Cell:
        return mine.median(lambda trial: trial.refusal(status, percent))

    return f"{status} p{percent} ms", refusal


def back_s(done: Runs, burst: Burst) -> float:
    return burst.back_s(best_of(done, (burst.body, burst.caller)))


def by_second(burst: Burst) -> str:
    seconds = list(zip(burst.kept, burst.offered, strict=True))[:12]
    return " ".join(f"{kept}/{offered}" for kept, offered in seconds)


def best_of(done: Runs, case: tuple[str, str]) -> float:
    rates = [trial.in_slo_per_s for trial in done.of(LOAD, case).results]
    return max(rates, default=float("nan"))


def bars(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    for body, caller in product(options.bodies, options.callers):
        case = (body, caller)
        for trial in done.of(LOAD, case).results:
            yield from load_bars(trial, best_of(done, case))
        for burst in done.of(BURST, case).results:
            claim = "back to 95 % of the best rate, or of all, within 10 s after the burst"
            yield at_most(f"{body}, {caller}: {claim}", back_s(done, burst), MAX_BACK_S, " s")


def load_bars(trial: OverloadTrial, best: float) -> Iterator[BenchVerdict]:
    kind = f"{trial.body}, {trial.caller}"
    if trial.load >= OVER:
        claim = f"{kind}: at {trial.load:g}x at least 95 % of the best rate"
        yield at_least(claim, ratio(trial.in_slo_per_s, best), MIN_OF_BEST)
    if trial.load >= TENFOLD:
        for status in REFUSALS:
            claim = f"{kind}: {status} within 10 ms at p99 at {trial.load:g}x"
            yield at_most(claim, trial.refusal(status, 99), MAX_REFUSAL_MS, " ms")


BENCH = Bench(
    name="overload",
    about=__doc__,
    title="Overload on a real server",
    options={
        "bodies": Option(list(BODIES), choices=BODIES),
        "callers": Option(list(CALLERS), choices=CALLERS),
        "loads": Option(list(LOADS)),
        "seconds": Option(10.0, "a load (%(default)s)"),
        "burst": Option(True),
    },
    measure=runs,
    tables=tables,
    bars=bars,
    notes=(
        "Tries include those that come again. 503s include requests that were let in, waited, and "
        "were given up at their deadline (500 ms). Texts are tokenised by the gateway, each "
        "another one; the device is the same.",
    ),
    record=lambda found: found.record(),
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
