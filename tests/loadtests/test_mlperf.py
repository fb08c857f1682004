"""Are MLPerf's rules kept as they are published, counts of early stopping included?"""

import pytest

from loadtests.mlperf import checks, estimate_s, min_queries, most_late, scenario_of
from loadtests.results.latency_histogram import LatencyHistogram
from loadtests.results.record import Record, TenantLengthStats
from loadtests.traffic.scenario_file import check

BASE = check({"duration_s": 5, "arrivals": {"rate": 1}, "lengths": {"fixed": 8}})


@pytest.mark.parametrize(
    ("late", "percentile", "queries"),
    [(1, 0.90, 64), (1, 0.99, 662), (0, 0.90, 44), (0, 0.99, 459)],
)
def test_least_counts_are_the_published_ones(late, percentile, queries):
    assert min_queries(late, percentile) == queries


def test_many_queries_may_be_late_nearly_as_often_as_the_percentile_says():
    """262,742 queries: what MLPerf asked of a 99th percentile before early stopping."""
    assert most_late(262_742, 0.99) / 262_742 == pytest.approx(0.01, rel=0.06)
    assert most_late(262_742, 0.99) < 2_627


@pytest.mark.parametrize(("queries", "late"), [(63, 0), (64, 1), (1000, None)])
def test_as_many_may_be_late_as_queries_allow(queries, late):
    found = most_late(queries, 0.90)
    assert late is None or found == late
    assert min_queries(found + 1, 0.90) > queries


def histogram(*seconds: float) -> LatencyHistogram:
    found = LatencyHistogram()
    for each in seconds:
        found.add(each)
    return found


def test_estimate_is_the_latency_that_as_many_exceed_as_may():
    assert estimate_s(histogram(*[0.01] * 63), 0.90) is None
    assert estimate_s(histogram(*[0.01] * 63, 5.0), 0.90) == 5.0
    seconds = [n / 1000 for n in range(1, 1001)]
    late = most_late(1000, 0.90)
    assert estimate_s(histogram(*seconds), 0.90) == pytest.approx(seconds[-late], rel=0.005)
    assert 0.9 < seconds[-late] < 0.95


def record(offered: int, in_slo: int, unanswered: int = 0) -> Record:
    cell = TenantLengthStats(offered=offered, in_slo=in_slo)
    for _ in range(offered - unanswered):
        cell.latency.add(0.01)
    return Record("x", seconds=10.0, edges=(8,), cells={"default": {8: cell}})


@pytest.mark.parametrize(
    ("kind", "offered", "in_slo", "unanswered", "held"),
    [
        ("server", 459, 459, 0, True),
        ("server", 458, 458, 0, False),
        ("server", 661, 660, 0, False),
        ("server", 662, 661, 1, True),
        ("single-stream", 63, 63, 0, False),
        ("single-stream", 64, 64, 0, True),
        ("single-stream", 64, 64, 1, False),
        ("multi-stream", 661, 661, 0, False),
        ("multi-stream", 662, 662, 0, True),
        ("offline", 24_576, 24_576, 0, True),
        ("offline", 24_575, 24_575, 0, False),
        ("offline", 30_000, 30_000, 1, False),
    ],
)
def test_run_is_valid_by_its_scenarios_rule(kind, offered, in_slo, unanswered, held):
    ((_, _, found),) = checks(kind, record(offered, in_slo, unanswered), 0.1)
    assert found is held


def test_offline_tells_samples_a_second():
    ((_, said, _),) = checks("offline", record(30_000, 30_000), None)
    assert said == "30,000 samples, 3,000.0/s"


@pytest.mark.parametrize(
    ("kind", "process", "clients", "rows"),
    [
        ("server", "poisson", 1, 1),
        ("single-stream", "closed", 1, 1),
        ("multi-stream", "closed", 1, 8),
        ("offline", "closed", 32, 1),
    ],
)
def test_load_is_as_the_scenario_says(kind, process, clients, rows):
    made = scenario_of(kind, BASE, 50.0, 32)
    (_, tenant), *rest = made.callers()
    assert not rest
    assert (made.arrivals.process, made.arrivals.clients, tenant.rows) == (process, clients, rows)
    assert made.arrivals.rate == (50.0 if kind == "server" else None)
    assert made.lengths == BASE.lengths
