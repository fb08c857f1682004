"""What is told again, what is taken as said before."""

from __future__ import annotations

from deployments.gateway.queues.peer_demand import PeerDemand
from routers.staging import TELL_S

SOME, OTHER = ((0, "x", 1.0),), ((0, "x", 2.0),)


def test_what_waits_is_told_again_only_when_it_is_old() -> None:
    hearsay = PeerDemand()
    assert hearsay.tell("r", SOME, 0.0) == SOME
    assert hearsay.tell("r", OTHER, TELL_S / 2) is None
    assert hearsay.tell("r", OTHER, TELL_S) == OTHER


def test_each_replica_is_told() -> None:
    hearsay = PeerDemand()
    assert hearsay.tell("r", SOME, 0.0) == hearsay.tell("s", SOME, 0.0) == SOME


def test_that_nothing_waits_is_told_at_once() -> None:
    hearsay = PeerDemand()
    hearsay.tell("r", SOME, 0.0)
    assert hearsay.tell("r", (), 0.001) == ()


def test_what_may_not_have_arrived_is_told_again() -> None:
    hearsay = PeerDemand()
    hearsay.tell("r", SOME, 0.0)
    hearsay.not_heard("r")
    hearsay.not_heard("nobody")
    assert hearsay.tell("r", SOME, 0.001) == SOME


def test_an_answer_that_says_nothing_means_what_was_heard_before() -> None:
    hearsay = PeerDemand()
    assert hearsay.hear("r", None) == ()
    assert hearsay.hear("r", SOME) == SOME
    assert hearsay.hear("r", None) == SOME
    assert hearsay.hear("r", ()) == ()
    assert hearsay.hear("s", None) == ()


def test_replicas_that_are_gone_are_forgotten() -> None:
    hearsay = PeerDemand()
    hearsay.hear("r", SOME)
    hearsay.forget({"s"})
    assert hearsay.hear("r", None) == ()
