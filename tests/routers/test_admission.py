"""The controllers of a model together: what they are told and what they show."""

from dataclasses import replace

import pytest

from routers.api.settings import (
    AdmissionParameters,
    CodelParameters,
    DispatcherSettings,
    LimitParameters,
    Mode,
)
from routers.policies.admission.controllers import Admission
from routers.policies.admission.feasibility import QueueAhead

A = (0, "a")
SETTINGS = DispatcherSettings(bucket_edges=(64,))


def states(admission, now=0.0):
    return {each.name: each for each in admission.snapshot(1, now)}


def test_feasibility_enforces_and_the_others_observe_unless_told():
    modes = {name: state.mode for name, state in states(Admission(SETTINGS)).items()}
    assert modes == {
        "feasibility": "enforce",
        "best_effort_capacity": "enforce",
        "codel": "observe",
        "limit": "observe",
    }


def test_fresh_controllers_hold_nobody_back():
    values = {name: state.value for name, state in states(Admission(SETTINGS)).items()}
    assert values == {
        "feasibility": 0.0,
        "best_effort_capacity": 1.0,
        "codel": 0.0,
        "limit": 100_000,
    }


def test_every_flow_shows_what_it_is_held_by():
    admission = Admission(SETTINGS)
    forecast = admission.feasibility.judge(QueueAhead(A, 1.0, 0.5, 1.0, 0.0, 1), 0.1, 0.0)
    admission.waited(A, forecast, 0.4, 0.5)
    admission.limit.sheds(A, 3, 0.5)
    shown = states(admission)
    ((priority, tenant, margin_s),) = shown["feasibility"].by_flow
    assert (priority, tenant) == A
    assert shown["feasibility"].value == margin_s
    assert shown["limit"].by_flow == ((0, "a", 100_000),)


def test_settings_reach_all_and_what_was_learnt_stays():
    admission = Admission(SETTINGS)
    admission.best_effort_capacity.worked(1.0, 0.0)
    before = states(admission)["best_effort_capacity"].value
    off = AdmissionParameters(
        Mode.OFF, codel=CodelParameters(Mode.OFF), limit=LimitParameters(Mode.OFF, fixed=9)
    )
    admission.tune(replace(SETTINGS, admission=off, frozen=True))
    shown = states(admission)
    assert {state.mode for state in shown.values()} == {"off"}
    assert all(state.frozen for state in shown.values())
    assert shown["best_effort_capacity"].value == pytest.approx(before)
    assert shown["limit"].value == 9


def test_fixed_values_are_what_is_shown():
    fixed = AdmissionParameters(margin_s=0.02, best_effort_capacity_s=0.4)
    admission = Admission(replace(SETTINGS, admission=fixed))
    admission.feasibility.judge(QueueAhead(A, 1.0, 0.0, 0.0, 0.0, 1), 0.1, 0.0)
    assert states(admission)["feasibility"].value == 0.02
    assert admission.best_effort_capacity.capacity_s(1.0, 1, 0.0) == 0.4


def test_counts_are_shown():
    admission = Admission(SETTINGS)
    hopeless = QueueAhead(A, 1.0, 100.0, 1.0, 0.0, 1)
    for _ in range(4):
        admission.feasibility.judge(hopeless, 0.1, 0.0)  # the first is the probe
    assert states(admission)["feasibility"].shed == 3
