"""Is the simulated server the one that the settings describe, and do its replicas misbehave as the
scenario says?"""

from dataclasses import replace
from math import inf

import pytest

from deployments.settings.plain import parse
from deployments.tools.simulate.callers import Callers
from deployments.tools.simulate.devices import devices
from deployments.tools.simulate.sim_setup import SimSetupError, set_up
from loadtests.traffic.plan import TrafficPlan
from loadtests.traffic.scenario_file import check
from routers.api.requests import Reason
from routers.simulation.simulator import SimOutcome

SETTINGS = {
    "models": {
        "device": {
            "runtime": "synthetic",
            "slo": {"latency_ms": 100, "timeout_ms": 700},
            "lengths": {"max": 512, "buckets": [32, 512], "truncate": True},
            "batch": {"max_size": 8, "max_tokens": 1024},
            "replicas": {"count": 2, "slots": 3, "hang_limit_s": 4},
            "options": {"base_ms": 5, "per_request_ms": 1, "load_s": 1000},
        }
    },
    "tenants": {"a": {"weight": 3, "priority": "interactive", "max_queue_rows": 9}, "b": {}},
    "gateway": {"replicas": 2},
}
SCENARIO = {
    "settings": "x",
    "duration_s": 100,
    "warmup_s": 10,
    "arrivals": {"rate": 10},
    "lengths": {"fixed": 600},
    "tenants": {"a": {}, "b": {}},
}


def setup(**changed):
    return set_up(check(SCENARIO | changed), parse(SETTINGS))


def made(**changed):
    scenario = check(SCENARIO | changed)
    return devices(scenario, set_up(scenario, parse(SETTINGS)))


def test_core_is_told_what_the_service_would_tell_it():
    core = setup().core
    assert (core.bucket_edges, core.max_size, core.max_tokens) == ((32, 512), 8, 1024)
    assert (core.slo_s, core.pads, core.priorities) == (0.1, True, 3)


def test_tenants_come_by_the_right_that_the_settings_give_them():
    terms = setup(tenants={"a": {"priority": "bulk"}, "b": {"budget_ms": 50}}).terms
    assert (terms["a"].weight, terms["a"].priority, terms["a"].tenant_rows) == (3, 2, 9)
    assert (terms["a"].slo_s, terms["a"].timeout_s) == (0.1, 0.7)
    assert (terms["b"].slo_s, terms["b"].timeout_s) == (0.05, 0.05)


def test_priority_may_be_lowered_and_not_raised():
    assert setup(tenants={"b": {"priority": "interactive"}}).terms["b"].priority == 1


def test_scenario_may_have_other_numbers_of_replicas_and_gateways():
    assert (setup().replicas, setup().gateways) == (2, 2)
    assert (setup(replicas=5).replicas, setup(gateways=1).gateways) == (5, 1)


def test_row_costs_its_part_of_a_full_batch():
    found = setup()
    assert found.row_cost_s(32) == pytest.approx((0.005 + 8 * 0.001) / 8)
    assert found.row_cost_s(512) == pytest.approx((0.005 + 2 * 0.001) / 2)


def test_replicas_run_from_the_start_and_join_later():
    found = made(joins=[{"at_s": 5, "count": 2}])
    assert [(each.replica_id, each.joins_at) for each in found] == [
        ("r0", 0.0), ("r1", 0.0), ("r2", 15.0), ("r3", 15.0)
    ]  # fmt: skip
    assert {(each.slots, each.hang_limit_s, each.dies_at) for each in found} == {(3, 4.0, inf)}


def test_dead_replica_is_replaced_under_another_name():
    deaths = [{"replica": 0, "at_s": 5, "back_after_s": 2}, {"replica": 0, "at_s": 20}]
    first, second, _ = made(faults={"deaths": deaths})
    assert (first.replica_id, first.dies_at) == ("r0", 15.0)
    assert (second.replica_id, second.joins_at, second.dies_at) == ("r0.1", 17.0, 30.0)


def test_hung_replica_is_replaced_once_it_is_given_up():
    deaths = [{"replica": 1, "at_s": 5, "back_after_s": 2, "hangs": True}]
    _, hung, fresh = made(faults={"deaths": deaths})
    assert (hung.hangs_at, hung.dies_at, fresh.joins_at) == (15.0, inf, 21.0)


def test_chaos_kills_about_as_often_as_it_says_and_the_same_for_the_same_seed():
    faults = {"chaos": {"every_s": 4, "back_after_s": 1, "hanging": 0.5}}
    first, again = made(faults=faults), made(faults=faults)
    lives = [(each.replica_id, each.dies_at, each.hangs_at) for each in first]
    assert lives == [(each.replica_id, each.dies_at, each.hangs_at) for each in again]
    assert 10 < len(first) < 40
    assert any(each.hangs_at < inf for each in first)


def test_slow_replica_is_slow_while_it_is():
    slow = [{"replica": 1, "factor": 5, "from_s": 10, "to_s": 20}]
    well, ill = made(faults={"slow": slow})
    assert well.drag is None
    assert [ill.drag(at) for at in (19.9, 20.0, 29.9, 30.0)] == [1.0, 5.0, 5.0, 1.0]


def test_replica_that_starts_meanwhile_may_start_slowly():
    found = made(faults={"slow_start": {"last_s": 4, "factor": 3}}, joins=[{"at_s": 10}])
    assert found[0].drag is None
    assert [found[2].drag(at) for at in (20.0, 22.0, 24.0, 99.0)] == [3.0, 2.0, 1.0, 1.0]


def test_hiccups_and_noise_come_as_often_as_they_should():
    faults = {"noise": 0.1, "hiccups": {"share": 0.1, "factor": 20}}
    (device, _) = made(faults=faults)
    drawn = [device.drag(0.0) for _ in range(2000)]
    assert sum(each > 10 for each in drawn) / 2000 == pytest.approx(0.1, abs=0.03)
    assert sorted(drawn)[900] == pytest.approx(1.0, abs=0.05)


def callers(**changed):
    scenario = check(SCENARIO | changed)
    found = set_up(scenario, parse(SETTINGS))
    return Callers(TrafficPlan(scenario, None, found.gateways), found)


def ended(arrival, reason=None, retry_after_s=0.0):
    outcome = SimOutcome(arrival, reason=reason, retry_after_s=retry_after_s)
    if reason is None:
        outcome.answered_at = arrival.at
    return outcome


def test_arrivals_carry_the_tenants_terms_and_truncated_rows():
    arrival = next(callers(tenants={"a": {"leave_after_ms": 30}}).arrivals())
    assert arrival.lengths == (512,)
    assert (arrival.tenant, arrival.weight, arrival.priority) == ("a", 3.0, 0)
    assert arrival.leaves_at == pytest.approx(arrival.at + 0.03)


def test_refused_caller_waits_for_what_the_header_says():
    some = callers(tenants={"a": {"retry": {"attempts": 2, "jitter": False}}})
    first = next(some.arrivals())
    second = some.follow(ended(first, Reason.LATE, 0.2), 3.0)
    # Whole seconds, rounded up, and then its own pause.
    assert (second.at, second.attempt) == (pytest.approx(4.1), 2)
    assert some.follow(ended(second, Reason.LATE), 5.0) is None


def test_callers_own_fault_is_not_tried_again():
    some = callers(tenants={"a": {"retry": {"attempts": 2}}})
    assert some.follow(ended(next(some.arrivals()), Reason.TOO_LONG), 1.0) is None


def test_closed_loop_goes_on_after_an_answer_and_after_the_last_refusal():
    some = callers(arrivals={"process": "closed", "clients": 1}, tenants={"a": {}})
    (first,) = some.arrivals()
    for reason in (None, Reason.EXPIRED, Reason.LATE):
        following = some.follow(ended(replace(first), reason), 3.0)
        assert (following.at, following.attempt) == (3.0, 1)


def test_core_starts_from_the_profile_that_a_replica_would_have_measured():
    profile = setup().core.profile
    assert (1, 32, pytest.approx(0.006)) in profile
    assert (8, 32, pytest.approx(0.013)) in profile


def test_tenants_are_held_to_their_rates_at_each_gateway():
    settings = SETTINGS | {"tenants": {"a": {"rate": {"requests_per_s": 4}}, "b": {}}}
    scenario = check(SCENARIO)
    found = set_up(scenario, parse(settings))
    some = Callers(TrafficPlan(scenario, None, found.gateways), found)
    assert some.are_limited
    arrival = replace(next(some.arrivals()), tenant="a", gateway=0)
    waits = [some.door(arrival, 1.0) for _ in range(5)]
    assert waits[:4] == [0.0] * 4
    assert waits[4] == pytest.approx(0.5, abs=0.01)  # two a second at one of two gateways
    assert some.door(replace(arrival, gateway=1), 1.0) == 0.0
    assert some.door(replace(arrival, tenant="b"), 1.0) == 0.0
    assert not callers().are_limited


def test_a_model_of_images_is_simulated_by_their_lengths():
    settings = parse(
        {
            "models": {
                "digits": {
                    "runtime": "onnxruntime",
                    "source": "digits.onnx",
                    "task": "classify",
                    "image": {"size": [16, 32]},
                    "classify": {"top_k": 3},
                    "accept": {"max_abs": 0.1},
                }
            }
        }
    )
    scenario = check(SCENARIO | {"tenants": {}, "device": {"base_ms": 5}})
    assert set_up(scenario, settings).core.bucket_edges == (1, 4)


# ---- groups --------------------------------------------------------------------------------------

GROUPS = [
    {"name": "fast", "options": {"base_ms": 1}},
    {"name": "slow", "count": 3, "slots": 1, "overflow": {"after_ms": 50}},
]


def of_groups(groups=GROUPS, **changed):
    device = SETTINGS["models"]["device"]
    device = device | {"replicas": device["replicas"] | {"groups": groups}}
    settings = parse(SETTINGS | {"models": {"device": device}})
    scenario = check(SCENARIO | changed)
    found = set_up(scenario, settings)
    return found, devices(scenario, found)


def test_replicas_of_each_group_are_as_fast_and_as_many_as_its_settings_say():
    _, made_of = of_groups()
    assert [(each.replica_id, each.group, each.slots) for each in made_of] == [
        ("fast-0", "fast", 3), ("fast-1", "fast", 3),
        ("slow-2", "slow", 1), ("slow-3", "slow", 1), ("slow-4", "slow", 1),
    ]  # fmt: skip
    assert made_of[0].service_s(4, 10) == pytest.approx(0.001)
    assert made_of[2].service_s(4, 10) == pytest.approx(0.009)


def test_the_core_starts_from_what_each_groups_replicas_would_have_measured():
    fast, slow = of_groups()[0].core.groups
    assert (fast.name, fast.after_s, slow.name, slow.after_s) == ("fast", 0.0, "slow", 0.05)
    assert min(seconds for *_, seconds in fast.profile) == pytest.approx(0.001)
    assert min(seconds for *_, seconds in slow.profile) == pytest.approx(0.006)


def test_who_joins_is_of_the_first_group():
    _, made_of = of_groups(joins=[{"at_s": 5}])
    assert (made_of[-1].group, made_of[-1].joins_at) == ("fast", 15)


@pytest.mark.parametrize("changed", [{"device": {"base_ms": 1}}, {"replicas": 4}])
def test_a_scenario_does_not_say_what_groups_say(changed):
    with pytest.raises(SimSetupError, match="must be left out; device has groups"):
        of_groups(**changed)
