"""`headrace profile --compare`: the table, and one sentence on who is fastest and by how much."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random

from rich.console import Console

from deployments.tools.console.profiling import Advance
from deployments.tools.profile.command import Wanted, must_be_writable
from deployments.tools.profile.compare.candidates import Skipped, candidates
from deployments.tools.profile.compare.contest import ROUNDS, ROWS, Contest
from deployments.tools.profile.compare.ranking import Ranked, ranking
from deployments.tools.profile.errors import AskedWrongly, CannotProfile
from deployments.tools.profile.subject import Asked, Chosen, chosen
from loadtests.report import page
from loadtests.report.plots import Axis, Figure, MarkRow, rows
from loadtests.report.scale import linear
from loadtests.report.table import aligned
from loadtests.results.report_table import Table, number, this_machine, today
from runtimes.threads import allowed_cpus

STOPPED = 130


def compare(asked: Asked, names: Sequence[str], asked_for: Wanted) -> int:
    """The exit code. Raises as `profile` does; nothing is stored."""
    if asked_for.trace is not None:
        raise AskedWrongly("--trace is of one backend; leave --compare out")
    must_be_writable(asked_for)
    found = chosen(asked)
    if found.model.task == "generate":
        raise AskedWrongly(f"--compare: {found.name} generates; other backends do not")
    wanted, skipped = candidates(names, found.model, allowed_cpus())
    with Advance(found.name, Console(stderr=True)) as advance:
        contest = Contest(found, asked.seed, advance)
        contest.hold(wanted, asked.seconds)
    skipped += contest.skipped
    if not contest.runs and not contest.stopped:
        raise CannotProfile("\n".join(["nothing could be compared:", *map(_why, skipped)]))
    ranked = ranking(contest.runs, Random(asked.seed)) if contest.runs else []
    sentences = [*verdict(ranked), *map(_why, skipped)]
    if contest.stopped:
        sentences.append("Stopped before the end.")
    table = table_of(ranked, found)
    if asked_for.as_json:
        print(json.dumps({"model": found.name, "lengths": found.lengths.said,
                          "ranking": [asdict(each) | {"within_noise": each.is_noise}
                                      for each in ranked],
                          "skipped": [asdict(each) for each in skipped],
                          "stopped": contest.stopped}))  # fmt: skip
    else:
        lines = [table.caption, "", *aligned(table), ""] if ranked else []
        print("\n".join([*lines, *sentences]))
    if asked_for.html is not None:
        _write(asked_for.html, table, ranked, sentences, found)
    return STOPPED if contest.stopped else 0


def table_of(ranked: Sequence[Ranked], found: Chosen) -> Table:
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
    path: Path, table: Table, ranked: Sequence[Ranked], sentences: Sequence[str], found: Chosen
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
