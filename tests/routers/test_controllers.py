"""The controllers of a model together: what they are told and what they show."""

from dataclasses import replace

import pytest

from routers.api.settings import (
    AdmissionParameters,
    CodelParameters,
    DispatcherSettings,
    LimitParameters,
    Mode,
    PolicyNames,
)
from routers.policies.admission.types import LateWork
from routers.policies.registry import ADMISSIONS
from routers.shared.admission import Controllers
from tests.routers.newcomers import ask, came, found

A = (0, "a")
SETTINGS = DispatcherSettings(bucket_edges=(64,))


def states(controllers, now=0.0):
    return {each.name: each for each in controllers.snapshot(1, now)}


def told(controllers, newcomer, now):
    return [ask(each, newcomer, now) for each in controllers.on_arrival]


def test_feasibility_enforces_and_the_others_observe_unless_told():
    modes = {name: state.mode for name, state in states(Controllers(SETTINGS)).items()}
    assert modes == {
        "feasibility": "enforce",
        "best_effort_capacity": "enforce",
        "codel": "observe",
        "limit": "observe",
    }


def test_fresh_controllers_hold_nobody_back():
    values = {name: state.value for name, state in states(Controllers(SETTINGS)).items()}
    assert values == {
        "feasibility": 0.0,
        "best_effort_capacity": 1.0,
        "codel": 0.0,
        "limit": 100_000,
    }


def test_every_flow_shows_what_it_is_held_by():
    controllers = Controllers(SETTINGS)
    tracked = came(A, inflight=3, forecast_s=0.1)
    told(controllers, found(tracked, before_s=0.5, competing_weight=1.0), 0.0)
    controllers.waited(tracked, 0.4, taken=True)
    shown = states(controllers)
    ((priority, tenant, margin_s),) = shown["feasibility"].by_flow
    assert (priority, tenant) == A
    assert shown["feasibility"].value == margin_s
    assert shown["limit"].by_flow == ((0, "a", 100_000),)


def test_settings_reach_all_and_what_was_learnt_stays():
    controllers = Controllers(SETTINGS)
    controllers.served(((*A, 1.0),), 0.0, late=False)
    before = states(controllers)["best_effort_capacity"].value
    off = AdmissionParameters(
        Mode.OFF, codel=CodelParameters(Mode.OFF), limit=LimitParameters(Mode.OFF, fixed=9)
    )
    controllers.tune(replace(SETTINGS, admission=off, frozen=True))
    shown = states(controllers)
    assert {state.mode for state in shown.values()} == {"off"}
    assert all(state.frozen for state in shown.values())
    assert shown["best_effort_capacity"].value == pytest.approx(before)
    assert shown["limit"].value == 9


def test_fixed_values_are_what_is_shown():
    fixed = AdmissionParameters(margin_s=0.02, best_effort_capacity_s=0.4)
    controllers = Controllers(replace(SETTINGS, admission=fixed))
    told(controllers, found(came(A)), 0.0)
    assert states(controllers)["feasibility"].value == 0.02
    assert controllers.refuse_late(LateWork(0.41, 9.0, 1, True), 0.0)
    assert not controllers.refuse_late(LateWork(0.4, 9.0, 1, True), 0.0)


def test_what_is_only_asked_is_not_counted():
    fixed = AdmissionParameters(best_effort_capacity_s=0.4)
    controllers = Controllers(replace(SETTINGS, admission=fixed))
    late = LateWork(0.41, 9.0, 1, True)
    assert controllers.would_refuse_late(late, 0.0)
    assert states(controllers)["best_effort_capacity"].shed == 0
    assert controllers.refuse_late(late, 0.0)
    assert states(controllers)["best_effort_capacity"].shed == 1


def test_a_late_rejection_told_again_is_a_no_of_all_who_call_late():
    controllers = Controllers(SETTINGS)
    controllers.rejected_from_cache(A, 64, 0.0)
    shed = {name: state.shed for name, state in states(controllers).items()}
    assert shed == {"feasibility": 1, "best_effort_capacity": 1, "codel": 0, "limit": 0}


# ---- by name


def named(*names):
    return replace(SETTINGS, policies=PolicyNames(admission=names))


def test_only_those_that_are_named_are_there_and_shown_in_the_registrys_order():
    assert list(states(Controllers(named()))) == []
    assert list(states(Controllers(named("limit", "codel")))) == ["codel", "limit"]
    by_default = list(states(Controllers(SETTINGS)))
    assert by_default == [name for name in ADMISSIONS if name in by_default]


def test_they_are_asked_in_the_order_in_which_they_are_named():
    for names in (("limit", "feasibility"), ("feasibility", "limit")):
        asked = Controllers(named(*names)).on_arrival
        assert [type(each) for each in asked] == [ADMISSIONS[name] for name in names]


def test_of_those_that_are_named_before_and_after_what_was_learnt_stays():
    controllers = Controllers(SETTINGS)
    controllers.served(((*A, 1.0),), 0.0, late=False)
    before = states(controllers)["best_effort_capacity"].value
    controllers.tune(named("best_effort_capacity"))
    assert states(controllers)["best_effort_capacity"].value == before < 1.0
    controllers.tune(named())
    controllers.tune(named("best_effort_capacity"))
    assert states(controllers)["best_effort_capacity"].value == 1.0


def test_one_that_is_off_is_not_asked_and_hears_of_what_is_served():
    off = replace(SETTINGS, admission=AdmissionParameters(feasibility=Mode.OFF))
    controllers = Controllers(off)
    assert [type(each) for each in controllers.on_arrival] == [ADMISSIONS["limit"]]
    assert not controllers.refuse_late(LateWork(9.0, 1.0, 1, True), 0.0)
    controllers.waited(came(A, forecast_s=0.1), 0.5, taken=True)
    assert states(controllers)["feasibility"].by_flow == ()
    controllers.served(((*A, 1.0),), 0.0, late=False)
    assert [flow[:2] for flow in states(controllers)["feasibility"].by_flow] == [A]
