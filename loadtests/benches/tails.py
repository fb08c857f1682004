"""Bench: how much does hedging reduce tail latency when replicas stall, and what does it cost?

`python -m loadtests.benches.tails [--seconds 25] [--load 0.45]`: two gateways and three replicas of
a synthetic device that stalls for 300 ms now and then, independently, as garbage collection or a
throttled device would. The same arrivals go in turn to a model without copies (`hedge.mode: off`),
with copies of batches that take long (`hedge`), and with copies also of batches staged behind
another (`tied`). A model that generates follows, without and with copies of requests whose first
token takes long; its latency is the time to the first token.

Promises: with copies, p99 is at most half of p99 without, p99.9 is no worse, extra work is at most
5 % (batches whose rows another batch answered; prompts that two replicas read), and no request
fails.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from loadtests.benches.runner import (
    Bench,
    BenchRun,
    Column,
    Option,
    Options,
    Runs,
    in_turn,
    say,
    spread,
    table,
    total,
)
from loadtests.benches.tails_trials import (
    BATCHES,
    KINDS,
    STREAMS,
    StallingKind,
    TailTrial,
    extra_work,
    percentile_of,
    serving,
)
from loadtests.results.report_table import BenchVerdict, Cell, Table, at_most, ratio

MAX_OF_P99, MAX_OF_P999, MAX_EXTRA = 0.5, 1.0, 0.05
OFF = "off"


def runs(options: Options) -> Iterator[BenchRun]:
    for name in options.kinds:
        kind = KINDS[name]
        with serving(kind, modes_of(kind, options)) as server:
            for repeat, mode in in_turn(modes_of(kind, options), options.repeats):
                trial = server.play(mode, options.load, options.seconds, repeat)
                tell(f"{name}, {mode}", trial)
                yield BenchRun(mode, trial, name)


def modes_of(kind: StallingKind, options: Options) -> list[str]:
    """The modes in the options; all of a kind's modes, if it has none of those."""
    return [mode for mode in kind.modes if mode in options.modes] or list(kind.modes)


def tell(what: str, trial: TailTrial) -> None:
    p50, p99, p999 = (percentile_of([trial], percent) for percent in (50, 99, 99.9))
    say(
        f"{what}: p50 {p50:.0f}, p99 {p99:.0f}, p99.9 {p999:.0f} ms, "
        f"{trial.failed} of {trial.offered} failed, {dict(trial.counts)}"
    )


def percentile(percent: float) -> Column:
    def pooled(mine: Runs) -> Cell:
        return percentile_of(mine.results, percent)

    return f"p{percent:g} ms", pooled


def columns_of(kind: StallingKind) -> tuple[Column, ...]:
    return (
        ("requests", total("offered")),
        *(percentile(percent) for percent in (50, 99, 99.9)),
        ("p99 ms, least–most", spread(lambda trial: percentile_of([trial], 99))),
        ("p99.9 to p50", lambda mine: _of(mine, 99.9) / _of(mine, 50)),
        ("copies", total("copies")),
        ("extra work", lambda mine: f"{extra_work(kind, mine.results):.1%}"),
        ("failed", total("failed")),
    )


def _of(mine: Runs, percent: float) -> float:
    return percentile_of(mine.results, percent)


def tables(done: Runs, options: Options) -> Iterator[Table]:
    for name in options.kinds:
        kind = KINDS[name]
        what = "to the first token, " if kind is STREAMS else ""
        rate = f"{kind.rate(options.load):.0f} requests/s, {options.load:.0%} busy"
        rows = {mode: done.of(mode, name) for mode in modes_of(kind, options)}
        yield table(f"{name}, {what}{rate}", columns_of(kind), rows)


def bars(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    for name in options.kinds:
        for mode in modes_of(KINDS[name], options):
            if mode != OFF and OFF in options.modes:
                yield from copy_bars(done, KINDS[name], mode)
    yield at_most("requests that failed", done.total("failed"), 0)


def copy_bars(done: Runs, kind: StallingKind, mode: str) -> Iterator[BenchVerdict]:
    """Bars of a mode with copies, compared with the mode without."""
    without, mine = done.of(OFF, kind.name), done.of(mode, kind.name)
    for percent, most in ((99, MAX_OF_P99), (99.9, MAX_OF_P999)):
        claim = f"{kind.name}, {mode}: p{percent:g} of that without copies, at most {most:g}"
        yield at_most(claim, ratio(_of(mine, percent), _of(without, percent)), most, " ×")
    claim = f"{kind.name}, {mode}: extra work, at most 5 %"
    yield at_most(claim, extra_work(kind, mine.results), MAX_EXTRA)


BENCH = Bench(
    name="tails",
    about=__doc__,
    title="What a stall costs callers, and what sparing them costs",
    options={
        "seconds": Option(25.0, "a run (%(default)s)"),
        "repeats": Option(2, "of every mode"),
        "load": Option(0.45, "share of the replicas' time (%(default)s)"),
        "kinds": Option(list(KINDS), choices=KINDS),
        "modes": Option(list(BATCHES.modes), choices=BATCHES.modes),
    },
    measure=runs,
    tables=tables,
    bars=bars,
    notes=(
        "Percentiles are over all repeats together. Batches take 15 ms and 1 ms a row, one in "
        "fifty 300 ms more; streams have 16 tokens at 10 ms a step, one step in 500 takes "
        "300 ms more, and their time is that to the first token. What a replica had begun to "
        "stream when it stalled waits for it all the same.",
        "What binds with batches is that a gateway does not know of a batch that the other one has "
        "staged on the same replica since the last answer: its own batch then seems slow, and the "
        "copy for it is paid from the same 5 %. In the simulator (400 s, two seeds) this load has "
        "a p99 of 0.14 and 0.17 × with copies and 2 % more work through one gateway, 0.40 and "
        "0.49 × and 5 % through two. A shorter delay or a larger budget changed that less than the "
        "seed did.",
    ),
    record=TailTrial.record,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
