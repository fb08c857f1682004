"""Makes self-contained HTML pages: frame, style, tables and figures.

A page fetches no script, font or other address, and its content security policy forbids it. Dark or
light follows the reader's system; print is light. Text is escaped when it is put into the page,
because names and reasons come from files and servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files

from loadtests.report.plots import Figure, swatch
from loadtests.report.table import is_numeric
from loadtests.results.report_table import Table, number

LONG = 40  # characters from which a cell's text is broken into lines
_ALLOWED = "default-src 'none'; style-src 'unsafe-inline'"


def page(title: str, parts: Iterable[str]) -> str:
    style = files("loadtests.report").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_ALLOWED}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


def header(title: str, about: str, facts: Mapping[str, str]) -> str:
    """The page's head. Facts without a value are left out."""
    rows = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items() if value
    )
    words = f'<p class="about">{escape(about)}</p>' if about else ""
    return f"<header><h1>{escape(title)}</h1>{words}<dl>{rows}</dl></header>"


def notice(text: str, *, good: bool | None = None) -> str:
    """A notice at the top. `good` only adds a colour."""
    kind = "" if good is None else " good" if good else " bad"
    return f'<p class="notice{kind}">{escape(text)}</p>'


def words(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def section(title: str, parts: Iterable[str], kind: str = "") -> str:
    inner = "\n".join(parts)
    return f'<section class="{kind}"><h2>{escape(title)}</h2>\n{inner}\n</section>' if inner else ""


def table(found: Table) -> str:
    """A table, which scrolls by itself if it is wider than the screen."""
    numeric = [is_numeric(column) for column in zip(*found.rows, strict=True)]
    numeric = numeric or [False] * len(found.headers)
    heads = "".join(
        f'<th scope="col"{_side(right)}>{escape(text)}</th>'
        for text, right in zip(found.headers, numeric, strict=True)
    )
    body = "".join(f"<tr>{_cells(row, numeric)}</tr>" for row in found.rows)
    caption = f"<caption>{escape(found.caption)}</caption>" if found.caption else ""
    name = escape(found.caption or ", ".join(filter(None, found.headers)))
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{name}"><table>{caption}'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cells(row: Iterable[str | int | float | None], numeric: Iterable[bool]) -> str:
    cells = []
    for place, (value, right) in enumerate(zip(row, numeric, strict=True)):
        kind = 'th scope="row"' if place == 0 else "td"
        text = number(value)
        side = _side(right) or (' class="long"' if len(text) > LONG else "")
        cells.append(f"<{kind}{side}>{escape(text)}</{kind[:2]}>")
    return "".join(cells)


def _side(right: bool) -> str:
    return ' class="number"' if right else ""


def figure(found: Figure) -> str:
    """A picture; its numbers are in a closed section below it."""
    legend = "".join(
        f"<li>{swatch(place, shape=found.shapes)}{escape(name)}</li>"
        for place, name in enumerate(found.legend)
    )
    return (
        f"<figure><figcaption><h3>{escape(found.title)}</h3><p>{escape(found.says)}</p>"
        + (f'<ul class="legend">{legend}</ul>' if legend else "")
        + f"</figcaption>{found.svg}{folded('The same as a table', table(found.table))}</figure>"
    )


def folded(title: str, inner: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{inner}</details>"


def code(text: str) -> str:
    return f'<pre tabindex="0">{escape(text)}</pre>'
