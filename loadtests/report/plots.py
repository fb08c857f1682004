"""Draws lines, bars and marks as SVG without scripts: inline in a page, or as a file.

No library is used, so that a report opens anywhere, follows the reader's dark or light mode, and
shows a point's value under the pointer, without another package. Colours are CSS variables of the
page, so dark and light need only one picture. Each series also has a dash pattern or a shape of its
own. All text is escaped here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from itertools import groupby, pairwise
from math import isnan

from loadtests.report.scale import Scale, label
from loadtests.results.report_table import Table

WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 24, 42
COLOURS = 8
MAX_HINTS = 48
ROW = 46
LETTER = 7.0
MAX_NAMES = 8
LINE = 18
TITLE_HEIGHT = 30
COLUMNS = 2
OWN = """
svg { font-family: system-ui, sans-serif; }
.ground { fill: var(--back); }
.title { fill: var(--text); font-size: 13px; font-weight: 600; }
.name { fill: var(--text); font-size: 12px; }
"""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """A line. It is broken where y is NaN."""

    name: str
    points: Sequence[Point]
    # The text that a point shows under the pointer.
    hint: Callable[[float, float], str] = lambda x, y: f"{label(x)}: {label(y)}"


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a picture."""

    title: str
    scale: Scale
    text: Callable[[float], str] = label  # of a tick
    mark: tuple[float, str] | None = None  # a value at which a line is drawn, and its name


@dataclass(frozen=True, slots=True)
class MarkRow:
    """A named row of marks."""

    name: str
    marks: Sequence[tuple[float, str]]  # value and text, in the order of the legend


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture with its explanation and its numbers."""

    title: str
    says: str  # the explanation
    svg: str
    table: Table  # the numbers
    legend: tuple[str, ...] = ()  # names of the series or marks, in their order
    shapes: bool = False  # the legend has shapes of marks, not lines


def lines(title: str, series: Sequence[Series], x: Axis, y: Axis) -> str:
    """A diagram of lines."""
    parts = [_upright(y), _across(x)]
    for number, each in enumerate(series):
        for run in _unbroken(each.points):
            places = [(_x(x.scale, px), _y(y.scale, py)) for px, py in run]
            if len(places) == 1:  # a single point is drawn as a dot
                places = [(places[0][0] - 1, places[0][1]), (places[0][0] + 1, places[0][1])]
            path = " ".join(f"{px:.1f},{py:.1f}" for px, py in thinned(places))
            parts.append(f'<polyline class="line {style(number)}" points="{path}"/>')
            parts += [_hint(each, point, x.scale, y.scale, number) for point in _hinted(run)]
    return _svg(title, HEIGHT, parts)


def bars(title: str, points: Sequence[tuple[str, float, str]], axis: str, y: Axis) -> str:
    """A diagram of vertical bars. `points`: name, height and text of each bar."""
    room = (WIDTH - LEFT - RIGHT) / max(len(points), 1)
    every = -(-len(points) // MAX_NAMES)
    letters = max(3, int(room * every / LETTER))
    parts = [_upright(y), _foot(axis, HEIGHT)]
    for place, (name, value, said) in enumerate(points):
        left, top = LEFT + room * place, _y(y.scale, value)
        parts.append(
            f'<rect class="bar" x="{left + room * 0.12:.1f}" y="{top:.1f}" '
            f'width="{room * 0.76:.1f}" height="{HEIGHT - BOTTOM - top:.1f}">{_title(said)}</rect>'
        )
        if place % every == 0:
            short = cut(name, letters)
            at = min(left + room / 2, WIDTH - len(short) * LETTER / 2)
            parts.append(_text(at, HEIGHT - BOTTOM + 15, short, "middle", name))
    return _svg(title, HEIGHT, parts)


def rows(title: str, found: Sequence[MarkRow], x: Axis) -> str:
    """A diagram with a row for each name, whose marks are joined by a line."""
    height = TOP + BOTTOM + ROW * len(found)
    parts = [_across(x, height)]
    for place, row in enumerate(found):
        y = TOP + ROW * (place + 0.66)
        across = [_x(x.scale, value) for value, _ in row.marks]
        parts.append(_text(LEFT + 2, y - 14, cut(row.name, 60), "start", row.name, "row"))
        parts.append(_line(min(across), y, max(across), y, "join"))
        for number, (value, said) in enumerate(row.marks):
            parts.append(_shape(number, _x(x.scale, value), y, f"{row.name}, {said}"))
    return _svg(title, height, parts)


def picture(title: str, series: Sequence[Series], x: Axis, y: Axis) -> str:
    """A diagram of lines with a legend below; the title of `y` follows `title` above the plot."""
    plot = lines(title, series, x, y)
    inner = _titled(title, y.title, plot, [each.name for each in series])
    return _file(title, WIDTH, _titled_height(len(series)), inner)


def _titled(title: str, says: str, plot: str, names: Sequence[str]) -> str:
    placed = plot.replace("<svg ", f'<svg y="{TITLE_HEIGHT}" width="{WIDTH}" height="{HEIGHT}" ', 1)
    legend = "".join(_entry(place, name) for place, name in enumerate(names))
    return (
        f'<text class="title" x="12" y="18">{escape(title)}</text>\n'
        f'<text class="name" x="12" y="{TITLE_HEIGHT + 12}">{escape(says)}</text>\n'
        f"{placed}\n{legend}"
    )


def _titled_height(series: int) -> int:
    return TITLE_HEIGHT + HEIGHT + LINE * -(-series // COLUMNS) + 8


def _file(title: str, width: int, height: int, inner: str) -> str:
    css = files("loadtests.report").joinpath("page.css").read_text() + OWN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(title)}">\n<style>{css}</style>\n'
        f'<rect class="ground" width="{width}" height="{height}"/>\n{inner}</svg>\n'
    )


def _entry(place: int, name: str) -> str:
    row, column = divmod(place, COLUMNS)
    left = LEFT + column * (WIDTH - LEFT) / COLUMNS
    middle = TITLE_HEIGHT + HEIGHT + LINE * row + LINE / 2
    return (
        f'<path class="line {style(place)}" d="M{left:.0f} {middle:.0f}h28"/>'
        f'<text class="name" x="{left + 36:.0f}" y="{middle + 4:.0f}">{escape(name)}</text>\n'
    )


def _unbroken(points: Sequence[Point]) -> Iterator[list[Point]]:
    """The parts of a line between points without a value."""
    for there, run in groupby(points, lambda point: not isnan(point[1])):
        if there:
            yield list(run)


def swatch(number: int, *, shape: bool = False) -> str:
    """A series' symbol in a legend."""
    inner = (
        _shape(number, 14, 7, "") if shape
        else f'<path class="line {style(number)}" d="M1 7H27"/>'
    )  # fmt: skip
    return f'<svg class="swatch" viewBox="0 0 28 14" aria-hidden="true">{inner}</svg>'


def style(number: int) -> str:
    return f"s{number % COLOURS}"


def thinned(places: Sequence[Point]) -> list[Point]:
    """The line without points that the eye cannot tell from their neighbours; ends are kept."""
    if len(places) < 3:
        return list(places)
    kept = [places[0]]
    for before, after in pairwise(places[1:]):
        last = kept[-1]
        if abs(before[0] - last[0]) + abs(before[1] - last[1]) >= 0.7 or after == places[-1]:
            kept.append(before)
    return [*kept, places[-1]]


# ---- parts ---------------------------------------------------------------------------------------


def _svg(title: str, height: float, parts: Iterable[str]) -> str:
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )


def _across(axis: Axis, height: float = HEIGHT) -> str:
    """The x axis: line, ticks, title and mark."""
    bottom, parts = height - BOTTOM, []
    for tick in axis.scale.ticks():
        at = _x(axis.scale, tick)
        parts.append(_line(at, TOP, at, bottom, "grid"))
        parts.append(_text(at, bottom + 15, axis.text(tick), "middle"))
    return "".join(parts) + _foot(axis.title, height) + _marked(axis, bottom)


def _upright(axis: Axis) -> str:
    parts = []
    for tick in axis.scale.ticks():
        at = _y(axis.scale, tick)
        parts.append(_line(LEFT, at, WIDTH - RIGHT, at, "grid"))
        parts.append(_text(LEFT - 6, at + 4, axis.text(tick), "end"))
    return "".join(parts)


def _foot(title: str, height: float) -> str:
    line = _line(LEFT, height - BOTTOM, WIDTH - RIGHT, height - BOTTOM, "base")
    return line + _text((LEFT + WIDTH - RIGHT) / 2, height - 8, title, "middle")


def _marked(axis: Axis, bottom: float) -> str:
    if axis.mark is None or not axis.scale.low <= axis.mark[0] <= axis.scale.high:
        return ""
    at, place = _x(axis.scale, axis.mark[0]), axis.scale.at(axis.mark[0])
    anchor = "start" if place < 0.15 else "end" if place > 0.85 else "middle"
    name = _text(at, TOP - 8, axis.mark[1], anchor)
    return _line(at, TOP - 4, at, bottom, "mark") + name


def _hint(series: Series, point: Point, x: Scale, y: Scale, number: int) -> str:
    said = f"{series.name}, {series.hint(*point)}"
    return (
        f'<circle class="hint {style(number)}" cx="{_x(x, point[0]):.1f}" '
        f'cy="{_y(y, point[1]):.1f}" r="6">{_title(said)}</circle>'
    )


def _hinted(points: Sequence[Point]) -> Sequence[Point]:
    return points[:: -(-len(points) // MAX_HINTS) or 1]


def _shape(number: int, x: float, y: float, said: str) -> str:
    """A mark: circle, diamond, square or triangle, in turn."""
    paths = (
        f"M{x - 5:.1f} {y:.1f}a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z",
        f"M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z",
        f"M{x - 4.5:.1f} {y - 4.5:.1f}h9v9h-9z",
        f"M{x:.1f} {y - 6:.1f}l6 11h-12z",
    )
    return f'<path class="sign {style(number)}" d="{paths[number % 4]}">{_title(said)}</path>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<path class="{kind}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str, said: str = "", kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    inner = escape(text) + (_title(said) if said and said != text else "")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{inner}</text>'


def _title(said: str) -> str:
    return f"<title>{escape(said)}</title>" if said else ""


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _x(scale: Scale, value: float) -> float:
    return LEFT + scale.at(value) * (WIDTH - LEFT - RIGHT)


def _y(scale: Scale, value: float) -> float:
    return HEIGHT - BOTTOM - scale.at(value) * (HEIGHT - BOTTOM - TOP)
