"""`headrace profile --compare`: the fastest candidate, its lead, and whether that may be chance.

Rates of runs, the first of which did not count. The distance to the best is a ratio of means with
an interval of 95 % by bootstrap: runs of the same round are drawn together, because what disturbs
the machine disturbs neighbours, and then passes within each run. Where the interval reaches 1 the
difference is within noise. Source: Efron & Tibshirani, "An Introduction to the Bootstrap" (1993).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import fmean

from rich.console import Console

from deployments.tools.console.progress_bar import ShareBar
from deployments.tools.profile.command import ProfileOutput, must_be_writable
from deployments.tools.profile.compare.candidates import Skipped, candidates
from deployments.tools.profile.compare.contest import ROUNDS, ROWS, Contest, Ran
from deployments.tools.profile.errors import CannotProfile, WrongArguments
from deployments.tools.profile.subject import ChosenModel, ProfileOptions, chosen
from loadtests.report import page
from loadtests.report.plots import Axis, Figure, MarkRow, rows
from loadtests.report.scale import linear
from loadtests.report.table import aligned
from loadtests.results.report_table import Table, number, this_machine, today
from runtimes.host import allowed_cpus

DRAWS = 2000
_TAIL = 0.025
STOPPED = 130


@dataclass(frozen=True, slots=True)
class Ranked:
    """`tokens_per_s`: mean of runs, from `least` to `most`; seconds a batch; `ratio`: its rate to
    the best one's, from `low` to `high`."""

    name: str
    runs: int
    tokens_per_s: float
    least: float
    most: float
    mean_s: float
    p99_s: float
    ratio: float
    low: float
    high: float

    @property
    def is_noise(self) -> bool:
        """It may as well be as fast as the best."""
        return self.high >= 1.0


def ranking(runs: Mapping[str, Sequence[Ran]], rng: Random) -> list[Ranked]:
    """By rate, the best first, whose ratio is 1. Of each candidate as many runs, by round; the
    first ones are those that count."""
    means = {name: _mean(each) for name, each in runs.items()}
    ordered = sorted(means, key=lambda name: -means[name])
    return [_ranked(name, runs[name], runs[ordered[0]], rng, best=name == ordered[0])
            for name in ordered]  # fmt: skip


def _ranked(
    name: str, own: Sequence[Ran], first: Sequence[Ran], rng: Random, *, best: bool
) -> Ranked:
    rates, took = [fmean(run.rates) for run in own], sorted(s for run in own for s in run.took)
    low, high = (1.0, 1.0) if best else _interval(own, first, rng)
    return Ranked(
        name, len(own), fmean(rates), min(rates), max(rates), fmean(took),
        took[min(len(took) - 1, round(0.99 * len(took)))], _mean(own) / _mean(first), low, high,
    )  # fmt: skip


def _mean(runs: Sequence[Ran]) -> float:
    return fmean(fmean(run.rates) for run in runs)


def _interval(own: Sequence[Ran], first: Sequence[Ran], rng: Random) -> tuple[float, float]:
    rounds = range(min(len(own), len(first)))
    ratios = []
    for _ in range(DRAWS):
        drawn = rng.choices(rounds, k=len(rounds))
        own_mean, first_mean = (
            fmean(
                fmean(rng.choices(runs[place].rates, k=len(runs[place].rates))) for place in drawn
            )
            for runs in (own, first)
        )
        ratios.append(own_mean / first_mean)
    ratios.sort()
    return ratios[int(_TAIL * DRAWS)], ratios[int((1 - _TAIL) * DRAWS) - 1]


def compare(options: ProfileOptions, names: Sequence[str], output: ProfileOutput) -> int:
    """The exit code. Raises as `profile` does; nothing is stored."""
    if output.trace is not None:
        raise WrongArguments("--trace is of one backend; leave --compare out")
    must_be_writable(output)
    found = chosen(options)
    if found.model.task == "generate":
        raise WrongArguments(f"--compare: {found.name} generates; other backends do not")
    wanted, skipped = candidates(names, found.model, allowed_cpus())
    with ShareBar(found.name, Console(stderr=True)) as advance:
        contest = Contest(found, options.seed, advance)
        contest.hold(wanted, options.seconds)
    skipped += contest.skipped
    if not contest.runs and not contest.stopped:
        raise CannotProfile("\n".join(["nothing could be compared:", *map(_why, skipped)]))
    ranked = ranking(contest.runs, Random(options.seed)) if contest.runs else []
    sentences = [*verdict(ranked), *map(_why, skipped)]
    if contest.stopped:
        sentences.append("Stopped before the end.")
    table = table_of(ranked, found)
    if output.as_json:
        print(json.dumps({"model": found.name, "lengths": found.lengths.said,
                          "ranking": [asdict(each) | {"within_noise": each.is_noise}
                                      for each in ranked],
                          "skipped": [asdict(each) for each in skipped],
                          "stopped": contest.stopped}))  # fmt: skip
    else:
        lines = [table.caption, "", *aligned(table), ""] if ranked else []
        print("\n".join([*lines, *sentences]))
    if output.html is not None:
        _write(output.html, table, ranked, sentences, found)
    return STOPPED if contest.stopped else 0


def table_of(ranked: Sequence[Ranked], found: ChosenModel) -> Table:
    cells = tuple(
        (each.name, each.tokens_per_s, f"{number(each.least)}–{number(each.most)}",
         each.mean_s * 1e3, each.p99_s * 1e3, _ratio(each))
        for each in ranked
    )  # fmt: skip
    return Table(
        f"{found.name}: {ROWS} rows of {found.lengths.said} (mean {found.lengths.mean:,.0f} "
        f"tokens), sorted into batches of at most {found.model.batch.max_size} rows and "
        f"{found.model.batch.max_tokens} tokens; {ROUNDS} runs, the first not counted",
        ("backend", "tokens/s", "by run", "batch mean ms", "batch p99 ms", "to the best (95 %)"),
        cells,
    )


def _ratio(each: Ranked) -> str:
    if each.ratio == 1.0:
        return "the best"
    noise = ", within noise" if each.is_noise else ""
    return f"{each.ratio:.2f} ({each.low:.2f}–{each.high:.2f}){noise}"


def verdict(ranked: Sequence[Ranked]) -> Iterator[str]:
    """Who is fastest and by how much; who may as well be."""
    if not ranked:
        return
    best, others = ranked[0], ranked[1:]
    ties = [each.name for each in others if each.is_noise]
    slower = next((each for each in others if not each.is_noise), None)
    yield f"Fastest for this model at these lengths: {best.name}."
    if ties:
        yield f"Within noise of it: {'; '.join(ties)}."
    if slower is not None:
        times, low, high = 1 / slower.ratio, 1 / slower.high, 1 / slower.low
        yield f"{times:.2f} times as fast ({low:.2f}–{high:.2f}) as {slower.name}."


def _why(skipped: Skipped) -> str:
    return f"Skipped: {skipped.name}: {skipped.why}"


def _write(
    path: Path, table: Table, ranked: Sequence[Ranked], sentences: Sequence[str], found: ChosenModel
) -> None:
    facts = {"Lengths": found.lengths.said, "Machine": this_machine(), "Date": today()}
    parts = [page.header(found.name, "Backends compared.", facts)]
    parts += [page.notice(sentence) for sentence in sentences[:1]]
    parts.append(page.section("Table", [page.table(table), *map(page.words, sentences[1:])]))
    if ranked:
        parts.append(page.section("Picture", [page.figure(_figure(table, ranked))], "figures"))
    try:
        path.write_text(page.page(f"{found.name}: backends", parts), encoding="utf-8")
    except OSError as error:
        raise CannotProfile(f"{path}: cannot be written: {error.strerror}") from None


def _figure(table: Table, ranked: Sequence[Ranked]) -> Figure:
    marks = [
        MarkRow(each.name, [(rate, f"{what} run: {number(rate)} tokens/s") for what, rate in (
            ("slowest", each.least), ("mean", each.tokens_per_s), ("fastest", each.most))])
        for each in ranked
    ]  # fmt: skip
    axis = Axis("tokens a second", linear([each.most for each in ranked]))
    said = "Each backend's slowest run, mean and fastest run."
    legend = ("slowest run", "mean", "fastest run")
    return Figure(
        "Tokens a second", said, rows("Tokens a second", marks, axis), table, legend, True
    )
