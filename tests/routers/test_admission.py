"""Both policies of admission together: what they count, show and learn in each mode."""

from collections import Counter
from dataclasses import replace

import pytest

from routers.api.requests import Reason
from routers.api.settings import AdmissionParameters, DispatcherSettings, Mode
from routers.policies.lateness import Verdicts
from routers.simulation.simulator import Arrival, SimDevice, simulate

SETTINGS = DispatcherSettings((64,), initial_cost_s=0.01, profile=((1, 64, 0.01), (8, 64, 0.02)))


def overload(admission: AdmissionParameters, **more):
    """Twice what one replica can do, for half a second; an answer is in time after 50 ms."""
    arrivals = [Arrival(0.00125 * n, (64,), 0.05, 5.0, tenant=f"t{n % 2}") for n in range(400)]
    device = SimDevice("r", lambda rows, width: 0.0086 + 0.0014 * rows)
    settings = replace(SETTINGS, admission=admission, max_size=8, **more)
    found = simulate(settings, arrivals, [device])
    shown = {each.name: each for each in found.end.controllers}
    return shown, Counter(each.reason for each in found.outcomes)


def test_noes_are_counted_and_hold_only_where_they_are_enforced():
    shown, ends = overload(AdmissionParameters(best_effort_capacity_s=0.0))
    late = shown["best_effort_capacity"]
    assert {each.mode for each in shown.values()} == {"enforce"}
    assert all(each.would_shed == 0 < each.shed for each in shown.values())
    assert 0 < ends[Reason.LATE] <= late.shed
    for mode in (Mode.OBSERVE, Mode.OFF):
        shown, ends = overload(AdmissionParameters(mode, best_effort_capacity_s=0.0))
        for each in shown.values():
            assert (each.mode, each.shed) == (mode.value, 0)
            assert (each.would_shed > 0) is (mode is Mode.OBSERVE)
        assert ends == {None: 400}, "all are answered"


def test_what_is_shown_is_by_flow_and_a_fixed_value_where_one_is_set():
    shown, _ = overload(AdmissionParameters())
    learnt = shown["feasibility"]
    assert {flow[:2] for flow in learnt.by_flow} == {(0, "t0"), (0, "t1")}
    assert learnt.value == max(margin_s for _, _, margin_s in learnt.by_flow)
    assert 0.0 <= shown["best_effort_capacity"].value <= 1.0
    shown, _ = overload(AdmissionParameters(margin_s=0.02))
    assert shown["feasibility"].value == 0.02


def test_one_that_is_off_hears_of_no_request_but_of_what_is_served():
    shown, _ = overload(AdmissionParameters(Mode.OFF))
    assert [margin_s for _, _, margin_s in shown["feasibility"].by_flow] == [0.0, 0.0]
    assert shown["best_effort_capacity"].value < 1.0
    frozen, _ = overload(AdmissionParameters(), frozen=True)
    assert all(each.frozen for each in frozen.values())
    assert frozen["best_effort_capacity"].value == 1.0


def test_only_bounds_refuse_where_nothing_is_forecast():
    _, ends = overload(AdmissionParameters(Mode.OFF), max_queue_rows=50)
    assert set(ends) == {None, Reason.QUEUE_FULL}


@pytest.mark.parametrize("mode", Mode)
def test_a_no_is_counted_by_what_it_does(mode):
    verdicts = Verdicts(mode)
    assert verdicts.no() is verdicts.acts is (mode is Mode.ENFORCE)
    assert (verdicts.shed, verdicts.would_shed) == ((1, 0) if verdicts.acts else (0, 1))
    assert verdicts.off is (mode is Mode.OFF)
