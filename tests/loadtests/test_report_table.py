"""Do reports say what was measured, survive being stored, and fill the page with nothing else?"""

import pytest

from loadtests.benches.document import sections_of, updated
from loadtests.results.report_table import (
    BenchReport,
    Table,
    at_least,
    at_most,
    median_of,
    number,
    publish,
    read,
    spread_of,
    write,
)

TABLE = Table("Speed", ("system", "req/s"), (("a", 1234.5), ("b", None)))


def report(name: str = "overhead", **more) -> BenchReport:
    return BenchReport(name, f"About {name}", (TABLE,), date="2026-01-02", command="x", **more)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.01234, "0.0123"),
        (1.0, "1.00"),
        (99.994, "99.99"),
        (100.0, "100"),
        (12345, "12,345"),
        (float("nan"), "–"),
        (None, "–"),
        ("a–b", "a–b"),
    ],
)
def test_number_is_short_and_readable(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("values", "median", "spread"),
    [([], "–", "–"), ([3.0], "3.00", "3.00–3.00"), ([1.0, 9.0, 2.0], "2.00", "1.00–9.00")],
)
def test_repeats_give_their_median_and_spread(values, median, spread):
    assert number(median_of(values, float)) == median
    assert spread_of(values, float) == spread


@pytest.mark.parametrize(("measured", "held"), [(11.99, False), (12.0, True), (12.01, True)])
def test_least_holds_from_its_value_on(measured, held):
    assert at_least("", measured, 12.0).held is held


@pytest.mark.parametrize("verdict", [at_least, at_most])
def test_nothing_measured_holds_no_promise(verdict):
    assert not verdict("", float("nan"), 1.0).held


def test_report_survives_being_written(tmp_path):
    stored = report(verdicts=(at_most("c", 1.0, 2.0, " ms"),), notes=("n",), raw={"a": [1]})
    assert read(write(stored, tmp_path)) == stored


def test_published_report_is_stamped_and_fails_with_a_broken_promise(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("loadtests.results.report_table.write", lambda stamped: tmp_path)
    kept, broken = at_most("kept", 1.0, 2.0), at_most("broken", 3.0, 2.0)
    assert publish(report(verdicts=(kept,)), ["--repeats", "2"]) == 0
    assert publish(report(verdicts=(kept, broken)), []) == 1
    shown = capsys.readouterr().out
    assert "`python -m loadtests.benches.overhead --repeats 2`" in shown
    assert "| broken | 3.00 | no |" in shown
    assert "CPUs" in shown


def test_page_has_a_section_for_each_report_in_the_fixed_order():
    page = updated("", [report("policies"), report("overload"), report("zebra")])
    assert list(sections_of(page)) == ["overload", "policies", "zebra"]


def test_figure_without_a_new_report_keeps_its_section():
    old = updated("", [report("soak", notes=("old",)), report("answers", notes=("old",))])
    new = updated(old, [report("answers", notes=("new",))])
    assert "old" in sections_of(new)["soak"]
    assert "old" not in sections_of(new)["answers"]
    assert updated(new, []) == new
