"""What wakes a model that sleeps, with how many, and what does not."""

from autoscaling.settings import GroupTerms, ModelTerms, PolicySettings
from autoscaling.types import DemandReading, Reason
from tests.autoscaling.fake_cluster import FakeCluster, of_group


def sleeper(*groups, **policy):
    listed = groups or (GroupTerms("", 0, 20),)
    return ModelTerms("m", 0.5, listed, policy=PolicySettings(idle_s=60.0, **policy))


def asleep(**given):
    cluster = FakeCluster(sleeper(), hot=0, **given)
    cluster.run(120, 0.0)
    assert cluster.target() == 0
    return cluster


def test_hour_asleep_with_a_restart_a_new_gateway_and_frozen_counters_wakes_nobody():
    cluster = asleep()
    cluster.models["m"].offered["gateway-1"], cluster.models["m"].requests["gateway-1"] = 50.0, 99
    cluster.core.gateway_gone("gateway-1")
    cluster.run(900, 0.0)
    state = cluster.core.save(cluster.now)
    cluster.core = type(cluster.core)(cluster.settings, cluster.now)
    cluster.core.load(state, cluster.now)
    cluster.run(900, 0.0)
    cluster.gateways.append("gateway-2")
    cluster.run(900, 0.0)
    cluster.core.set_described("m", True)
    cluster.run(900, 0.0)
    assert cluster.changes == []
    assert cluster.reasons() <= {Reason.ASLEEP, Reason.UNKNOWN}


def test_one_request_wakes_one():
    cluster = asleep()
    cluster.run(1, lambda t: 0.0)
    cluster.models["m"].requests["gateway-1"] += 1
    cluster.models["m"].offered["gateway-1"] += 0.05
    cluster.run(1, 0.0)
    assert cluster.target() == 1
    assert cluster.last().reason is Reason.AWAKE


def test_many_callers_wake_as_many_as_they_need_at_once():
    cluster = asleep()
    cluster.run(3, 5.0)
    assert 6 <= cluster.target() <= 14
    assert cluster.changes[0][3] >= 4


def test_fifty_who_wait_do_not_wake_fifty():
    cluster = asleep()
    cluster.models["m"].requests["gateway-1"] += 50
    cluster.models["m"].offered["gateway-1"] += 2.5
    cluster.models["m"].backlog = 2.5
    cluster.run(2, 0.0)
    assert 2 <= cluster.target() <= 5


def test_first_is_of_a_group_that_is_no_reserve():
    groups = (GroupTerms("reserve", 0, 4, reserve=True), GroupTerms("own", 0, 4))
    cluster = FakeCluster(sleeper(*groups), hot=0)
    cluster.run(90, 0.0)
    cluster.run(1, 0.2)
    assert (cluster.target(group="own"), cluster.target(group="reserve")) == (1, 0)


def test_request_while_it_starts_keeps_it_awake_and_it_sleeps_again():
    cluster = asleep(start_s=30.0)
    cluster.run(2, 0.5)
    assert cluster.target() >= 1
    cluster.run(40, 0.1)
    assert cluster.group().hot >= 1
    cluster.run(100, 0.0)
    assert cluster.target() == 0


def test_last_one_stays_before_the_idle_time_is_over():
    cluster = FakeCluster(sleeper(down_window_s=20.0), hot=1)
    cluster.run(60, 0.1)
    cluster.run(50, 0.0)
    assert cluster.target() == 1
    cluster.run(20, 0.0)
    assert cluster.target() == 0


def test_silence_is_not_idleness():
    cluster = FakeCluster(sleeper(), hot=1)
    cluster.run(60, 0.1)
    cluster.silent.add("gateway-1")
    cluster.run(600, 0.0)
    assert cluster.target() == 1


def test_model_with_a_minimum_never_sleeps():
    groups = (GroupTerms("a", 0, 4), GroupTerms("b", 1, 4))
    cluster = FakeCluster(sleeper(*groups, down_window_s=20.0), hot=1)
    cluster.run(1200, 0.0)
    assert cluster.target(group="b") == 1


def test_urgent_work_at_a_gateway_that_is_new_wakes():
    cluster = asleep()
    reading = DemandReading(0.05, 0.0025, 1, backlog_s=0.05, urgent=True)
    cluster.core.record_demand("gateway-9", "m", reading, cluster.now)
    decision = cluster.core.decide(cluster.now).models["m"]
    assert (decision.reason, of_group(decision).target) == (Reason.AWAKE, 1)


def test_it_does_not_sleep_while_an_answer_streams_nor_before_it_has_been_idle_since():
    cluster = FakeCluster(sleeper())
    cluster.models["m"].running = 1  # one stream, asked for before anybody counted
    cluster.run(900, 0.0)
    assert cluster.target() == 1
    cluster.models["m"].running = 0
    cluster.run(58, 0.0)
    assert cluster.target() == 1
    cluster.run(4, 0.0)
    assert cluster.target() == 0


def test_an_answer_that_still_streams_does_not_wake_what_sleeps():
    """Its replica drains; it was told to stop by hand."""
    cluster = asleep()
    cluster.models["m"].running = 1
    cluster.run(300, 0.0)
    assert cluster.target() == 0
