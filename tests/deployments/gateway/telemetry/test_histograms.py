"""Histograms are those of prometheus_client, and no row of them is lost or counted twice."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import Histogram

from deployments.gateway.telemetry.sample_tables import LATENCY_EDGES_S, HistogramTable, SampleLog


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.sampled_from([0.0, *LATENCY_EDGES_S, 61.0]), st.floats(0, 100))))
def test_counts_and_sums_are_those_of_prometheus_client(values):
    reference = Histogram("h", "h", buckets=LATENCY_EDGES_S, registry=None)
    table = HistogramTable(LATENCY_EDGES_S)
    number = table.series(("x",))
    for observed in values:
        reference.observe(observed)
    table.add(np.full(len(values), number), np.array(values, dtype=np.float64))
    expected = {(s.name, s.labels.get("le")): s.value for s in reference.collect()[0].samples}
    if not values:
        assert list(table) == []
        return
    ((_, counts, total),) = table
    buckets = [v for (name, _), v in expected.items() if name == "h_bucket"]
    assert counts == buckets
    assert math.isclose(total, expected[("h_sum", None)], rel_tol=1e-9, abs_tol=1e-9)


def test_what_was_not_observed_is_not_counted():
    table = HistogramTable((1.0,))
    number = table.series(("x",))
    table.add(np.array([number, number]), np.array([math.nan, 0.5]))
    assert list(table) == [(("x",), [1, 1], 0.5)]


@pytest.mark.parametrize("count", [1, 2, 8, 9, 100])
def test_series_keep_their_counts_while_the_table_grows(count):
    table = HistogramTable((1.0,))
    for index in range(count):
        number = table.series((str(index),))
        table.add(np.array([number]), np.array([2.0]))
    assert [(key, counts) for key, counts, _ in table] == [
        ((str(index),), [0, 1]) for index in range(count)
    ]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7])
def test_a_log_drains_every_row_once_and_in_order(count):
    drained = []
    log = SampleLog(2, 3, lambda rows: drained.extend(rows[:, 0].tolist()))
    for index in range(count):
        log.append(index, 0.0)
    assert len(drained) + len(log) == count
    log.drain()
    log.drain()
    assert drained == list(range(count))
