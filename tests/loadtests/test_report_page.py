"""Does the page hold what the record says, stand alone, and take nothing it is given for markup?"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from loadtests.report.figures import MAX_SERIES, MAX_SPANS, curve, figures, spans
from loadtests.report.html import html, write
from loadtests.report.scale import MAX_TICKS, Scale, linear, logarithmic
from loadtests.report.table import lines
from loadtests.results.latency_histogram import LatencyHistogram
from loadtests.results.record import Client, Record, Second, TenantLengthStats

RUDE = "<script>alert(1)</script>\"'&|\n"
_VOID = {"meta"}


class Nested(HTMLParser):
    """Elements close in the order in which they open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(text: str) -> Nested:
    found = Nested()
    found.feed(text)
    assert not found.open
    return found


def test_page_is_one_file_that_fetches_nothing(make_record, tmp_path: Path) -> None:
    write(make_record(streams=True), tmp_path / "runs" / "a.html")
    text = (tmp_path / "runs" / "a.html").read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|img|iframe)|src=|@import|url\(", text)
    assert parsed(text).seen >= {"h1", "table", "figure", "svg", "polyline"}


def test_page_says_everything_that_was_measured(make_record) -> None:
    text = parsed(html(make_record(streams=True))).text
    for title in (
        "Latency by tenant", "Latency by length", "Percentiles by length", "Rate", "Under way",
        "Percentiles over time", "Batch sizes", "Not answered, by reason", "First token",
        "The generator's lag", "two cores, 8 GiB", "up to 512",
    ):  # fmt: skip
        assert title in text
    assert "30 % of what was run" in text


def test_what_was_not_measured_is_not_shown(make_record) -> None:
    plain = make_record(batch_sizes={}, time_series=[], client=Client())
    titles = [figure.title for figure in figures(plain)]
    assert not {"Batch sizes", "Rate", "First token", "The generator's lag"} & set(titles)


def test_text_from_outside_is_never_markup(make_record) -> None:
    cell = TenantLengthStats(offered=2, in_slo=1, reasons={RUDE: 1})
    cell.latency.add(0.01)
    record = make_record(
        name=RUDE, about=RUDE, url=RUDE, machine=RUDE, versions={RUDE: RUDE}, command=RUDE,
        scenario={RUDE: RUDE}, cells={RUDE: {32: cell}}, checks=[(RUDE, RUDE, False)],
        client=Client(behind=RUDE),
    )  # fmt: skip
    found = parsed(html(record))
    assert "script" not in found.seen
    assert "<script>alert(1)</script>" in found.text


def test_a_run_that_does_not_count_says_so_first(make_record) -> None:
    record = make_record(client=Client(behind="the generator was 40 ms late at p99"))
    assert "does not count: the generator was 40 ms late" in lines(record)[2]
    assert 'class="notice bad">This run does not count' in html(record)


@pytest.mark.parametrize(
    "record",
    [
        Record(name="nothing"),
        Record(
            name="refused", seconds=1.0, edges=(8,), cells={"a": {8: TenantLengthStats(offered=3)}}
        ),
        Record(name="silent", time_series=[Second(), Second()], edges=(8,), cells={"a": {}}),
    ],
    ids=lambda record: record.name,
)
def test_a_run_without_answers_has_a_page(record: Record) -> None:
    parsed(html(record))
    assert lines(record)


def test_a_curve_ends_at_the_share_that_was_answered() -> None:
    histogram = LatencyHistogram()
    for latency_s in (0.01, 0.02, 0.04):
        histogram.add(latency_s)
    points = curve(histogram, offered=4)
    assert points[-1][1] == pytest.approx(0.75)
    assert [share for _, share in points] == sorted(share for _, share in points)


def test_only_so_many_tenants_are_drawn_and_all_are_listed(make_record) -> None:
    cells = {}
    for number in range(30):
        cells[f"t{number}"] = {32: TenantLengthStats(offered=number)}
        cells[f"t{number}"][32].latency.add(0.01)
    record = make_record(cells=cells)
    first = next(iter(figures(record)))
    assert first.legend == tuple(f"t{number}" for number in range(30 - MAX_SERIES, 30))
    assert "t3 " in "\n".join(lines(record))


def test_long_runs_are_drawn_by_their_worst_seconds() -> None:
    time_series = [Second(offered=at, under_way=at, p99_ms=float(at)) for at in range(1000)]
    found = spans(time_series)
    assert len(found) <= MAX_SPANS
    assert found[0].seconds == 9
    assert found[0].offered == 4
    assert (found[0].under_way, found[0].p99_ms, found[0].p50_ms) == (8, 8.0, None)
    assert sum(span.seconds for span in found[:-1]) < 1000 <= sum(span.seconds for span in found)


@pytest.mark.parametrize(
    "scale",
    [linear([]), linear([0.3]), linear([7, 999_999]), logarithmic([]), logarithmic([5.0, 5.01]),
     logarithmic([1e-6, 1e5]), logarithmic([3, 4000])],
)  # fmt: skip
def test_ticks_are_few_and_on_the_axis(scale: Scale) -> None:
    ticks = scale.ticks()
    assert 2 <= len(ticks) <= MAX_TICKS + 1
    assert ticks == sorted(ticks)
    assert all(-1e-6 <= scale.at(tick) <= 1 + 1e-6 for tick in ticks)
