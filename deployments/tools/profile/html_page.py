"""A profile as one HTML file that needs nothing but itself: tables, and pictures of them.

The pictures show throughput and latency by batch, one line a length, from the medians that the cost
model was fitted to, and where the time of a batch goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from deployments.tools.profile.findings import Findings
from deployments.tools.profile.tables import stages, tables
from loadtests.report import page
from loadtests.report.plots import Axis, Figure, Series, bars, lines
from loadtests.report.scale import linear, logarithmic
from loadtests.results.report_table import Table, number, this_machine, today

MOST = 8


def write(found: Findings, notes: Iterable[str], path: Path) -> None:
    """Raises OSError."""
    path.write_text(html(found, notes), encoding="utf-8")


def html(found: Findings, notes: Iterable[str]) -> str:
    name = found.subject.name
    return page.page(f"{name}: profile", _parts(found, list(notes)))


def _parts(found: Findings, notes: list[str]) -> Iterator[str]:
    subject, identity = found.subject, found.subject.identity
    facts = {
        "Backend": f"{identity.runtime} {identity.version}".strip(),
        "Precision": identity.precision,
        "Threads": str(identity.threads),
        "Artifact": identity.artifact[:12],
        "Lengths": subject.lengths.said,
        "Machine": this_machine(),
        "Date": today(),
    }
    yield page.header(subject.name, "What it costs on this machine.", facts)
    if found.stopped:
        yield page.notice("Stopped before the end; what is here was measured.", good=False)
    yield page.section("Tables", [page.table(each) for each in tables(found)])
    yield page.section("Pictures", [page.figure(each) for each in figures(found)], "figures")
    yield page.section("For serving", [page.words(note) for note in notes])


def figures(found: Findings) -> Iterator[Figure]:
    if found.fitted is None:
        return
    yield _by_size(found, "Throughput by batch", "rows a second", lambda rows, s: rows / s)
    yield _by_size(found, "Latency by batch", "ms", lambda rows, s: s * 1e3, log=True)
    yield _stages(found)


def _by_size(
    found: Findings, title: str, unit: str, value: Callable[[int, float], float], *,
    log: bool = False,
) -> Figure:  # fmt: skip
    assert found.fitted is not None
    curves: dict[int, list[tuple[float, float]]] = {}
    for rows, width, seconds in found.fitted.points:
        curves.setdefault(width, []).append((float(rows), value(rows, seconds)))
    chosen = [width for width, points in sorted(curves.items()) if len(points) > 1][:MOST]
    values = [y for width in chosen for _, y in curves[width]]
    sizes = [x for width in chosen for x, _ in curves[width]]
    series = [
        Series(f"length {width}", curves[width], lambda x, y: f"{x:g} rows: {number(y)} {unit}")
        for width in chosen
    ]
    mark = (float(found.target), "target") if found.target else None
    svg = lines(
        title, series,
        Axis("rows in a batch", logarithmic(sizes), mark=mark),
        Axis(unit, logarithmic(values) if log else linear(values)),
    )  # fmt: skip
    numbers = tuple((width, int(x), y) for width in chosen for x, y in curves[width])
    table = Table("", ("length", "rows", unit), numbers)
    said = f"Median {unit}, one line a length; both axes logarithmic." if log else (
        f"Median {unit}, one line a length."
    )  # fmt: skip
    return Figure(title, said, svg, table, tuple(each.name for each in series))


def _stages(found: Findings) -> Figure:
    table = stages(found)
    heights = [(str(row[0]), float(row[-1])) for row in table.rows[:-1] if row[-1] is not None]
    points = [(name, ms, f"{name}: {number(ms)} ms") for name, ms in heights]
    svg = bars(table.caption, points, "", Axis("ms", linear([ms for _, ms in heights])))
    return Figure("Where the time goes", f"{table.caption}; {table.headers[-1]}.", svg, table)
