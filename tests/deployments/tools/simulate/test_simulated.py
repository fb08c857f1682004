"""Small charts of a run: do their bars say what the values do?"""

import io

import pytest
from rich.console import Console

from deployments.tools.console.charts import chart
from deployments.tools.console.progress_bar import ShareBar, SimulatedTimeBar


@pytest.mark.parametrize(
    ("values", "top", "bars"),
    [
        ([], 1.0, ""),
        ([0.0, 0.5, 1.0], 1.0, " ▄█"),
        ([3.0], 0.0, ""),
        ([2.0], 1.0, "█"),
    ],
)
def test_bars_are_as_high_as_their_values(values, top, bars):
    assert chart(values, top) == bars


def test_long_runs_are_drawn_as_means():
    assert chart([0.0] * 500 + [1.0] * 500, 1.0, width=4) == "  ██"


def test_progress_says_nothing_where_there_is_no_terminal():
    out = io.StringIO()
    with SimulatedTimeBar(10.0, Console(file=out)) as advance:
        advance(5.0, 1000)
    with ShareBar("model", Console(file=out)) as advance:
        advance("warming", 0.5)
    assert out.getvalue().strip() == ""
