"""Prints the result of `headrace verify`: a table in the terminal, JSON or Markdown in a file.

All three have the same rows, one for each output and length bucket, and the same verdict. The
verdict is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from deployments.replica.verify.agreement import MEASURES, Measured
from deployments.replica.verify.verification import VerificationReport, as_json

HEADINGS = ("output", "tokens", "rows", *(name.replace("_", " ") for name in MEASURES))


def show(report: VerificationReport, console: Console | None = None) -> None:
    """Prints a table for each output, and below them the verdict."""
    target = console or Console()
    target.print(Text(title(report), style="bold"))
    for output in dict.fromkeys(found.output for found in report.verdict.measured):
        target.print(_table(report, output))
    for line in verdict_lines(report):
        # Not wrapped here, so that it can be copied whole.
        style = "green" if report.verdict.accepted else "red"
        target.print(Text(line, style=style), soft_wrap=True)


def _table(report: VerificationReport, output: str) -> Table:
    table = Table(title=output, title_justify="left", box=None, pad_edge=False)
    for place, heading in enumerate(HEADINGS[1:]):
        table.add_column(heading, justify="right" if place else "left", no_wrap=True)
    for found in report.verdict.measured:
        if found.output != output:
            continue
        bad = {b.measure for b in report.verdict.breaches if _is_of(b, found)}
        cells = [Text(cell) for cell in _cells(found)[1:]]
        for place, measure in enumerate(MEASURES, 2):
            cells[place].stylize("bold red" if measure in bad else "")
        table.add_row(*cells)
    return table


def title(report: VerificationReport) -> str:
    verdict = report.verdict
    given = f", {report.given} of them given" if report.given else ""
    return (
        f"{report.model}: {report.candidate} against {report.reference}, "
        f"{verdict.samples} samples{given}"
    )


def verdict_lines(report: VerificationReport) -> list[str]:
    """The verdict, then a sentence for each tolerance that does not hold."""
    bounds = ", ".join(f"{name} {bound:g}" for name, bound in report.tolerances.stated().items())
    if report.verdict.accepted:
        return [f"accepted: within {bounds}"]
    breaches = [f"  {breach.sentence()}" for breach in report.verdict.breaches]
    return [f"not accepted: {len(breaches)} beyond what is allowed ({bounds})", *breaches]


def as_markdown(report: VerificationReport) -> str:
    rows = [_line(HEADINGS), _line(["---"] * len(HEADINGS))]
    rows += [_line(_cells(found)) for found in report.verdict.measured]
    first, *others = verdict_lines(report)
    sentences = [f"- {line.strip()}" for line in others]
    head = [f"# {title(report)}", "", f"**{first}**", ""]
    return "\n".join([*head, *sentences, *([""] if sentences else []), *rows, ""])


def write(report: VerificationReport, file: Path) -> None:
    """Writes Markdown if the file's name ends in `.md`, else JSON."""
    text = as_markdown(report) if file.suffix == ".md" else as_json(report) + "\n"
    file.write_text(text, encoding="utf-8")


def _is_of(breach: Any, found: Measured) -> bool:
    return (breach.output, breach.interval) == (found.output, found.interval)


def _cells(found: Measured) -> list[str]:
    numbers = [_shown(found.of(measure)) for measure in MEASURES]
    return [found.output, str(found.interval), str(found.rows), *numbers]


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.6f}" if 0.5 <= value <= 1 else f"{value:.3g}"


def _line(cells: Any) -> str:
    return "| " + " | ".join(_escaped(cells)) + " |"


def _escaped(cells: Any) -> Iterator[str]:
    return (cell.replace("|", "\\|") for cell in cells)
