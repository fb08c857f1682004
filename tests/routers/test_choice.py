"""Which replica is used next, and which one a session prefers."""

from __future__ import annotations

import pytest

from routers.api.requests import Replica, ReplicaKind
from routers.api.settings import DispatcherSettings, GenerationParameters
from routers.batch.lease import BatchLease, BatchReplica, FormedBatch
from routers.estimates.groups import ReplicaGroup
from routers.policies.placement import FinishFirst
from routers.state.flows import Charge
from routers.state.ready_replicas import ReadyReplicas
from routers.state.replicas import Affinity
from routers.state.rows import Row
from routers.stream.lease import StreamReplica

pytestmark = pytest.mark.interpreted

NOW = 10.0
GROUP = ReplicaGroup("", 0, DispatcherSettings((16,)))
STREAMING = ReplicaGroup("", 0, DispatcherSettings((16,), generation=GenerationParameters()))


def idle(replica_id="a", ratio=1.0, last_used=0):
    replica = BatchReplica(Replica(replica_id, 2.0), GROUP)
    replica.slowdown, replica.last_used = ratio, last_used
    return replica


def running(replica_id, finish_at):
    replica = idle(replica_id)
    batch = FormedBatch([Row(None, 0, 1, 0, 1)], 1, 1, Charge((0, 0, 0.0), 1.0))  # type: ignore[arg-type]
    replica.took(BatchLease(1, replica, batch, NOW))
    replica.finish_at = finish_at
    return replica


def stream(replica_id, held, ratio=1.0):
    spec, group = Replica(replica_id, 100.0, ReplicaKind.STREAM), STREAMING
    assert group.engine is not None
    replica = StreamReplica(spec, group, group.engine)
    replica.held, replica.slowdown = held, ratio
    return replica


def ready(*by_id):
    among = ReadyReplicas(FinishFirst())
    for replica in by_id:
        among.place(replica, NOW)
    return among


def order(among, batch_s=0.01, spare=False):
    asked, GROUP.next_s = [], batch_s
    assert among.first(lambda replica: asked.append(replica), NOW, spare=spare) is None
    return [replica.spec.replica_id for replica in asked]


def first(*by_id, batch_s=0.01):
    among, GROUP.next_s = ready(*by_id), batch_s
    return among.first(lambda replica: replica.spec.replica_id, NOW)


def test_idle_replicas_of_one_pace_go_by_least_recent_use():
    assert order(ready(idle("a", last_used=3), idle("b", last_used=1), idle("c", last_used=2))) == [
        "b", "c", "a",
    ]  # fmt: skip


@pytest.mark.parametrize(("ratio", "chosen"), [(1.05, "a"), (0.95, "a"), (1.3, "b"), (0.7, "a")])
def test_pace_counts_beyond_a_tenth(ratio, chosen):
    assert first(idle("a", ratio=ratio, last_used=1), idle("b", last_used=2)) == chosen


def test_one_that_is_about_to_finish_beats_an_idle_slow_one():
    assert first(idle("a", ratio=1.9), running("b", NOW + 0.001)) == "b"


def test_an_idle_one_beats_one_that_has_yet_to_finish():
    assert first(running("a", NOW + 0.001), idle("b")) == "b"


def test_of_running_ones_the_earliest_to_finish_goes_first():
    assert order(ready(running("a", NOW + 0.2), running("b", NOW + 0.1))) == ["b", "a"]


def test_one_that_overruns_is_expected_to_go_on_for_as_long():
    late, later, due = running("a", NOW - 0.1), running("b", NOW - 0.3), running("c", NOW + 0.2)
    assert order(ready(late, later, due)) == ["a", "c", "b"]


def test_one_that_began_to_overrun_while_ready_moves_behind():
    among = ready(running("a", NOW + 0.1), running("b", NOW + 0.35))
    picked = among.first(lambda replica: replica.spec.replica_id, NOW + 0.3)
    assert picked == "b"


def test_other_gateways_work_counts():
    foreign = idle("a")
    foreign.foreign.until = NOW + 0.5
    foreign.predict_finish(NOW)
    assert first(foreign, idle("b", ratio=1.9)) == "b"
    assert foreign.finish_in_s(NOW, 0.01) == pytest.approx(0.51)


def test_the_emptiest_stream_goes_first_unless_it_is_slow():
    assert order(ready(stream("a", 50), stream("b", 20), stream("c", 90))) == ["b", "a", "c"]
    assert first(stream("a", 0, ratio=2.0), stream("b", 50)) == "b"


def test_sick_replicas_are_asked_only_when_told_to():
    unhealthy = idle("a")
    unhealthy.unhealthy = True
    among = ready(unhealthy)
    assert order(among) == []
    assert (among.count(spare=False), among.count(spare=True)) == (0, 1)
    assert order(among, spare=True) == ["a"]


def test_those_that_refused_stay_ready():
    among = ready(idle("a"), idle("b"))
    assert order(among) == order(among) == ["a", "b"]


def test_one_that_was_dropped_is_not_asked():
    gone, stays = idle("a"), idle("b")
    among = ready(gone, stays)
    among.drop(gone)
    assert gone not in among
    assert order(among) == ["b"]


def test_of_a_thousand_idle_replicas_few_are_asked_in_vain_and_one_in_success():
    among = ready(*[idle(str(n), last_used=n) for n in range(1000)])
    assert len(order(among)) <= 8
    asked = []
    assert among.first(lambda replica: asked.append(replica) or True, NOW)
    assert len(asked) == 1


def test_memory_is_bounded_by_who_is_ready_however_often_places_change():
    among, replica = ReadyReplicas(FinishFirst()), idle("a")
    for turn in range(1000):
        replica.last_used = turn
        among.place(replica, NOW)
    assert sum(len(heap) for heap in among._heaps) < 50


def test_a_session_prefers_the_replica_that_served_it_last():
    affinity = Affinity()
    affinity.served(["s"], "a")
    affinity.served(["s"], "b")
    assert affinity.preferred("s") == "b"


def test_no_session_is_no_preference():
    affinity = Affinity()
    affinity.served([""], "a")
    assert affinity.preferred("") is None
    assert len(affinity) == 0


def test_the_session_used_least_recently_is_forgotten():
    affinity = Affinity(most=2)
    affinity.served(["one", "two"], "a")
    affinity.served(["one"], "a")
    affinity.served(["three"], "a")
    assert [affinity.preferred(each) for each in ("one", "two", "three")] == ["a", None, "a"]


@pytest.mark.parametrize(
    ("later_s", "gives_way"), [(-1.0, False), (0.0, False), (0.1, False), (0.11, True)]
)
def test_it_yields_beyond_a_share_of_the_work(later_s, gives_way):
    assert Affinity.gives_way(later_s, 1.0) is gives_way
