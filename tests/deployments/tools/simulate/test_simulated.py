"""Small charts of a run: do their bars say what the values do?"""

import pytest

from deployments.tools.console.progress_bar import shown_progress
from deployments.tools.simulate.command import chart


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


def test_progress_says_nothing_where_there_is_no_terminal(capsys):
    with shown_progress("model") as note:
        note("warming", 0.5)
    assert capsys.readouterr() == ("", "")
