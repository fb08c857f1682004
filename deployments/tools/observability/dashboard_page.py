"""Draws a dashboard from a Prometheus's data, as a page or a picture, without Grafana.

`python -m deployments.tools.observability.dashboard_page war-room.html --url http://HOST:9090`.
A page (`.html`) has all panels with their numbers, and a sentence for each empty panel that says
why it is empty. A picture (`.svg`) has the panels of `--panel` (or all) that are not empty.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from deployments.tools.observability.grafana import DASHBOARDS
from deployments.tools.observability.panel_figures import AskedPanel, ask_all, figure, sheet_panel
from deployments.tools.observability.prometheus_api import QueryFailed, Span
from deployments.tools.observability.types import Dashboard
from loadtests.report import page, plots

_BY_NAME = {dashboard.name: dashboard for dashboard in DASHBOARDS}
_MIN_STEP_S, _POINTS = 5.0, 240
_STEPS_A_WINDOW = 4  # so that each rate is computed from several scrapes


def span_of(minutes: float, end_s: float) -> Span:
    """The last `minutes` before `end_s` (Unix seconds), in about `_POINTS` steps or fewer."""
    step_s = max(_MIN_STEP_S, round(minutes * 60 / _POINTS))
    return Span(end_s - minutes * 60, end_s, step_s)


def window_of(span: Span) -> str:
    """The window over which rates are taken, as PromQL has it (`20s`)."""
    return f"{int(span.step_s * _STEPS_A_WINDOW)}s"


def html(dashboard: Dashboard, asked: Sequence[AskedPanel], facts: dict[str, str]) -> str:
    """The page. `facts`: shown below the title, by name."""
    return page.page(dashboard.title, _parts(dashboard, asked, facts))


def svg(title: str, asked: Sequence[AskedPanel], columns: int = 3) -> str:
    """The picture, without the panels that are empty."""
    return plots.sheet(title, [sheet_panel(each) for each in asked if not each.is_empty], columns)


def _parts(
    dashboard: Dashboard, asked: Sequence[AskedPanel], facts: dict[str, str]
) -> Iterator[str]:
    yield page.header(dashboard.title, dashboard.says, facts)
    by_title = {each.panel.title: each for each in asked}
    for row in dashboard.rows:
        own = [by_title[panel.title] for panel in row.panels]
        yield page.section(
            row.title, [page.figure(figure(a)) for a in own if not a.is_empty], "figures"
        )
    for each in asked:
        if each.is_empty:
            why = each.panel.may_be_empty or "nothing has been scraped yet"
            yield page.words(f"{each.panel.title} is empty. The usual reason: {why}.")


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--url", default="http://127.0.0.1:9090", show_default=True, help="The Prometheus.")
@click.option(
    "--dashboard",
    "name",
    type=click.Choice(list(_BY_NAME)),
    default=DASHBOARDS[0].name,
    show_default=True,
)
@click.option("--minutes", type=click.FloatRange(0.1, 10_000), default=30.0, show_default=True)
@click.option("--panel", "titles", multiple=True, help="Only this panel, in a picture; repeatable.")
def main(path: Path, url: str, name: str, minutes: float, titles: tuple[str, ...]) -> None:
    """Draw a dashboard's last MINUTES to PATH, .html or .svg."""
    if path.suffix not in (".html", ".svg"):
        raise click.BadParameter("must end in .html or .svg", param_hint="PATH")
    dashboard, span = _BY_NAME[name], span_of(minutes, time.time())
    try:
        asked = list(ask_all(url, dashboard, span, window_of(span)))
    except QueryFailed as error:
        raise click.ClickException(str(error)) from error
    if path.suffix == ".html":
        text = html(dashboard, asked, {"Prometheus": url, "Until": time.strftime("%F %T")})
    else:
        text = svg(dashboard.title, [a for a in asked if not titles or a.panel.title in titles])
    path.write_text(text, encoding="utf-8")
    click.echo(path)


if __name__ == "__main__":
    sys.exit(main())
