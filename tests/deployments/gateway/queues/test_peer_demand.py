"""What waits is told when it is old, or when nothing waits any more; what was heard holds."""

from __future__ import annotations

from deployments.gateway.queues.lease_calls import PeerQueueDepth
from routers.shared.staging import REPORT_EVERY_S

SOME, OTHER = ((0, "x", 1.0),), ((0, "x", 2.0),)


def test_what_waits_is_told_again_only_when_it_is_old() -> None:
    peer_demand = PeerQueueDepth()
    assert peer_demand.to_report("r", SOME, 0.0) == SOME
    assert peer_demand.to_report("r", OTHER, REPORT_EVERY_S / 2) is None
    assert peer_demand.to_report("r", OTHER, REPORT_EVERY_S) == OTHER


def test_each_replica_is_told() -> None:
    peer_demand = PeerQueueDepth()
    assert peer_demand.to_report("r", SOME, 0.0) == peer_demand.to_report("s", SOME, 0.0) == SOME


def test_that_nothing_waits_is_told_at_once() -> None:
    peer_demand = PeerQueueDepth()
    peer_demand.to_report("r", SOME, 0.0)
    assert peer_demand.to_report("r", (), 0.001) == ()


def test_what_may_not_have_arrived_is_told_again() -> None:
    peer_demand = PeerQueueDepth()
    peer_demand.to_report("r", SOME, 0.0)
    peer_demand.report_lost("r")
    peer_demand.report_lost("nobody")
    assert peer_demand.to_report("r", SOME, 0.001) == SOME


def test_an_answer_that_says_nothing_means_what_was_heard_before() -> None:
    peer_demand = PeerQueueDepth()
    assert peer_demand.update("r", None) == ()
    assert peer_demand.update("r", SOME) == SOME
    assert peer_demand.update("r", None) == SOME
    assert peer_demand.update("r", ()) == ()
    assert peer_demand.update("s", None) == ()


def test_replicas_that_are_gone_are_forgotten() -> None:
    peer_demand = PeerQueueDepth()
    peer_demand.update("r", SOME)
    peer_demand.forget({"s"})
    assert peer_demand.update("r", None) == ()
