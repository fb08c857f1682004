"""What all models together are decided, and what may never happen."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.autoscaler import Autoscaler
from autoscaling.settings import (
    Budget,
    GroupTerms,
    Mode,
    ModelTerms,
    Needs,
    PolicySettings,
    PoolTerms,
    ScalingSettings,
)
from autoscaling.types import (
    DemandReading,
    GroupReading,
    PoolReading,
    Reason,
    ResidentReading,
    StartReading,
    State,
)
from tests.autoscaling.fake_cluster import FakeCluster, of_group

GPU = Needs((("GPU", 1.0),), 2.0)


def model(name="m", least=1, most=20, *groups, priority=0, **policy):
    listed = groups or (GroupTerms("", least, most, needs=GPU),)
    return ModelTerms(name, 0.5, listed, priority=priority, policy=PolicySettings(**policy))


def budgeted(*models, **bounds):
    budget = Budget(tuple(bounds.items()))
    return ScalingSettings({each.name: each for each in models}, budget)


# -- what holds


def test_fixed_model_is_decided_without_a_reading():
    core = Autoscaler(ScalingSettings({"m": model(least=3, most=3)}))
    decision = core.decide(5.0).models["m"]
    assert (decision.reason, of_group(decision).target) == (Reason.FIXED, 3)


def test_mode_off_keeps_the_minimum():
    cluster = FakeCluster(model(mode=Mode.OFF), hot=1)
    cluster.run(120, 9.0)
    assert (cluster.target(), cluster.reasons()) == (1, {Reason.FIXED})


def test_model_of_which_nothing_was_said_has_no_target():
    core = Autoscaler(ScalingSettings({"m": model()}))
    decision = core.decide(5.0).models["m"]
    assert (decision.reason, decision.groups) == (Reason.UNKNOWN, ())
    assert "No number yet" in decision.text


def test_observed_decisions_are_shown_and_counted_by_nobody():
    settings = budgeted(model("m", mode=Mode.OBSERVE), model("n"), GPU=6.0)
    cluster = FakeCluster(settings=settings)
    cluster.run(120, 9.0)
    cluster.run(60, 4.0, model="n")
    assert cluster.last().observed
    assert cluster.target() > 6
    assert cluster.group().target == 1
    assert cluster.target("n") == 5


def test_frozen_numbers_hold_and_nothing_is_learnt():
    cluster = FakeCluster(model(), hot=3)
    cluster.run(120, 2.0)
    before = cluster.core.save(cluster.now)["models"]["m"]["planning"]["forecast"]
    cluster.core.frozen(True)
    cluster.core.record_start(StartReading("m", "", State.COLD, 999.0))
    cluster.run(300, 12.0)
    assert cluster.target() == 3
    assert cluster.last().reason is Reason.FROZEN
    after = cluster.core.save(cluster.now)["models"]["m"]
    assert after["planning"]["forecast"] == before
    assert after["starts"]["seconds"] == {"cold": [30.0]}
    cluster.core.frozen(False)
    cluster.run(30, 12.0)
    assert cluster.target() > 12


def test_runs_not_observed_for_five_seconds_hold():
    cluster = FakeCluster(model(), hot=3)
    cluster.run(60, 2.0)
    cluster.blind = True
    cluster.run(6, 2.0)
    cluster.run(60, 12.0)
    assert cluster.target() == 3
    assert "running replicas have not been reported" in cluster.last().text


def test_gateway_that_is_silent_stops_downs_and_not_ups():
    cluster = FakeCluster(model(down_window_s=30.0), gateways=("a", "b"), hot=6)
    cluster.run(300, 4.0)
    cluster.silent.add("b")
    cluster.run(60, 1.0)
    assert cluster.target() == 6
    cluster.run(10, 30.0)
    assert cluster.target() > 10


def test_bounds_that_shrink_are_kept_at_once():
    cluster = FakeCluster(model(), hot=8)
    cluster.run(60, 5.0)
    settings = ScalingSettings({"m": model(most=4)})
    cluster.settings = settings
    cluster.core.reconfigure(settings, cluster.now)
    cluster.run(1)
    assert cluster.target() == 4


def test_pin_beyond_the_bounds_is_cut_to_them():
    cluster = FakeCluster(model(most=4), hot=1)
    cluster.core.pin("m", "", 9, cluster.now)
    cluster.run(5, 1.0)
    assert cluster.target() == 4


def test_pin_of_one_group_leaves_the_other_automatic():
    groups = (GroupTerms("gpu", 0, 6), GroupTerms("cpu", 0, 20))
    cluster = FakeCluster(model("m", 1, 1, *groups), hot=1)
    cluster.core.pin("m", "gpu", 2, cluster.now)
    cluster.run(120, 6.0)
    assert cluster.target(group="gpu") == 2
    assert cluster.target(group="cpu") >= 5


def test_pin_of_what_is_not_there_says_so():
    core = Autoscaler(ScalingSettings({"m": model()}))
    with pytest.raises(ValueError, match="model 'm' has no group 'gpu'"):
        core.pin("m", "gpu", 2, 0.0)
    with pytest.raises(ValueError, match="is -1; must be at least 0"):
        core.pin("m", "", -1, 0.0)


# -- what changes


def test_rising_demand_is_followed_up():
    cluster = FakeCluster(model(), hot=3)
    cluster.run(1800, lambda t: 2.0 + 6.0 * t / 1800.0)
    assert 9 <= cluster.target() <= 13
    assert cluster.refused_share() < 0.01


def test_burst_starts_replicas_within_seconds_and_they_go_after_it():
    cluster = FakeCluster(model(), hot=5)
    cluster.run(1200, 3.0)
    cluster.run(10, 12.0)
    assert cluster.target() >= 12
    assert cluster.reasons() & {Reason.SPIKE, Reason.BACKLOG}
    cluster.run(50, 12.0)
    cluster.run(240, 3.0)
    assert cluster.target() <= 6


def test_refused_demand_is_not_learnt_as_what_there_is():
    """What is refused was offered: the plan follows the offered work, whatever was served."""
    cluster = FakeCluster(model(most=3), hot=3)
    cluster.run(1200, 8.0)
    assert cluster.refused_share() > 0.3
    assert cluster.last().planned_s > 7.5
    assert cluster.last().groups[0].wanted == 3


def test_every_decision_has_a_sentence_with_numbers():
    cluster = FakeCluster(model(), hot=3)
    cluster.run(600, 2.0)
    cluster.run(60, 9.0)
    for _, _, decision in cluster.log:
        assert decision.text.endswith(".")
        assert any(letter.isdigit() for letter in decision.text)


def test_decision_says_time_to_capacity_as_measured():
    cluster = FakeCluster(model(), start_s=12.0)
    cluster.run(10, 0.5)
    assert cluster.last().time_to_capacity_s == pytest.approx(14.0)


def test_start_that_never_ends_does_not_keep_the_others_for_ever():
    cluster = FakeCluster(model(down_window_s=60.0), hot=6)
    cluster.run(120, 4.0)
    cluster.group().starting = [float("inf")]
    cluster.group().target += 1
    cluster.core.pin("m", "", cluster.group().target, cluster.now)
    cluster.run(1, 4.0)
    cluster.core.pin("m", "", None, cluster.now)
    cluster.run(590, 1.0)
    assert cluster.group().hot == 6
    cluster.run(1200, 1.0)
    assert cluster.target() <= 3


# -- shared bounds


def test_urgent_model_takes_what_there_is_and_the_other_is_told_why():
    settings = budgeted(model("m", priority=0), model("n", priority=1), GPU=8.0)
    cluster = FakeCluster(settings=settings)
    cluster.models["n"].rate = lambda t: 6.0
    cluster.run(120, 4.0)
    assert cluster.target("m") >= 5
    assert cluster.target("m") + cluster.target("n") == 8
    assert cluster.last("n").reason is Reason.BUDGET
    assert "GPU" in cluster.last("n").text
    assert of_group(cluster.last("n")).wanted > cluster.target("n")


def test_clusters_own_resources_bound_as_well():
    cluster = FakeCluster(model())
    cluster.core.cluster({"GPU": 3.0})
    cluster.run(120, 9.0)
    assert cluster.target() == 3
    cluster.core.cluster(None)
    cluster.run(30, 9.0)
    assert cluster.target() > 9


def test_reserve_steps_in_for_what_cannot_be_placed():
    groups = (GroupTerms("gpu", 0, 10), GroupTerms("cpu", 0, 10, reserve=True))
    cluster = FakeCluster(model("m", 1, 1, *groups), hot=0)
    cluster.group(group="gpu").places = 2
    cluster.run(60, 4.0)
    assert cluster.target(group="cpu") == 0
    cluster.run(120, 4.0)
    assert cluster.target(group="cpu") >= 2


# -- the pool


def pooled(**terms):
    models = {
        name: ModelTerms(name, 0.5, (GroupTerms("", 0, 5),), in_pool=True) for name in ("a", "b")
    }
    return ScalingSettings(models, pool=PoolTerms(min=1, max=4, **terms))


def test_pool_holds_the_model_whose_requests_nothing_can_take():
    core = Autoscaler(pooled())
    core.pool(PoolReading("p", (), 1 << 30), 0.0)
    for name in ("a", "b"):
        core.record_replicas(name, (GroupReading("", 0),), 0.0)
    core.record_demand("g", "b", DemandReading(0.1, 0.01, 1, backlog_s=0.1, urgent=True), 0.0)
    decided = core.decide(0.0)
    assert decided.pool.replicas == 1
    assert decided.pool.residents == {"p": ("b",)}


def test_frozen_pool_keeps_what_it_holds():
    core = Autoscaler(pooled())
    held = ResidentReading("a", True, 100, 1.0, -1e6, False)
    core.pool(PoolReading("p", (held,), 0), 0.0)
    core.frozen(True)
    core.record_demand("g", "b", DemandReading(0.1, 0.01, 1, backlog_s=0.1, urgent=True), 0.0)
    assert core.decide(0.0).pool.residents == {"p": ("a",)}
    core.pool_gone("p")
    assert core.decide(1.0).pool.residents == {}


@pytest.mark.parametrize(("wake_s", "held"), [(2.0, "b"), (0.0, "a")])
def test_an_engine_that_slept_in_the_pool_is_priced_by_its_waking(wake_s, held):
    """It was loaded in 30 s, so without that it would stay for 300 s."""
    core = Autoscaler(pooled())
    for name in ("a", "b"):
        core.record_replicas(name, (GroupReading("", 0),), 0.0)
    serves = ResidentReading("a", True, 1 << 30, 30.0, -25.0, False, wake_s)
    core.pool(PoolReading("p", (serves,), 0), 0.0)
    core.record_demand("g", "b", DemandReading(0.1, 0.01, 1, backlog_s=0.1, urgent=True), 0.0)
    assert core.decide(0.0).pool.residents == {"p": (held,)}


def test_it_wakes_where_it_sleeps():
    core = Autoscaler(pooled())
    core.record_replicas("a", (GroupReading("", 0),), 0.0)
    core.pool(PoolReading("p", (ResidentReading("a", True, 9, 30.0, -1e3, False),), 9), 0.0)
    core.pool(PoolReading("p", (), 1 << 30), 0.0)
    core.pool(PoolReading("q", (), 1 << 30, {"a": 2.0}), 0.0)
    core.record_demand("g", "a", DemandReading(0.1, 0.01, 1), 0.0)
    core.record_demand("g", "a", DemandReading(0.6, 0.01, 6, backlog_s=0.5, urgent=True), 1.0)
    assert core.decide(1.0).pool.residents == {"p": (), "q": ("a",)}


def test_pool_comes_last_in_the_budget():
    settings = ScalingSettings(
        {"m": model(least=3, most=3)},
        Budget((("GPU", 4.0),)),
        PoolTerms(min=0, max=4, needs=GPU, auto=False),
    )
    decided = Autoscaler(settings).decide(0.0)
    assert decided.pool.replicas == 1
    assert "GPU" in decided.pool.text


@pytest.mark.parametrize(("cpus", "target"), [(2.0, 1), (3.0, 2)])
def test_pool_takes_a_spike_alone_where_the_budget_has_no_room_beside_it(cpus, target):
    one = Needs((("CPU", 1.0),))
    terms = ModelTerms("m", 0.5, (GroupTerms("", 1, 2, needs=one),), in_pool=True)
    pool = PoolTerms(min=1, max=1, needs=one)
    core = Autoscaler(ScalingSettings({"m": terms}, Budget((("CPU", cpus),)), pool))
    for second in range(12):
        now, work = float(second), 0.2 * second + 1.4 * max(0, second - 8)
        core.pool(PoolReading("p", (), 1 << 30), now)
        core.record_replicas("m", (GroupReading("", target=1, hot=1),), now)
        core.record_demand("g", "m", DemandReading(work, 0.05 * work, 20 * second), now)
        decided = core.decide(now)
    assert decided.pool.residents == {"p": ("m",)}
    assert of_group(decided.models["m"]).target == target
    assert (decided.models["m"].reason is Reason.BUDGET) == (target == 1)


# -- what may never happen


def test_saved_and_loaded_core_decides_alike():
    cluster = FakeCluster(model(), hot=3)
    cluster.run(1900, lambda t: 2.0 + t / 900.0)
    cluster.core.pin("m", "", 7, cluster.now)
    cluster.core.pin("m", "", None, cluster.now)
    state = json.loads(json.dumps(cluster.core.save(cluster.now)))
    other = Autoscaler(cluster.settings, 0.0)
    other.load(state, 50.0)
    running = cluster.target()
    for second in range(1, 240):
        work = 4.2 * second
        for core, now in ((cluster.core, cluster.now + second), (other, 50.0 + second)):
            core.record_demand("new", "m", DemandReading(work, 0.1 * work, 20 * second), now)
            core.record_replicas("m", (GroupReading("", running, running),), now)
        cluster.core.gateway_gone("gateway-1")
        ours = cluster.core.decide(cluster.now + second).models["m"]
        theirs = other.decide(50.0 + second).models["m"]
        assert ours.groups == theirs.groups
        assert ours.planned_s == pytest.approx(theirs.planned_s, rel=0.02)


def test_state_of_a_model_that_is_listed_later_is_kept_until_then():
    cluster = FakeCluster(model(), start_s=17.0)
    state = cluster.core.save(cluster.now)
    core = Autoscaler(ScalingSettings(), 0.0)
    core.load(state, 5.0)
    core.reconfigure(cluster.settings, 6.0)
    assert core.save(6.0)["models"]["m"]["starts"]["seconds"] == {"cold": [17.0]}


def test_readings_of_models_that_are_not_listed_are_left_out():
    core = Autoscaler(ScalingSettings())
    core.record_demand("g", "gone", DemandReading(), 0.0)
    core.record_replicas("gone", (GroupReading(),), 0.0)
    core.record_start(StartReading("gone", "", State.COLD, 3.0))
    core.set_described("gone", True)
    assert core.decide(0.0).models == {}


STEPS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.05, 0.5, 2.0, 9.0, 60.0]),
        st.sampled_from([1, 5, 40]),
        st.sampled_from(["", "silent", "blind", "crash", "restart"]),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.slow
@given(STEPS, st.integers(0, 2), st.integers(2, 9), st.sampled_from([5.0, 40.0]))
def test_targets_stay_in_bounds_and_never_fall_while_one_starts(steps, least, most, start_s):
    """The fake cluster asserts both at every step; what is unknown changes nothing."""
    policy = {"down_window_s": 10.0, "hold_s": 5.0, "idle_s": 20.0}
    cluster = FakeCluster(model(least=least, most=most, **policy), start_s=start_s)
    for rate, seconds, fault in steps:
        cluster.silent = {"gateway-1"} if fault == "silent" else set()
        cluster.blind = fault == "blind"
        if fault == "crash" and cluster.group().hot:
            cluster.group().hot -= 1
            cluster.group().starting.append(cluster.now + start_s)
        if fault == "restart":
            state = json.loads(json.dumps(cluster.core.save(cluster.now)))
            cluster.core = Autoscaler(cluster.settings, cluster.now)
            cluster.core.load(state, cluster.now)
        held = len(cluster.changes)
        cluster.run(seconds, rate)
        if fault in ("silent", "blind"):
            late = [at for at, *_ in cluster.changes[held:] if at > cluster.now - seconds + 6.0]
            assert not late


@pytest.mark.slow
@given(STEPS, st.integers(0, 4), st.integers(1, 6))
def test_two_groups_in_a_budget_with_few_places_stay_in_bounds_and_within_it(
    steps, places, devices
):
    policy = {"down_window_s": 10.0, "hold_s": 5.0, "pending_limit_s": 15.0}
    groups = (
        GroupTerms("gpu", 0, 5, needs=GPU),
        GroupTerms("cpu", 1, 6, reserve=True, needs=Needs((("CPU", 1.0),))),
    )
    settings = budgeted(model("m", 0, 0, *groups, **policy), GPU=float(devices))
    cluster = FakeCluster(settings=settings, start_s=8.0, hot=1)
    cluster.group(group="gpu").places = places
    for rate, seconds, _ in steps:
        cluster.run(seconds, rate)
        assert cluster.target(group="gpu") <= devices


def test_pool_replica_that_goes_still_holds_its_device():
    settings = ScalingSettings(
        {"m": model(least=0, most=8)},
        Budget((("GPU", 4.0),)),
        PoolTerms(min=1, max=1, needs=GPU),
    )
    core = Autoscaler(settings)
    core.set_described("m", True)
    core.record_replicas("m", (GroupReading("", target=8, hot=2),), 0.0)
    for replica in ("p", "q"):
        core.pool(PoolReading(replica), 0.0)
    assert of_group(core.decide(0.0).models["m"]).target == 2


def test_what_an_observed_model_runs_is_given_to_nobody_else():
    settings = budgeted(model("m", mode=Mode.OBSERVE, priority=1), model("n"), GPU=6.0)
    core = Autoscaler(settings)
    core.record_replicas("m", (GroupReading("", target=4, hot=4),), 0.0)
    core.record_replicas("n", (GroupReading("", target=5, hot=2),), 0.0)
    decided = core.decide(0.0).models
    assert (of_group(decided["m"]).target, of_group(decided["n"]).target) == (4, 2)


def test_size_and_load_time_of_a_model_are_known_after_the_pool_let_it_go():
    core = Autoscaler(pooled(memory_bytes=100))
    held = ResidentReading("a", True, 10, 1.0, 0.0, False)
    core.pool(PoolReading("p", (held,), 90), 0.0)
    core.pool(PoolReading("p", (ResidentReading("b", True, 60, 1.0, 0.0, True),), 40), 1.0)
    for name in ("a", "b"):
        core.record_replicas(name, (GroupReading("", 0),), 1.0)
    core.record_demand("g", "a", DemandReading(0.1, 0.01, 1, backlog_s=0.1, urgent=True), 1.0)
    assert core.decide(1.0).pool.residents == {"p": ("a", "b")}


def test_what_a_spike_ordered_and_finds_no_place_is_not_taken_back_while_it_lasts():
    cluster = FakeCluster(model(pending_limit_s=5.0, forecast=False))
    cluster.run(300, 1.0)
    cluster.group().places = 3
    targets = []
    for _ in range(30):
        cluster.run(1, 6.0)
        targets.append(cluster.target())
    assert targets == sorted(targets)
    assert cluster.last().reason is Reason.UNPLACED
