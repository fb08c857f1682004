"""Slow replicas are left out, probed by copies, and taken back."""

import pytest

from routers.api.actions import Dispatch
from routers.api.events import Reconfigure
from routers.api.requests import LeaseEnd
from routers.api.settings import HedgeParameters, OutlierParameters

IDS = ("a", "b", "c", "d")


def sent(actions):
    return [each for each in actions if isinstance(each, Dispatch)]


class Pool:
    """Replicas `a` to `d`; `a` takes `factor` times the 10 ms of the others."""

    def __init__(self, start, factor=5.0, **outliers):
        self.factor, self.requests, self.used = factor, 0, []
        self.core = start(outliers=OutlierParameters(**outliers), hedge=HedgeParameters(budget=0.0))
        self.core.replicas(*IDS)

    def serve(self, rounds=1):
        """Four requests at once a round, all answered; the dispatches that this took."""
        for _ in range(rounds):
            leases = []
            for _ in range(4):
                self.requests += 1
                leases += sent(self.core.arrive(self.requests))
            while leases:
                lease = min(leases, key=self.takes_s)
                leases.remove(lease)
                self.used.append(lease)
                at = self.core.now + self.takes_s(lease)
                leases += sent(self.core.close(lease, at=at, service_s=self.takes_s(lease)))

    def takes_s(self, lease):
        return 0.01 * (self.factor if lease.replica_id == "a" else 1.0)

    def ejected(self):
        seen = self.core.dispatcher.snapshot(self.core.now).replicas
        return [each.replica_id for each in seen if each.ejected]


def test_a_slow_replica_is_ejected_and_not_used(start):
    pool = Pool(start, probe_s=1e9, max_probe_s=1e9)
    pool.serve(30)
    assert pool.ejected() == ["a"]
    pool.used.clear()
    pool.serve(5)
    assert "a" not in {lease.replica_id for lease in pool.used}


def test_one_slow_answer_ejects_nobody(start):
    pool = Pool(start, factor=1.0)
    pool.serve(10)
    (lease,) = sent(pool.core.arrive(1000))
    pool.core.close(lease, at=pool.core.now + 0.5, service_s=0.5)
    assert pool.ejected() == []


def test_the_third_slow_answer_in_a_row_ejects(start):
    pool = Pool(start, factor=1.0)
    pool.serve(10)
    pool.used.clear()
    pool.factor = 40.0
    slow = []
    while not pool.ejected():
        pool.serve()
        slow = [lease for lease in pool.used if lease.replica_id == "a"]
        assert len(slow) <= 3
    assert len(slow) == 3


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_a_replica_within_the_ratio_stays(start, factor):
    pool = Pool(start, factor=factor)
    pool.serve(40)
    assert pool.ejected() == []


def test_an_infinite_ratio_ejects_nobody(start):
    pool = Pool(start, eject_ratio=float("inf"))
    pool.serve(30)
    assert pool.ejected() == []


def test_no_more_than_the_share_is_ejected(start):
    pool = Pool(start, max_ejected=0.2)
    pool.serve(30)
    assert pool.ejected() == []


def test_an_ejected_replica_gets_a_copy_of_what_is_served_elsewhere(start):
    pool = Pool(start, probe_s=0.05, max_probe_s=0.05)
    pool.serve(40)
    probes = [lease for lease in pool.used if lease.copy_of]
    assert {lease.replica_id for lease in probes} == {"a"}
    assert pool.ejected() == ["a"]
    assert pool.core.dispatcher.snapshot(pool.core.now).probes == len(probes)


def test_it_is_back_once_its_pace_is_good_again(start):
    pool = Pool(start, probe_s=0.05, max_probe_s=0.05)
    pool.serve(30)
    pool.factor = 1.0
    pool.serve(400)
    assert pool.ejected() == []
    pool.used.clear()
    pool.serve(5)
    assert "a" in {lease.replica_id for lease in pool.used}


def test_probes_become_rarer_while_it_stays_slow(start):
    often, seldom = (Pool(start, probe_s=0.05, max_probe_s=most) for most in (0.05, 10.0))
    for pool in (often, seldom):
        pool.serve(300)
    counts = [pool.core.dispatcher.snapshot(pool.core.now).probes for pool in (often, seldom)]
    assert counts[1] < 0.5 * counts[0]


def test_after_a_good_probe_the_next_ones_come_soon_again(start):
    pool = Pool(start, probe_s=0.02, max_probe_s=100.0)
    pool.serve(100)
    pool.used.clear()
    pool.factor = 1.0
    while not any(lease.copy_of for lease in pool.used):
        pool.serve()
    since = pool.core.now
    while pool.ejected():
        pool.serve()
        assert pool.core.now - since < 0.5


def test_a_probe_that_was_lost_is_repeated_later(start):
    pool = Pool(start, probe_s=0.05, max_probe_s=0.05)
    pool.serve(20)
    core = pool.core
    core.now += 1.0
    primary, probe = sent(core.arrive(1000))
    assert probe.replica_id == "a"
    core.close(probe, LeaseEnd.LOST)
    core.close(primary, at=core.now + 0.01, service_s=0.01)
    core.replicas(*IDS)
    core.now += 1.0
    assert [each.replica_id for each in sent(core.arrive(1001))][1:] == ["a"]


def test_ejected_replicas_serve_while_no_other_runs(start):
    pool = Pool(start)
    pool.serve(30)
    pool.core.replicas("a")
    assert [each.replica_id for each in sent(pool.core.arrive(1000))] == ["a"]


def test_while_frozen_nobody_is_ejected(start):
    pool = Pool(start)
    settings = pool.core.dispatcher._requests.settings
    frozen = type(settings)(settings.bucket_edges, frozen=True)
    pool.core.step(Reconfigure(frozen))
    pool.serve(30)
    assert pool.ejected() == []
