"""A rollout's steps, on a time of the test's; and all of a cluster, in the registry."""

from __future__ import annotations

from collections import Counter

import pytest

from deployments.contract.registry import GatewaySnapshot
from deployments.contract.rollout.observations import Observations, VersionObservations
from deployments.contract.rollout.terms import RolloutTerms
from deployments.control.registry.registry import Registry
from deployments.control.registry.rollout import Rollout

TERMS = RolloutTerms(shares=(0.1, 0.5), hold_s=10.0, least_requests=20, away_s=5.0)


class Course:
    """A rollout with two announced versions, and a gateway that reaches the canary."""

    def __init__(self, description, terms: RolloutTerms = TERMS) -> None:
        self.rollout = Rollout("m", 7, terms, since_s=0.0)
        self.live, self.canary = description(name="m"), description(name="m@canary", version="2")
        self.reached = 1

    def look(self, now: float, answered: int = 0, failed: int = 0, copies: int = 0) -> bool:
        own = VersionObservations(answered, failed, Counter({"boom": failed}))
        said = Observations(
            7, self.rollout.step, canary=own, copies=VersionObservations(copies),
            reached=self.reached,
        )  # fmt: skip
        return self.rollout.look(now, self.live, self.canary, [said])


@pytest.fixture
def course(description) -> Course:
    return Course(description)


def test_it_waits_for_the_canary_to_be_announced_then_gives_the_first_share(course):
    course.canary, canary = None, course.canary
    assert not course.look(1.0)
    assert course.rollout.route is None
    course.canary = canary
    assert course.look(2.0)
    assert (course.rollout.route.share, course.rollout.route.canary) == (0.1, "m@canary")


def test_a_canary_that_costs_too_much_gets_no_request(course, description):
    course.live = description(profile=((1, 8, 0.01),))
    course.canary = description(profile=((1, 8, 0.09),))
    assert course.look(1.0)
    assert (course.rollout.phase, course.rollout.route) == ("aborted", None)
    assert "90 ms" in course.rollout.why


def test_a_step_lasts_its_time_and_its_requests(course):
    course.look(0.0)
    assert not course.look(9.9, answered=50)
    assert not course.look(11.0, answered=19)
    assert course.rollout.why == "waits for 1 more requests"
    assert course.look(12.0, answered=20)
    assert course.rollout.route.share == 0.5


def test_after_the_last_step_it_is_promoted_and_keeps_its_share_until_finished(course):
    course.look(0.0)
    course.look(10.0, answered=20)
    assert course.look(20.0, answered=20)
    assert (course.rollout.phase, course.rollout.route.share) == ("promoting", 0.5)
    assert course.rollout.finish()
    assert (course.rollout.phase, course.rollout.route) == ("promoted", None)
    assert not course.rollout.abort("late")


def test_failures_abort_while_it_is_promoted(course):
    course.look(0.0)
    course.look(10.0, answered=20)
    course.look(20.0, answered=20)
    assert not course.look(30.0, answered=100, failed=1)
    assert course.rollout.phase == "promoting"
    assert course.look(40.0, answered=100, failed=80)
    assert (course.rollout.phase, course.rollout.route) == ("aborted", None)
    assert course.rollout.why.startswith("80 of 180 requests failed")
    assert not course.rollout.finish()


def test_a_canary_that_goes_away_while_it_is_promoted_aborts(course):
    course.look(0.0)
    course.look(10.0, answered=20)
    course.look(20.0, answered=20)
    course.reached = 0
    assert not course.look(21.0)
    assert course.look(26.0)
    assert course.rollout.why == "it has had no replica for 5 s"


def test_one_that_is_promoted_by_hand_before_it_has_started_is_not_missed(course):
    course.reached, course.canary, canary = 0, None, course.canary
    assert course.rollout.promote(1.0)
    assert not course.look(2.0)
    assert not course.look(200.0)
    course.reached, course.canary = 1, canary
    assert not course.look(201.0, failed=4)
    assert course.look(202.0, failed=5)
    assert course.rollout.why.startswith("5 of 5 requests failed")


def test_what_gateways_said_of_the_step_before_counts_no_more(course):
    course.look(0.0)
    course.look(10.0, answered=20)
    old = Observations(7, 0, canary=VersionObservations(500), reached=1)
    assert not course.rollout.look(25.0, course.live, course.canary, [old])
    assert course.rollout.seen.canary.requests == 0


def test_failures_abort_at_once(course):
    course.look(0.0)
    assert course.look(1.0, answered=3, failed=6)
    assert (course.rollout.phase, course.rollout.route) == ("aborted", None)
    assert course.rollout.why.startswith("6 of 9 requests failed")
    assert not course.look(30.0, answered=100)


def test_no_replica_for_a_while_aborts_and_one_that_is_back_in_time_does_not(course):
    course.look(0.0)
    course.reached = 0
    assert not course.look(1.0)
    assert not course.look(5.9)
    course.reached = 1
    course.look(6.5)
    course.reached = 0
    assert not course.look(7.0)
    assert course.look(12.0)
    assert course.rollout.why == "it has had no replica for 5 s"


def test_copies_come_first_and_count_for_the_step_without_a_share(description):
    terms = RolloutTerms(shares=(0.0, 0.5), hold_s=1.0, least_requests=10, shadow=1.0)
    course = Course(description, terms)
    course.look(0.0)
    assert (course.rollout.route.share, course.rollout.route.shadow) == (0.0, 1.0)
    assert not course.look(2.0, answered=10)
    assert course.look(3.0, copies=10)
    assert course.rollout.route.share == 0.5


def test_by_hand_it_is_promoted_or_aborted_once(course):
    course.look(0.0)
    assert course.rollout.promote(1.0)
    assert not course.rollout.promote(2.0)
    assert course.rollout.abort("cannot start in its place")
    assert course.rollout.why == "cannot start in its place"
    assert not course.rollout.finish()


SHORT_TERMS = RolloutTerms(shares=(0.5,), hold_s=1.0, least_requests=2)


@pytest.fixture
def registry(description) -> Registry:
    """A model and its canary, both announced."""
    registry = Registry(born_s=0.0)
    registry.declare(["m", "m@canary"], 0.0)
    registry.announce(description(name="m"), b"", 0.0)
    registry.announce(description(name="m@canary", version="2"), b"", 0.0)
    return registry


def test_the_view_says_who_goes_where_and_readiness_waits_for_no_canary(registry):
    assert registry.view().rollouts == {}
    registry.begin_rollout("m", SHORT_TERMS, 1.0, 0.0)
    revision = registry.revision
    registry.look_at_rollouts(1.0)
    assert registry.revision > revision
    assert registry.view().rollouts["m"].share == 0.5
    assert registry.view().optional == {"m@canary"}


def test_what_gateways_push_moves_it_on(registry):
    number = registry.begin_rollout("m", SHORT_TERMS, 1.0, 0.0)
    registry.look_at_rollouts(0.0)
    half = Observations(number, 0, canary=VersionObservations(answered=1), reached=1)
    for gateway in ("a", "b"):
        registry.push(gateway, GatewaySnapshot(rollouts=[half]), 1.0)
    registry.look_at_rollouts(1.5)
    (shown,) = registry.rollout_accounts(2.0)
    assert (shown["phase"], shown["canary"]["answered"]) == ("promoting", 2)
    assert (shown["live"]["version"], shown["canary"]["version"]) == ("1", "2")


def test_a_rollout_under_way_is_begun_once_and_another_gets_a_higher_number(registry):
    first = registry.begin_rollout("m", SHORT_TERMS, 1.0, 0.0)
    assert registry.begin_rollout("m", SHORT_TERMS, 2.0, 0.0) == first
    assert registry.abort_rollout("m", "enough")
    assert registry.begin_rollout("m", SHORT_TERMS, 1.0, 0.0) > first


def test_what_is_not_there_cannot_be_decided(registry):
    assert not registry.promote("m", 0.0)
    assert not registry.finish_rollout("m")
    assert not registry.abort_rollout("m", "why")


def test_a_rollout_goes_with_its_canary(registry):
    registry.begin_rollout("m", SHORT_TERMS, 1.0, 0.0)
    registry.declare(["m"], 1.0)
    assert registry.rollout_accounts(1.0) == []


def test_a_replica_finds_what_the_canary_has_measured(registry, description):
    measured = description(name="m@canary", version="2", digest="new", profile=((1, 8, 0.5),))
    registry.announce(measured, b"", 0.0)
    assert registry.profile("m", "new") == ((1, 8, 0.5),)
    assert registry.profile("m", "other") == ()
