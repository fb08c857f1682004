"""Are tries counted where they belong: in time, refused, and by second after a burst?"""

import math

import pytest

from loadtests.benches.overload_trials import (
    BURST_FROM_S,
    BURST_S,
    WARMUP_S,
    Burst,
    burst_of,
    burst_piece,
    load_piece,
    trial_of,
)
from loadtests.benches.scenario_load import measured
from loadtests.client.player import PlayedRequest
from loadtests.traffic.plan import Planned

AFTER_S = WARMUP_S + BURST_FROM_S + BURST_S


def end(at_s: float, status: int = 200, took_s: float = 0.1, late_s: float = 0.0) -> PlayedRequest:
    left_s = at_s + late_s
    return PlayedRequest(Planned(at_s, "default", (8,)), left_s, left_s + took_s, status)


@pytest.mark.parametrize(
    ("kept", "offered", "back_s"),
    [
        ((40,) * 8, (40,) * 8, 0.0),
        ((45,) * 8, (500,) * 8, 0.0),
        ((0, 45, 45, 45, 45, 45, 45, 45), (500,) * 8, 1.0),
        ((45,) * 7 + (30,), (500,) * 8, math.nan),
    ],
)
def test_back_is_when_all_that_could_be_kept_is(kept, offered, back_s):
    found = Burst("ids", "at once", kept, offered).back_s(best=45.0)
    assert found == pytest.approx(back_s, nan_ok=True)


def test_seconds_after_a_burst_count_what_was_sent_in_them():
    ends = [
        end(AFTER_S - 0.01, 503), end(AFTER_S, 503), end(AFTER_S + 0.5), end(AFTER_S + 1.0),
        end(AFTER_S + 1.5, took_s=0.6),
    ]  # fmt: skip
    burst = burst_of(burst_piece("at once"), ends, "ids", "at once")
    assert burst.offered[:3] == (2, 2, 0)
    assert burst.kept[:2] == (1, 1)


def test_refusals_count_from_when_they_left_and_answers_from_when_they_were_meant_to():
    of = load_piece("at once", 10.0, 2.0)
    at_s = WARMUP_S + 0.5
    ends = [
        end(at_s, 503, 0.004, late_s=0.3),
        end(at_s, 200, 0.3, late_s=0.3),
        end(at_s, 429, 0.002),
    ]
    trial = trial_of(of, ends, "ids", "at once", {})
    assert (trial.load, trial.offered, trial.in_slo_per_s) == (10.0, 3, 0.0)
    assert trial.refusal(503, 99) == pytest.approx(4.0)
    assert trial.refusal(429, 99) == pytest.approx(2.0)
    assert math.isnan(trial.refusal(504, 99))
    assert trial.statuses == {"200": 1, "429": 1, "503": 1}


def test_warm_up_is_not_counted():
    of = load_piece("at once", 2.0, 2.0)
    ends = [end(WARMUP_S - 0.01), end(WARMUP_S), end(WARMUP_S + 1.99), end(WARMUP_S + 2.0)]
    assert measured(of, ends) == ends[1:3]


@pytest.mark.parametrize(("caller", "honours"), [("at once", False), ("after Retry-After", True)])
def test_callers_look_at_retry_after_only_where_they_are_said_to(caller, honours):
    tenants = load_piece(caller, 1.0, 1.0).scenario.tenants
    assert {tenant.retry.retry_after for tenant in tenants.values()} == {honours}
    burst = burst_piece(caller).scenario
    assert burst.tenants["default"].retry.retry_after is honours
