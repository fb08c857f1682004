"""What users of other autoscalers complained of, as far as a core without a cluster can show it."""

from __future__ import annotations

from time import process_time

import pytest

from autoscaling.autoscaler import Autoscaler
from autoscaling.settings import (
    Budget,
    GroupTerms,
    ModelTerms,
    Needs,
    PolicySettings,
    ScalingSettings,
)
from autoscaling.types import DemandReading, GroupReading, Reason
from tests.autoscaling.fake_cluster import FakeCluster


def model(least=1, most=20, **policy):
    return ModelTerms("m", 0.5, (GroupTerms("", least, most),), policy=PolicySettings(**policy))


def test_nothing_running_and_nothing_heard_holds_the_target():
    """ray#61731: scaled to the maximum with no traffic while no replica ran."""
    cluster = FakeCluster(model(least=1), hot=4)
    group = cluster.group()
    group.hot, group.starting = 0, [cluster.now + 60.0] * 4
    cluster.silent.add("gateway-1")
    cluster.run(50)
    assert cluster.target() == 4
    assert cluster.reasons() == {Reason.UNKNOWN}


def test_cancelled_work_is_no_load():
    """ray#61551, ray#44045: phantom ongoing requests kept replicas. Demand is a counter of what
    arrives, so what has ended otherwise leaves nothing behind."""
    cluster = FakeCluster(model(down_window_s=120.0), hot=6)
    cluster.run(120, 3.0)
    cluster.run(1200, 0.0)
    assert cluster.target() == 1


@pytest.mark.slow
def test_step_up_and_down_is_followed_without_thrashing():
    """ray#26455: replicas went up and down again within minutes."""
    cluster = FakeCluster(model(), hot=3)
    cluster.run(1200, 2.0)
    cluster.changes.clear()
    cluster.run(1800, 8.0)
    cluster.run(3600, 2.0)
    assert cluster.reversals() <= 1


def test_single_sample_does_not_rule():
    """ray#46497: of ongoing requests 2, 2, 15, 2 the last sample decided."""
    cluster = FakeCluster(model(), hot=3)
    cluster.run(600, 2.0)
    before = cluster.target()
    cluster.run(60, lambda t: 3.0 if t == 30 else 2.0)
    assert cluster.target() == before


def test_nothing_goes_while_a_replica_starts():
    """ray#43034: RUNNING replicas were killed before STARTING ones; kserve#1247: a slow start was
    scaled away before it ended. The fake cluster asserts it at every step."""
    cluster = FakeCluster(model(down_window_s=60.0, hold_s=10.0), start_s=300.0, hot=2)
    cluster.run(300, 1.0)
    cluster.run(60, 6.0)
    assert cluster.group().starting
    hot = cluster.group().hot
    cluster.run(200, 0.5)
    assert cluster.group().starting
    assert cluster.group().hot == hot


def test_what_was_learnt_survives_new_settings_and_a_restart():
    """ray#58999, ray#62482: a policy's state was lost with every apply and restart."""
    cluster = FakeCluster(model(), hot=6)
    cluster.run(3600, lambda t: 3.0 + t / 3600.0)
    learnt = cluster.core.save(cluster.now)["models"]["m"]["planning"]
    other = ScalingSettings({"m": model(knee=0.7)})
    cluster.core.reconfigure(other, cluster.now)
    kept = cluster.core.save(cluster.now)["models"]["m"]["planning"]
    assert kept["forecast"]["smoothing"] == learnt["forecast"]["smoothing"]
    assert kept["forecast"].keys() == learnt["forecast"].keys()
    assert kept["forecast"]["minute"] == learnt["forecast"]["minute"] > 50


def test_first_request_after_an_idle_hour_wakes_and_waits():
    """kserve#2882, http-add-on#1492, #1692: the first request after a pause failed."""
    cluster = FakeCluster(model(least=0, idle_s=60.0), hot=0, start_s=20.0)
    cluster.run(3600, 0.0)
    assert cluster.target() == 0
    cluster.models["m"].backlog = 0.05
    cluster.run(2, 0.0)
    assert cluster.target() == 1
    assert cluster.last().reason is Reason.AWAKE
    cluster.run(25, 0.0)
    assert cluster.group().hot == 1
    assert cluster.models["m"].backlog == 0.0


def test_lost_metrics_hold_and_are_not_zero():
    """llm-d-autoscaling#385: missing metrics counted as no load; aibrix#593: stuck at load 0."""
    cluster = FakeCluster(model(down_window_s=60.0), hot=6)
    cluster.run(300, 4.0)
    before = cluster.target()
    cluster.silent.add("gateway-1")
    cluster.run(1800, 4.0)
    assert cluster.target() == before
    assert cluster.last().reason is Reason.UNKNOWN


@pytest.mark.slow
def test_steady_load_of_seven_tenths_on_two_stays_on_two():
    """dynamo#9294: 2, 1, 2, 1 … because one alone looked sufficient."""
    cluster = FakeCluster(model(), hot=2, request_s=0.02)
    cluster.run(600, 1.4)
    cluster.changes.clear()
    cluster.run(2 * 3600, 1.4)
    assert cluster.changes == []
    assert cluster.target() == 2


def test_unschedulable_replica_freezes_nothing():
    """dynamo#14251, aibrix#617: one that could not be placed stopped all scaling, down as well."""
    cluster = FakeCluster(model(down_window_s=120.0), hot=2)
    cluster.group().places = 4
    cluster.run(300, 2.0)
    cluster.run(300, 8.0)
    assert cluster.group().unplaced
    assert cluster.last().reason is Reason.UNPLACED
    assert "GPU: 1" in cluster.last().text
    asked = cluster.target()
    cluster.run(120, 16.0)
    assert cluster.target() == asked
    cluster.run(1200, 0.5)
    assert not cluster.group().unplaced
    assert cluster.target() <= 2


def test_fifty_models_are_decided_in_a_fraction_of_a_tick():
    """ray#61515: reports saturated the controller. 50 models, two gateways, one decision."""
    models = {
        f"m{n}": ModelTerms(f"m{n}", 0.5, (GroupTerms("", 1, 20, needs=Needs((("CPU", 1.0),))),))
        for n in range(50)
    }
    core = Autoscaler(ScalingSettings(models, Budget((("CPU", 400.0),))), 0.0)
    took = []
    for second in range(1, 80):
        for name in models:
            for gateway in ("a", "b"):
                reading = DemandReading(second * 1.0, second * 0.05, second * 20)
                core.record_demand(gateway, name, reading, float(second))
            core.record_replicas(name, (GroupReading("", 4, 4),), float(second))
        began = process_time()
        core.decide(float(second))
        took.append(process_time() - began)
    assert sorted(took)[len(took) // 2] < 0.02
