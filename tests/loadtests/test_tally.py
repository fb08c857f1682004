"""Does the tally count what ends inside its window, and nothing else?"""

import math

import pytest

from loadtests.client.tally import LoadResult, LoadTally


def result_of(tally: LoadTally, seconds: float = 2.0, cpu_s: float = 0.0) -> LoadResult:
    return LoadResult.of(tally, seconds, cpu_s)


@pytest.mark.parametrize(("now", "counted"), [(0.9, 0), (1.0, 1), (3.0, 1), (3.1, 0)])
def test_only_answers_inside_the_window_count(now, counted):
    tally = LoadTally(begin=1.0, end=3.0)
    tally.answered(now, now - 0.5, 200, 1)
    tally.failed(now, now - 0.5, "closed")
    tally.misbehaved(now, "malformed 400")
    result = result_of(tally)
    assert (result.ok, result.failed, sum(result.mischief.values())) == (counted,) * 3


def test_open_loop_counts_by_when_a_request_was_meant_to_be_sent():
    tally = LoadTally(begin=1.0, end=3.0, by_arrival=True)
    tally.answered(9.0, 2.0, 200, 1)  # far too late an answer, but to a request of the window
    tally.answered(2.0, 0.5, 200, 1)
    tally.failed(9.0, 2.0, "timeout")
    result = result_of(tally)
    assert (result.ok, result.errors) == (1, {"timeout": 1})
    assert result.latency_ms(50) == pytest.approx(7000.0)


def test_refused_answers_are_errors_by_status_and_no_latency_sample():
    tally = LoadTally(begin=0.0)
    for status in (200, 204, 503, 503, 400):
        tally.answered(1.0, 0.9, status, 10)
    result = result_of(tally)
    assert result.errors == {"status 503": 2, "status 400": 1}
    assert (result.ok, result.weight, result.rate, result.weight_rate) == (2, 20, 1.0, 10.0)


def test_share_within_a_limit_is_of_all_that_was_asked():
    tally = LoadTally(begin=0.0)
    for latency in (0.01, 0.02, 0.2):
        tally.answered(1.0, 1.0 - latency, 200, 1)
    tally.failed(1.0, 0.5, "timeout")
    assert result_of(tally).within(100.0) == pytest.approx(0.5)


def test_nothing_answered_gives_no_numbers_rather_than_zeros():
    result = result_of(LoadTally(begin=0.0))
    assert math.isnan(result.latency_ms(50))
    assert math.isnan(result.cpu_us)
    assert (result.rate, result.within(1.0)) == (0.0, 0.0)


def test_client_cpu_is_shared_out_over_all_answers():
    tally = LoadTally(begin=0.0)
    tally.answered(1.0, 0.9, 200, 1)
    tally.misbehaved(1.0, "malformed 400")
    assert result_of(tally, cpu_s=40e-6).cpu_us == pytest.approx(20.0)
