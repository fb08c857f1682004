"""All rollouts of a cluster, and what the registry shows of them."""

from __future__ import annotations

import pytest

from deployments.contract.registry import GatewaySnapshot
from deployments.contract.rollout.observations import Observations, VersionObservations
from deployments.contract.rollout.terms import RolloutTerms, canary_of, is_canary, model_of
from deployments.control.registry.registry import Registry

TERMS = RolloutTerms(shares=(0.5,), hold_s=1.0, least_requests=2)


@pytest.fixture
def registry(description) -> Registry:
    """A model and its canary, both announced."""
    registry = Registry(born_s=0.0)
    registry.declare(["m", "m@canary"], 0.0)
    registry.announce(description(name="m"), b"", 0.0)
    registry.announce(description(name="m@canary", version="2"), b"", 0.0)
    return registry


def test_names():
    assert (canary_of("m"), model_of("m@canary"), model_of("m")) == ("m@canary", "m", "m")
    assert is_canary("m@canary")
    assert not is_canary("m")


def test_the_view_says_who_goes_where_and_readiness_waits_for_no_canary(registry):
    assert registry.view().rollouts == {}
    registry.begin_rollout("m", TERMS, 1.0, 0.0)
    revision = registry.revision
    registry.look_at_rollouts(1.0)
    assert registry.revision > revision
    assert registry.view().rollouts["m"].share == 0.5
    assert registry.view().optional == {"m@canary"}


def test_what_gateways_push_moves_it_on(registry):
    number = registry.begin_rollout("m", TERMS, 1.0, 0.0)
    registry.look_at_rollouts(0.0)
    half = Observations(number, 0, canary=VersionObservations(answered=1), reached=1)
    for gateway in ("a", "b"):
        registry.push(gateway, GatewaySnapshot(rollouts=[half]), 1.0)
    registry.look_at_rollouts(1.5)
    (shown,) = registry.rollout_accounts(2.0)
    assert (shown["phase"], shown["canary"]["answered"]) == ("promoting", 2)
    assert (shown["live"]["version"], shown["canary"]["version"]) == ("1", "2")


def test_a_rollout_under_way_is_begun_once_and_another_gets_a_higher_number(registry):
    first = registry.begin_rollout("m", TERMS, 1.0, 0.0)
    assert registry.begin_rollout("m", TERMS, 2.0, 0.0) == first
    assert registry.abort_rollout("m", "enough")
    assert registry.begin_rollout("m", TERMS, 1.0, 0.0) > first


def test_what_is_not_there_cannot_be_decided(registry):
    assert not registry.promote("m", 0.0)
    assert not registry.finish_rollout("m")
    assert not registry.abort_rollout("m", "why")


def test_a_rollout_goes_with_its_canary(registry):
    registry.begin_rollout("m", TERMS, 1.0, 0.0)
    registry.declare(["m"], 1.0)
    assert registry.rollout_accounts(1.0) == []


def test_a_replica_finds_what_the_canary_has_measured(registry, description):
    measured = description(name="m@canary", version="2", digest="new", profile=((1, 8, 0.5),))
    registry.announce(measured, b"", 0.0)
    assert registry.profile("m", "new") == ((1, 8, 0.5),)
    assert registry.profile("m", "other") == ()
