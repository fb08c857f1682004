"""Runs a bench that is described as data: options, measured runs, tables' columns, and thresholds.

A *run* is one measurement of one *side* (a server, a mode, a kind of start) in one *case* (a number
of clients, a model). `alternate` starts the sides' servers in turn, in reverse order every other
repeat, so that drift of the machine affects all of them alike, and drives each through all cases.
`columns` are medians, spreads and sums over a side's runs: a table for each case, a row for each
side. A *bar* compares a figure with the promised bound. The report is printed and written under
`out/bench`; its thresholds decide the exit code.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, TypeVar

from loadtests.results.report_table import (
    BENCHES,
    BenchReport,
    BenchVerdict,
    Cell,
    Picture,
    Table,
    at_least,
    median_of,
    number,
    publish,
    ratio,
    spread_of,
)

Side = TypeVar("Side")
Server = TypeVar("Server")
Value = str | Callable[[Any], float]
"""How to get a number from a run's result: an attribute's dotted path, or a function."""


@dataclass(frozen=True, slots=True)
class BenchRun:
    """One measurement of one side in one case."""

    side: str
    result: Any
    case: Any = ""


class Runs(tuple[BenchRun, ...]):
    """A bench's runs: all of them, or those of a side."""

    whole: Runs | None = None  # all of them, where these are only some

    def of(self, side: str, case: Any = None) -> Runs:
        some = Runs(r for r in self if r.side == side and case in (None, r.case))
        some.whole = self if self.whole is None else self.whole
        return some

    def beside(self, side: str) -> Runs:
        """The runs of another side in the case of these."""
        whole = self if self.whole is None else self.whole
        return whole.of(side, self[0].case) if self else Runs()

    @property
    def results(self) -> list[Any]:
        return [run.result for run in self]

    def median(self, value: Value) -> float:
        """NaN if there are no runs."""
        return median_of(self.results, _getter(value))

    def spread(self, value: Value) -> str:
        return spread_of(self.results, _getter(value))

    def total(self, value: Value) -> float:
        return sum(map(_getter(value), self.results))


def _getter(value: Value) -> Callable[[Any], float]:
    return attrgetter(value) if isinstance(value, str) else value


Column = tuple[str, Callable[[Runs], Cell]]


def median(value: Value) -> Callable[[Runs], Cell]:
    return lambda mine: mine.median(value)


def spread(value: Value) -> Callable[[Runs], Cell]:
    return lambda mine: mine.spread(value)


def total(value: Value) -> Callable[[Runs], Cell]:
    return lambda mine: mine.total(value)


def rates(unit: str, first: str) -> tuple[Column, ...]:
    """Of runs whose `result` is a load's: its rate and latency, and how many times the rate of
    each side `first` has."""
    rate = "result.rate"

    def times(mine: Runs) -> Cell:
        return ratio(mine.beside(first).median(rate), mine.median(rate))

    return (
        (unit, median(rate)),
        ("least–most", spread(rate)),
        ("p50 ms", median("result.p50_ms")),
        ("p99 ms", median("result.p99_ms")),
        (f"{first} is ×", times),
    )


def times_the_others(
    done: Runs, options: Options, first: str, least: float
) -> Iterator[BenchVerdict]:
    """Whether `first` has at least so many times the rate of each other system."""
    if first not in options.systems:
        return
    for clients in options.clients:
        ours = done.of(first, clients).median("result.rate")
        for name in options.systems:
            if name != first:
                found = ratio(ours, done.of(name, clients).median("result.rate"))
                claim = f"at least {least:g} × {name} at {clients} client{'s' * (clients > 1)}"
                yield at_least(claim, found, least, " ×")


def table(
    caption: str, columns: Iterable[Column], rows: Mapping[str, Runs], first: str = ""
) -> Table:
    """A table with a row for each name; its cells are computed from the name's runs."""
    headers, cells = zip(*columns, strict=True)
    made = tuple((name, *(cell(mine) for cell in cells)) for name, mine in rows.items())
    return Table(caption, (first, *headers), made)


def in_turn(sides: Sequence[Side], repeats: int) -> Iterator[tuple[int, Side]]:
    """Pairs (repeat, side); every other repeat is in reverse order, so that no side is always the
    first."""
    for repeat in range(repeats):
        for side in sides if repeat % 2 == 0 else sides[::-1]:
            yield repeat, side


def alternate(
    sides: Sequence[str],
    repeats: int,
    start: Callable[[str], AbstractContextManager[Server]],
    drive: Callable[[str, Server, Any], Any],
    cases: Sequence[Any] = ("",),
) -> Iterator[BenchRun]:
    """Starts each side's server in turn; `drive(side, server, case)` measures it in each case."""
    for _, side in in_turn(sides, repeats):
        with start(side) as server:
            for case in cases:
                yield BenchRun(side, drive(side, server, case), case)


def in_systems(
    options: Options,
    start: Callable[[str], AbstractContextManager[Server]],
    measure: Callable[[str, Server, int, float, float], Any],
) -> Iterator[BenchRun]:
    """`alternate` for the options systems, clients, seconds, warmup and repeats. `measure` gets the
    system's name, its server, clients, seconds, and seconds before them."""

    def drive(name: str, server: Server, clients: int) -> Any:
        return measure(name, server, clients, options.seconds, options.warmup)

    return alternate(options.systems, options.repeats, start, drive, options.clients)


@contextmanager
def meanwhile(every_s: float, act: Callable[[], object]) -> Iterator[None]:
    """While this context is entered, a thread calls `act` at once, then every so many seconds."""
    ended = threading.Event()

    def again_and_again() -> None:
        begin, turn = time.perf_counter(), 0
        while not ended.wait(max(0.0, begin + turn * every_s - time.perf_counter())):
            act()
            turn += 1

    thread = threading.Thread(target=again_and_again, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def say(text: str) -> None:
    """Prints progress while a bench runs."""
    print(f"  {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class BenchOption:
    """A command-line option of a bench.

    The type of `default` decides the kind of option: a list takes several values, an empty tuple
    makes an option that can be repeated, a bool makes a switch, everything else takes one value.
    """

    default: Any
    help: str = ""
    choices: Iterable[Any] | None = None
    parse: Callable[[str], Any] | None = None  # unset: the type of `default` or of its first item
    metavar: str | None = None

    def add_to(self, parser: argparse.ArgumentParser, name: str) -> None:
        flag = f"--{name.replace('_', '-')}"
        if isinstance(self.default, bool):
            action = argparse.BooleanOptionalAction if self.default else "store_true"
            parser.add_argument(flag, action=action, default=self.default, help=self.help)
            return
        if isinstance(self.default, tuple):
            parser.add_argument(flag, action="append", default=[], help=self.help)
            return
        several = isinstance(self.default, list)
        sample = self.default[0] if several and self.default else self.default
        parser.add_argument(
            flag,
            type=self.parse
            or (str if sample is None or (several and not self.default) else type(sample)),
            nargs="*" if several else None,
            default=self.default,
            choices=None if self.choices is None else tuple(self.choices),
            help=self.help or None,
            metavar=self.metavar,
        )


Options = argparse.Namespace


@dataclass(frozen=True, slots=True)
class Bench:
    """A bench as data. Most functions get all runs and the options."""

    name: str  # of its module in `package`
    about: str | None  # for `--help`
    title: str | Callable[[Options], str]
    measure: Callable[[Options], Iterable[BenchRun]]  # yields each run when it has ended
    columns: Sequence[Column] = ()  # of a table for each case; none: `tables` are all there are
    caption: Callable[[Any, Options], str] = lambda case, options: str(case)  # of a case's table
    first: str = ""  # what sides are, over their names
    tables: Callable[[Runs, Options], Iterable[Table]] = lambda runs, options: ()  # further ones
    thresholds: Callable[[Runs, Options], Iterable[BenchVerdict]] = lambda runs, options: ()
    options: Mapping[str, BenchOption] = field(default_factory=dict)
    notes: tuple[str, ...] | Callable[[Runs, Options], Iterable[str]] = ()
    record: Callable[[Any], Any] = lambda result: result  # what the report keeps of a run's result
    pictures: Callable[[Runs], Iterable[Picture]] = lambda runs: ()
    package: str = BENCHES

    def parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(
            prog=f"python -m {self.package}.{self.name}", description=self.about
        )
        for name, option in self.options.items():
            option.add_to(parser, name)
        return parser

    def of_cases(self, runs: Runs, options: Options) -> Iterator[Table]:
        for case in dict.fromkeys(run.case for run in runs) if self.columns else ():
            sides = dict.fromkeys(run.side for run in runs if run.case == case)
            rows = {side: runs.of(side, case) for side in sides}
            yield table(self.caption(case, options), self.columns, rows, self.first)

    def told(self, options: Options) -> Iterator[BenchRun]:
        """Measures, and prints each run as it ends."""
        for run in self.measure(options):
            if self.columns:
                cells = (f"{name} {number(cell(Runs([run])))}" for name, cell in self.columns)
                say(f"{run.side} {run.case}: {', '.join(cells)}")
            yield run

    def report(self, runs: Runs, options: Options) -> BenchReport:
        return BenchReport(
            name=self.name,
            title=self.title if isinstance(self.title, str) else self.title(options),
            tables=(*self.of_cases(runs, options), *self.tables(runs, options)),
            verdicts=tuple(self.thresholds(runs, options)),
            notes=tuple(self.notes if isinstance(self.notes, tuple) else self.notes(runs, options)),
            raw={"runs": [[run.side, run.case, self.record(run.result)] for run in runs]},
            pictures=tuple(self.pictures(runs)),
        )

    def main(self, argv: list[str] | None = None) -> int:
        """Runs the bench and publishes its report; returns 0 if every bar was met, else 1."""
        options = self.parser().parse_args(argv)
        return publish(self.report(Runs(self.told(options)), options), argv, self.package)
