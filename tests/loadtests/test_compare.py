"""Are differences found where there are some, and none where there are none?"""

from __future__ import annotations

from itertools import pairwise
from math import inf
from pathlib import Path
from random import Random

import pytest

from loadtests.report import compared
from loadtests.results.compare import Difference, compare, warnings
from loadtests.results.latency_histogram import LatencyHistogram
from loadtests.results.noise import Estimate, inflations, log_percentile, share
from loadtests.results.record import Record, Second, TenantLengthStats

RUNS, SECONDS, RATE = 24, 20, 200.0


def queued(seed: int, busy: float = 0.7) -> Record:
    """One server with exponential service times, busy for a share of the time."""
    random, cell, at_s, free_s = Random(seed), TenantLengthStats(), 0.0, 0.0
    seconds: list[list[float]] = [[] for _ in range(SECONDS)]
    while (at_s := at_s + random.expovariate(RATE)) < SECONDS:
        free_s = max(at_s, free_s) + random.expovariate(RATE / busy)
        cell.offered += 1
        cell.in_slo += free_s - at_s <= 0.05
        cell.latency.add(free_s - at_s)
        seconds[int(at_s)].append(free_s - at_s)
    time_series = [
        Second(len(found), len(found), sum(x <= 0.05 for x in found),
               p50_ms=sorted(found)[len(found) // 2] * 1e3)
        for found in seconds
    ]  # fmt: skip
    return Record(name="queue", edges=(8,), cells={"all": {8: cell}}, time_series=time_series)


def by_what(differences: tuple[Difference, ...], part: str) -> dict[str, Difference]:
    return {each.what: each for each in differences if each.part == part}


@pytest.mark.slow
def test_equal_runs_of_a_queue_seldom_differ() -> None:
    records = [queued(seed) for seed in range(RUNS)]
    found = [each for a, b in pairwise(records) for each in compare(a, b).lengths]
    different = [each for each in found if each.verdict in ("better", "worse", "slower", "faster")]
    assert len(different) <= 0.06 * len(found)
    assert max(inflations(a, b)[0] for a, b in pairwise(records)) > 4  # neighbours are alike


@pytest.mark.slow
@pytest.mark.parametrize("busy", [0.6, 1.5])
def test_a_slower_run_is_called_slower(busy: float) -> None:
    """Also where it falls behind more and more, so that no two of its seconds are alike."""
    for seed in range(4):
        found = by_what(compare(queued(seed, 0.3), queued(seed + 100, busy)).lengths, "up to 8")
        assert found["p50 ms"].verdict == "slower"
        change = found["p50 ms"].change
        assert change is not None
        assert 1.0 < change.low < change.value < change.high
        assert found["p95 ms"].verdict in ("slower", "too few to say" if busy < 1 else "slower")


def test_b_is_measured_against_a(make_record) -> None:
    slow, fast = make_record(slower=2.0), make_record(seed=2)
    assert by_what(compare(slow, fast).tenants, "all")["p50 ms"].verdict == "faster"
    assert by_what(compare(fast, slow).tenants, "chat")["p50 ms"].verdict == "slower"
    assert by_what(compare(fast, slow).tenants, "all")["in time"].verdict == "worse"


def test_a_run_beside_itself_is_the_same(make_record) -> None:
    record = make_record()
    found = compare(record, record)
    assert found.warnings == ()
    assert {each.verdict for each in found.tenants} <= {"within noise", "too few to say"}
    assert all(each.a == each.b for each in found.lengths)


def test_what_makes_runs_unlike_is_said(make_record) -> None:
    a = make_record()
    b = make_record(
        scenario={"duration_s": 5}, machine="another", versions={"headrace": "0.2.0"},
        slo_ms=50.0,
    )  # fmt: skip
    said = "\n".join(warnings(a, b))
    assert "the scenarios differ in arrivals, duration_s, settings" in said
    assert "the machine differs (A: two cores, 8 GiB; B: another)" in said
    assert "the version of headrace differs (A: 0.1.0; B: 0.2.0)" in said
    assert "the version of python differs (A: 3.11.7; B: none)" in said


def test_a_tenant_of_one_run_alone_has_no_change(make_record) -> None:
    a, b = make_record(), make_record(seed=2)
    del b.cells["crawl"]
    found = by_what(compare(a, b).tenants, "crawl")
    assert found["in time"].b is None
    assert {each.verdict for each in found.values()} == {"too few to say"}


def test_rates_of_the_whole_are_beside_each_other(make_record) -> None:
    found = compared.rates(make_record(seconds=120.0), make_record(padded_tokens=1400))
    rows = {str(name): rest for name, *rest in found.rows}
    assert rows["offered/s"] == [pytest.approx(14_000 / 120), pytest.approx(14_000 / 60), 2.0]
    assert rows["padding, share"] == [pytest.approx(0.3), 0.5, pytest.approx(5 / 3)]
    assert "tokens back/s" not in rows


@pytest.mark.parametrize(("count", "total"), [(0, 1), (1, 1), (0, 500), (500, 500), (499, 500)])
def test_a_share_lies_in_its_interval(count: int, total: int) -> None:
    found = share(count, total)
    assert found is not None
    assert 0.0 <= found.low <= found.value <= found.high <= 1.0
    assert found.low < found.high
    wider = share(count, total, inflation=10.0)
    assert wider is not None
    assert wider.high - wider.low > found.high - found.low
    assert share(0, 0) is None


def test_a_high_percentile_of_few_is_open_above() -> None:
    histogram = LatencyHistogram()
    assert log_percentile(histogram, 50) is None
    for place in range(100):
        histogram.add(0.01 * (place + 1))
    middle, top = log_percentile(histogram, 50), log_percentile(histogram, 99)
    assert middle is not None
    assert top is not None
    assert not middle.is_open
    assert top.is_open
    assert top.low > middle.value
    assert top.less(top).is_noise
    assert not top.less(middle).is_noise
    assert middle.less(top).low == -inf


def test_a_distance_has_both_errors() -> None:
    apart = Estimate(6.0, 3.0, 10.0).less(Estimate(1.0, -3.0, 4.0))
    assert apart.value == 5.0
    assert apart.low == pytest.approx(5.0 - (3**2 + 3**2) ** 0.5)
    assert apart.high == pytest.approx(5.0 + (4**2 + 4**2) ** 0.5)
    assert not apart.is_noise


def test_page_shows_both(make_record, tmp_path: Path) -> None:
    found = compare(make_record(streams=True), make_record(seed=2, machine="<another>"))
    compared.write(found, tmp_path / "c.html")
    text = (tmp_path / "c.html").read_text(encoding="utf-8")
    assert "Warning: the machine differs (A: two cores, 8 GiB; B: &lt;another&gt;)." in text
    for title in (
        "Latency of all",
        "Latency of crawl",
        "Latency of length up to 512",
        "Rate in time",
    ):
        assert title in text
    printed = "\n".join(compared.lines(found))
    assert "first token p99 ms" in printed
    assert "within noise" in printed
