"""Does a summary count each request once, where and when it belongs?"""

import random

import pytest

from loadtests.results.fairness import Entitlement
from loadtests.results.latency_histogram import LatencyHistogram
from loadtests.results.summary import Ending, MeasuredBatch, Summary

NAMES = {"offered", "in_slo", "jain", "padding_ratio", "hedge_ratio", "rejected", "tenants"}
TENANT_NAMES = {"offered", "in_slo", "rejected", "p50_ms", "p99_ms"}


def summary(begin_s=0.0, end_s=10.0) -> Summary:
    return Summary({"a": Entitlement(), "b": Entitlement()}, (32, 128), begin_s, end_s)


def answered(of: Summary, tenant="a", sent_s=1.0, latency_s=0.05, length=8, **more) -> None:
    of.sent(tenant, sent_s, 0.001, more.pop("attempt", 1))
    ending = Ending(tenant, sent_s, length, 0.1, 0.001, latency_s, **more)
    of.ended(ending, sent_s + latency_s)


def refused(of: Summary, tenant="a", sent_s=1.0, reason="late", refused=True) -> None:
    of.sent(tenant, sent_s, 0.001)
    of.ended(Ending(tenant, sent_s, 8, 0.1, 0.001, reason=reason, refused=refused), sent_s)


@pytest.mark.parametrize("percent", [1, 50, 99, 100])
def test_percentiles_are_off_by_half_a_per_cent_at_most(percent):
    rng = random.Random(1)
    values = sorted(rng.lognormvariate(-3.0, 1.0) for _ in range(5000))
    histogram = LatencyHistogram()
    for value in values:
        histogram.add(value)
    exact = values[-(-len(values) * percent // 100) - 1]
    assert histogram.percentile_s(percent) == pytest.approx(exact, rel=0.005)


def test_nothing_has_no_percentile():
    assert LatencyHistogram().percentile_s(50) is None


def test_merged_histograms_are_one():
    one, other, both = LatencyHistogram(), LatencyHistogram(), LatencyHistogram()
    for n in range(1, 100):
        (one if n % 3 else other).add(n / 100)
        both.add(n / 100)
    one.merge(other)
    assert one == both
    assert [share for _, share in both.cumulative()][-1] == 1.0


def test_object_has_the_names_that_everybody_prints():
    of = summary()
    answered(of)
    found = of.as_json()
    assert found.keys() >= NAMES
    assert set(found["tenants"]) == {"a", "b"}
    assert all(each.keys() >= TENANT_NAMES for each in found["tenants"].values())


def test_late_answers_and_refusals_are_misses_of_what_was_offered():
    of = summary()
    answered(of, latency_s=0.1)
    answered(of, latency_s=0.2)
    refused(of)
    refused(of, reason="expired", refused=False)
    found = of.as_json()
    assert (found["offered"], found["in_slo"], found["rejected"]) == (4, 0.25, 1)
    assert found["reasons"] == {"expired": 1, "late": 1}
    assert found["in_slo_per_s"] == 0.1


def test_only_what_was_sent_in_the_measured_time_counts():
    of = summary(begin_s=1.0, end_s=2.0)
    for sent_s in (0.99, 1.0, 1.99, 2.0):
        answered(of, sent_s=sent_s)
    assert of.total().offered == 2


def test_tenants_and_length_intervals_are_told_apart():
    of = summary()
    for tenant, length in (("a", 32), ("a", 33), ("b", 128), ("b", 900)):
        answered(of, tenant, length=length)
    assert {name: group.offered for name, group in of.tenants().items()} == {"a": 2, "b": 2}
    assert {edge: group.offered for edge, group in of.buckets().items()} == {32: 1, 128: 3}
    assert of.cell("a", 128).offered == 1


def test_tries_after_the_first_are_offered_too_and_counted():
    of = summary()
    answered(of)
    answered(of, attempt=2)
    assert (of.total().offered, of.as_json()["retries"]) == (2, 1)


def test_padding_and_copies_are_ratios_of_the_work():
    of = summary()
    of.batch(MeasuredBatch(4, 60, 80, 0.02), 1.0)
    of.batch(MeasuredBatch(4, 60, 80, 0.01, copy=True), 1.0)
    of.batch(MeasuredBatch(1, 1, 100, 9.9), 10.0)
    found = of.as_json()
    assert found["padding_ratio"] == pytest.approx(0.25)
    assert (found["hedge_ratio"], found["extra_work"]) == (1.0, pytest.approx(0.5))
    assert found["longest_batch_ms"] == 20.0


def test_course_says_what_was_offered_and_under_way_each_second():
    of = summary(end_s=3.0)
    of.sent("a", 0.5, 0.001)
    of.sent("b", 1.5, 0.001)
    of.ended(Ending("a", 0.5, 8, 2.0, 0.001, 1.7), 2.2)
    of.finish(2.5)
    time_series = of.as_json()["time_series"]
    assert time_series["offered"] == {"a": [1, 0, 0], "b": [0, 1, 0]}
    assert time_series["in_slo"]["a"] == [1, 0, 0]
    assert time_series["under_way"] == {"a": [1, 1, 0], "b": [0, 1, 1]}


def test_course_of_a_long_run_is_no_longer():
    of = summary(end_s=100_000.0)
    for sent_s in range(0, 100_000, 50):
        answered(of, sent_s=float(sent_s))
    assert len(of.time_series.moments) <= 600
