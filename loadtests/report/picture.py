"""A plot as a file of its own: SVG that a page can show as an image, dark and light.

Title, plot and legend below each other, with the report page's own colours and dashes in it. No
script, nothing from elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files

from loadtests.report.plots import HEIGHT, LEFT, WIDTH, Axis, Series, lines, style

LINE = 18
TITLE_HEIGHT = 30
COLUMNS = 2
OWN = """
svg { font-family: system-ui, sans-serif; }
.ground { fill: var(--back); }
.title { fill: var(--text); font-size: 13px; font-weight: 600; }
.name { fill: var(--text); font-size: 12px; }
"""


def picture(title: str, series: Sequence[Series], x: Axis, y: Axis) -> str:
    """Lines over a legend; `y`'s title stands above the plot, behind `title`."""
    rows = -(-len(series) // COLUMNS)
    height = TITLE_HEIGHT + HEIGHT + LINE * rows + 8
    css = files("loadtests.report").joinpath("page.css").read_text() + OWN
    plot = lines(title, series, x, y)
    placed = plot.replace("<svg ", f'<svg y="{TITLE_HEIGHT}" width="{WIDTH}" height="{HEIGHT}" ', 1)
    legend = "".join(_entry(place, each.name) for place, each in enumerate(series))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}">\n<style>{css}</style>\n'
        f'<rect class="ground" width="{WIDTH}" height="{height}"/>\n'
        f'<text class="title" x="12" y="18">{escape(title)}</text>\n'
        f'<text class="name" x="12" y="{TITLE_HEIGHT + 12}">{escape(y.title)}</text>\n'
        f"{placed}\n{legend}</svg>\n"
    )


def _entry(place: int, name: str) -> str:
    row, column = divmod(place, COLUMNS)
    left = LEFT + column * (WIDTH - LEFT) / COLUMNS
    middle = TITLE_HEIGHT + HEIGHT + LINE * row + LINE / 2
    return (
        f'<path class="line {style(place)}" d="M{left:.0f} {middle:.0f}h28"/>'
        f'<text class="name" x="{left + 36:.0f}" y="{middle + 4:.0f}">{escape(name)}</text>\n'
    )
