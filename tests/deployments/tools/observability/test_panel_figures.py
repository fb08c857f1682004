"""Panels as pictures: gaps stay gaps, what is not drawn is said, numbers have their units."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import pytest

from deployments.tools.observability import panel_figures
from deployments.tools.observability.dashboard_page import html, svg
from deployments.tools.observability.panel_figures import AskedPanel, ask, figure
from deployments.tools.observability.prometheus_api import Answer, Span
from deployments.tools.observability.types import Dashboard, Panel, Query, Row

NAN = math.nan
SPAN = Span(1000.0, 1020.0, 5.0)
PANEL = Panel("Waits", "How long.", "s", (Query('up{x=~"$model"}', "{{model}}, {{kind}}"),))


def asked(**found: Sequence[float]) -> AskedPanel:
    return AskedPanel(PANEL, SPAN.moments, found)


def test_a_span_has_both_ends() -> None:
    assert SPAN.moments == [1000, 1005, 1010, 1015, 1020]


def test_a_line_is_broken_where_there_is_no_value() -> None:
    drawn = figure(asked(a=[1.0, 2.0, NAN, 3.0, 4.0], b=[1.0] * 5))
    assert len(re.findall("<polyline", drawn.svg)) == 3
    assert len(re.findall('<polyline class="line s0"', drawn.svg)) == 2
    assert [row[1] for row in drawn.table.rows] == [1.0, 2.0, None, 3.0, 4.0]


def test_a_lone_value_is_a_dot() -> None:
    (points,) = re.findall('points="([^"]*)"', figure(asked(a=[NAN, NAN, 1.0, NAN, NAN])).svg)
    (left, y), (right, other) = (point.split(",") for point in points.split())
    assert y == other
    assert float(right) - float(left) == 2.0


def test_as_many_lines_are_drawn_as_can_be_told_apart_the_highest_ones() -> None:
    many = asked(**{f"n{number}": [float(number)] * 5 for number in range(10)})
    assert many.drawn == [f"n{number}" for number in range(2, 10)]
    assert figure(many).says == "How long. 2 lower lines are not drawn."
    assert len(figure(many).table.headers) == 11


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.0, "0"), (5e-6, "5 µs"), (0.0125, "12.5 ms"), (1.5, "1.5 s"), (90, "90 s")],
)
def test_seconds_are_written_in_their_unit(value: float, said: str) -> None:
    assert panel_figures._seconds(value) == said


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Answers in Prometheus's place; returns the queries that were asked."""

    def answer(*answers: Answer) -> list[str]:
        seen: list[str] = []

        def query_range(url: str, query: str, span: Span) -> list[Answer]:
            seen.append(query)
            return list(answers)

        monkeypatch.setattr(panel_figures, "query_range", query_range)
        return seen

    return answer


def test_lines_are_named_by_their_labels_and_sorted_by_their_numbers(answering) -> None:
    queries = answering(
        *(Answer({"model": "m", "kind": kind}, [1.0] * 5) for kind in ("to 128", "to 32")),
        Answer({"model": "m", "kind": "to 32", "gateway": "b"}, [2.0] * 5),
        Answer({"model": "gone"}, [NAN] * 5),
    )
    found = ask("http://x", PANEL, SPAN, "30s")
    assert list(found.found) == ["m, to 32", "m, to 32 #2", "m, to 128"]
    assert queries == ['up{x=~".*"}']


def test_an_empty_panel_is_listed_with_the_reason_and_not_drawn() -> None:
    quiet = Panel("Quiet", "Nothing.", "short", (), may_be_empty="nobody calls")
    board = Dashboard("b", "Board", "Says.", (), (Row("All", (PANEL, quiet)),))
    both = [asked(a=[1.0] * 5), AskedPanel(quiet, SPAN.moments, {})]
    text = html(board, both, {})
    assert text.count("<figure>") == 1
    assert "Quiet is empty. The usual reason: nobody calls." in text
    assert svg("Board", both).count('class="title"') == 1
