"""A bench's report: numbers that can be compared and reproduced.

Medians over alternating repeats, ratios of medians, Markdown tables, and a `BenchReport` that
carries what reproduces it: command, machine, date. Reports are printed and written as JSON, from
which `loadtests/benches/document.py` writes the page. It measures nothing and judges only what it
is given a target for.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

REPORT_DIR = Path("out/bench")
BENCHES = "loadtests.benches"
FIGURES = "figures"  # beside the page

Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Table:
    caption: str
    headers: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class BenchVerdict:
    """Whether a promise held: `claim` in words, `measured` in words."""

    claim: str
    measured: str
    held: bool


@dataclass(frozen=True, slots=True)
class Picture:
    """`svg`: a whole file. `caption`: what it shows, for those who cannot see it too."""

    name: str
    caption: str
    svg: str


@dataclass(frozen=True, slots=True)
class BenchReport:
    """`name` is the bench's module, `raw` whatever the numbers were made from."""

    name: str
    title: str
    tables: tuple[Table, ...]
    verdicts: tuple[BenchVerdict, ...] = ()
    notes: tuple[str, ...] = ()
    command: str = ""
    machine: str = ""
    date: str = ""
    raw: Mapping[str, Any] = field(default_factory=dict)
    pictures: tuple[Picture, ...] = ()

    @property
    def held(self) -> bool:
        return all(verdict.held for verdict in self.verdicts)


def number(value: Cell) -> str:
    """Text as it is; numbers with three significant digits or as whole numbers with separators."""
    if value is None or (isinstance(value, float) and value != value):
        return "–"
    if isinstance(value, str):
        return value
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    if value == 0:
        return "0"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3g}"


def markdown(table: Table) -> str:
    """Numbers are aligned to the right, text to the left."""
    columns = list(zip(*table.rows, strict=True)) or [()] * len(table.headers)
    rules = [
        "---" if any(isinstance(cell, str) for cell in column) else "---:" for column in columns
    ]
    lines = [table.headers, rules, *([number(cell) for cell in row] for row in table.rows)]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table.caption}\n\n{text}" if table.caption else text


def median_of(results: Iterable[Any], value: Callable[[Any], float]) -> float:
    """NaN when there is nothing to take a median of."""
    values = [value(result) for result in results]
    return statistics.median(values) if values else float("nan")


def spread_of(results: Iterable[Any], value: Callable[[Any], float]) -> str:
    """Least to greatest, to show how much repeats differ."""
    values = [value(result) for result in results]
    return f"{number(min(values))}–{number(max(values))}" if values else "–"


def ratio(value: float, base: float) -> float:
    return value / base if base else float("nan")


def at_least(claim: str, measured: float, least: float, unit: str = "") -> BenchVerdict:
    return BenchVerdict(claim, f"{number(measured)}{unit}", measured >= least)


def at_most(claim: str, measured: float, most: float, unit: str = "") -> BenchVerdict:
    return BenchVerdict(claim, f"{number(measured)}{unit}", measured <= most)


def this_machine() -> str:
    """Processor, CPUs this process may use, memory, system, Python."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return (
        f"{_processor()}, {cpus} CPUs, {memory_bytes / 2**30:.0f} GiB, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def this_command(name: str, arguments: Sequence[str] | None = None, package: str = BENCHES) -> str:
    given = sys.argv[1:] if arguments is None else arguments
    return shlex.join(["python", "-m", f"{package}.{name}", *given])


def today() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")


def as_markdown(report: BenchReport) -> str:
    """The report's section: what was measured, on what, by which command."""
    parts = [f"## {report.title}", f"`{report.command}`", f"{report.machine}; {report.date}."]
    parts += [f"![{each.caption}]({FIGURES}/{each.name}.svg)" for each in report.pictures]
    parts += [markdown(table) for table in report.tables]
    if report.verdicts:
        rows = tuple((v.claim, v.measured, "yes" if v.held else "no") for v in report.verdicts)
        parts.append(markdown(Table("", ("promise", "measured", "held"), rows)))
    parts += report.notes
    return "\n\n".join(parts) + "\n"


def write(report: BenchReport, folder: Path = REPORT_DIR) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{report.name}.json"
    path.write_text(json.dumps(asdict(report), indent=1, default=float) + "\n")
    return path


def read(path: Path) -> BenchReport:
    """Raises `KeyError` or `TypeError` when the file is not a report."""
    data = json.loads(path.read_text())
    tables = tuple(
        Table(t["caption"], tuple(t["headers"]), tuple(tuple(row) for row in t["rows"]))
        for t in data.pop("tables")
    )
    verdicts = tuple(BenchVerdict(**verdict) for verdict in data.pop("verdicts"))
    notes = tuple(data.pop("notes"))
    pictures = tuple(Picture(**picture) for picture in data.pop("pictures", ()))
    return BenchReport(tables=tables, verdicts=verdicts, notes=notes, pictures=pictures, **data)


def publish(
    report: BenchReport, arguments: Sequence[str] | None = None, package: str = BENCHES
) -> int:
    """Prints and writes the report, stamped; the exit code says whether its promises held.
    `package`: where the bench's module is."""
    stamped = replace(
        report,
        command=this_command(report.name, arguments, package),
        machine=this_machine(),
        date=today(),
    )
    print(as_markdown(stamped))
    print(f"written to {write(stamped)}", file=sys.stderr)
    return 0 if stamped.held else 1
