"""Leases by model and generation, what a view holds, and what a restart forgets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from deployments.contract.description import Generating, GroupDescription, ModelDescription
from deployments.contract.registry import (
    LEASE_S,
    RATES_KEEP_S,
    SNAPSHOT_KEEPS_S,
    CrashReport,
    GatewayExchange,
    GatewaySnapshot,
    ModelOutline,
    ModelSnapshot,
    PoolMember,
    ReplicaProgress,
)
from deployments.contract.rollout.observations import LiveCosts
from deployments.contract.rollout.terms import canary_of
from deployments.control.registry.registry import GATHERS_S, Registry

Describe = Callable[..., ModelDescription]


@pytest.fixture
def registry() -> Registry:
    registry = Registry(born_s=0.0)
    registry.declare(["device"], 0.0)
    return registry


def test_an_announced_model_is_in_the_view_until_its_lease_ends(
    registry: Registry, description: Describe
) -> None:
    registry.announce(description(), b"", 10.0)
    registry.sweep(10.0 + LEASE_S)
    assert list(registry.view().models) == ["device"]
    revision = registry.revision
    registry.sweep(10.001 + LEASE_S)
    assert registry.revision > revision
    assert registry.view().models == {}
    assert registry.view().declared == {"device"}


def test_a_renewed_lease_lives_on_and_changes_no_revision(
    registry: Registry, description: Describe
) -> None:
    registry.announce(description(), b"", 10.0)
    revision = registry.revision
    assert registry.renew("device", 1, 12.0)
    registry.sweep(12.0 + LEASE_S)
    assert registry.revision == revision


def test_an_unknown_lease_is_not_renewed(registry: Registry) -> None:
    assert not registry.renew("device", 1, 0.0)


def test_generations_grow_even_within_a_millisecond_and_across_restarts(
    registry: Registry,
) -> None:
    first, second = (
        registry.begin("device", 10.0, ModelOutline()),
        registry.begin("device", 10.0, ModelOutline()),
    )
    again = Registry(born_s=11.0).begin("device", 11.0, ModelOutline())
    assert first < second < again


def test_a_new_version_goes_before_the_old_one_though_the_clock_was_set_back(
    registry: Registry, description: Describe
) -> None:
    old = registry.begin("device", 5000.0, ModelOutline())
    restarted = Registry(born_s=0.0)
    restarted.declare(["device"], 0.0)
    restarted.announce(description(generation=old), b"", 0.0)
    new = restarted.begin("device", 5000.0 - 3600.0, ModelOutline())
    restarted.announce(description(generation=new), b"", 0.0)
    assert restarted.view().models["device"].generation == new > old


def test_an_old_anchor_never_withdraws_its_successor(
    registry: Registry, description: Describe
) -> None:
    registry.announce(description(generation=1), b"", 0.0)
    registry.announce(description(generation=2), b"", 0.0)
    assert registry.view().models["device"].generation == 2
    assert registry.withdraw("device", 1)
    assert registry.view().models["device"].generation == 2
    assert not registry.withdraw("device", 1)


def test_the_predecessor_counts_again_when_its_successor_goes(
    registry: Registry, description: Describe
) -> None:
    registry.announce(description(generation=1), b"", 0.0)
    registry.announce(description(generation=2), b"", 0.0)
    registry.withdraw("device", 2)
    assert registry.view().models["device"].generation == 1


def test_a_model_that_is_no_longer_declared_is_not_in_the_view(
    registry: Registry, description: Describe
) -> None:
    registry.announce(description(), b"", 0.0)
    registry.declare(["other"], 0.0)
    view = registry.view()
    assert (view.models, view.declared) == ({}, {"other"})


def test_every_change_that_gateways_must_hear_of_has_a_new_revision(
    registry: Registry, description: Describe
) -> None:
    seen = [registry.revision]
    for change in (
        lambda: registry.declare(["device", "other"], 0.0),
        lambda: registry.begin("device", 1.0, ModelOutline()),
        lambda: registry.announce(description(), b"", 1.0),
        lambda: registry.drain(True),
        lambda: registry.controller_ended(),
        lambda: registry.withdraw("device", 1),
    ):
        change()
        seen.append(registry.revision)
    assert seen == sorted(set(seen))
    assert (registry.view().draining, registry.view().controller_ends) == (True, 1)


def test_tokenisers_are_kept_while_somebody_uses_them(
    registry: Registry, description: Describe
) -> None:
    registry.announce(description(generation=1, tokenizer_digest="a"), b"bytes", 0.0)
    registry.announce(description(generation=2, tokenizer_digest="a"), b"bytes", 1.0)
    registry.withdraw("device", 1)
    assert registry.blobs == {"a": b"bytes"}
    registry.sweep(1.001 + LEASE_S)
    assert registry.blobs == {}


def test_a_view_is_whole_once_serve_was_heard_and_all_have_announced(description: Describe) -> None:
    registry = Registry(born_s=100.0)
    registry.announce(description(), b"", 100.0)
    assert not registry.view().complete
    registry.declare(["device", "late"], 100.0)
    assert not registry.view().complete
    revision = registry.revision
    registry.announce(description(name="late"), b"", 101.0)
    assert registry.view().complete
    assert registry.revision > revision


@pytest.mark.parametrize(("after_s", "complete"), [(GATHERS_S - 0.001, False), (GATHERS_S, True)])
def test_a_view_is_whole_once_everybody_had_the_time_to_announce(
    after_s: float, complete: bool
) -> None:
    registry = Registry(born_s=100.0)
    registry.declare(["device"], 100.0)
    revision = registry.revision
    registry.sweep(100.0 + after_s)
    assert registry.view().complete == complete
    assert (registry.revision > revision) == complete


def test_without_serves_list_no_view_is_ever_whole(description: Describe) -> None:
    registry = Registry(born_s=100.0)
    registry.announce(description(), b"", 100.0)
    registry.sweep(100.0 + LEASE_S)
    assert not registry.view().complete
    assert registry.view().declared == {"device"}


def test_the_same_list_again_is_nothing_to_hear_of(registry: Registry) -> None:
    revision = registry.revision
    registry.declare(["device"], 1.0)
    assert registry.revision == revision


def test_snapshots_of_gateways_that_went_are_dropped(registry: Registry) -> None:
    registry.push("g", GatewaySnapshot(), 0.0)
    registry.sweep(SNAPSHOT_KEEPS_S - 0.001)
    assert "g" in registry.gateways
    registry.sweep(SNAPSHOT_KEEPS_S)
    assert registry.gateways == {}


def test_a_gateway_hears_what_the_others_have_said_last(registry: Registry) -> None:
    rates, crashes = {"acme": [1.0]}, {"device": CrashReport(spent={"acme": {"r1": 1.0}})}
    said = GatewaySnapshot(rates=rates, crashes=crashes)
    assert registry.push("a", said, 0.0) == GatewayExchange()
    assert registry.push("b", GatewaySnapshot(), 0.0) == GatewayExchange(
        {"a": rates}, {"a": crashes}
    )
    assert registry.push("a", GatewaySnapshot(), 1.0) == GatewayExchange({"b": {}}, {"b": {}})
    assert registry.push("b", GatewaySnapshot(), 1.0) == GatewayExchange({"a": {}}, {"a": {}})


def test_a_gateway_that_misses_several_pushes_is_silent(registry: Registry) -> None:
    registry.push("a", GatewaySnapshot(), 0.0)
    registry.push("b", GatewaySnapshot(), 4.0)
    assert registry.silent_gateways(3.0) == {}
    assert registry.silent_gateways(5.0) == {"a": 5.0}


def test_a_gateway_that_is_silent_asks_for_no_share_and_its_crashes_count_on(
    registry: Registry,
) -> None:
    registry.push("a", GatewaySnapshot(), 0.0)
    assert registry.push("b", GatewaySnapshot(), RATES_KEEP_S) == GatewayExchange({}, {"a": {}})
    assert registry.push("b", GatewaySnapshot(), SNAPSHOT_KEEPS_S) == GatewayExchange()


def test_progress_is_kept_by_replica_and_failures_until_the_next_try(registry: Registry) -> None:
    registry.report(ReplicaProgress("device", "r1", "failed", 0.0, "no memory"))
    registry.report(ReplicaProgress("device", "r2", "staging", 0.1))
    registry.report(ReplicaProgress("device", "r2", "warming", 0.5))
    assert [p.phase for p in registry.progress.values()] == ["failed", "warming"]
    registry.forget_failures(["other"])
    assert [p.phase for p in registry.progress.values()] == ["failed", "warming"]
    registry.forget_failures(["device"])
    assert [p.phase for p in registry.progress.values()] == ["warming"]
    registry.declare(["other"], 0.0)
    assert not registry.progress


def test_gateways_hear_why_a_model_cannot_start_until_it_does(registry: Registry) -> None:
    def told(replica: str, phase: str, detail: str = "") -> tuple[bool, dict[str, str]]:
        before = registry.revision
        registry.report(ReplicaProgress("device", replica, phase, 0.0, detail))
        return registry.revision > before, registry.view().failures

    assert told("r1", "staging") == (False, {})
    assert told("r1", "failed", "no memory") == (True, {"device": "no memory"})
    assert told("r2", "staging") == (False, {"device": "no memory"})  # the next try is under way
    assert told("r2", "failed", "no memory") == (False, {"device": "no memory"})
    assert told("r3", "failed", "x" * 5000)[1] == {"device": "x" * 1000}
    assert told("r4", "ready") == (True, {})
    assert told("r5", "failed", "no memory")[0]
    registry.forget_failures(["device"])
    assert registry.view().failures == {}


def loads(replica: str, digest: str, phase: str = "warming") -> ReplicaProgress:
    return ReplicaProgress("device", replica, phase, 0.5, digest=digest)


def test_who_loads_beside_a_new_version_is_known_until_that_is_live(
    registry: Registry, description: Describe
) -> None:
    for each in (loads("r1", "new"), loads("r2", "new"), loads("r3", "live")):
        registry.report(each)
    assert registry.loading_beside("device", "new") == 0  # nothing is live: nobody waits
    registry.announce(description(digest="live"), b"", 0.0)
    assert registry.loading_beside("device", "new") == 2
    assert registry.loading_beside("device", "live") == 0
    registry.report(loads("r1", "new", "ready"))
    registry.report(loads("r2", "new", "failed"))
    assert registry.loading_beside("device", "new") == 0
    registry.report(loads("r4", "new", "staging"))
    assert registry.loading_beside("device", "new") == 1
    registry.announce(description(digest="new", generation=2), b"", 0.0)
    assert registry.loading_beside("device", "new") == 0


def test_notes_of_progress_are_bounded(registry: Registry) -> None:
    for index in range(3000):
        registry.report(ReplicaProgress("device", f"r{index}", "staging", 0.0))
    assert len(registry.progress) == 1024
    assert ("device", "r2999") in registry.progress


def test_an_anchor_adds_no_name_to_serves_list(registry: Registry, description: Describe) -> None:
    registry.begin("stray", 1.0, ModelOutline())
    registry.announce(description(name="stray"), b"", 10.0)
    assert registry.view().declared == {"device"}
    assert registry.view().models == {}


def test_anchors_tell_of_their_models_before_serve_was_heard(description: Describe) -> None:
    registry = Registry(born_s=0.0)
    registry.begin("device", 1.0, ModelOutline())
    registry.announce(description(name="other"), b"", 1.0)
    assert registry.view().declared == {"device", "other"}
    registry.declare(["device"], 1.0)
    assert registry.view().declared == {"device"}
    assert registry.view().models == {}


def test_an_anchor_says_who_stands_in_until_its_model_is_ready(registry: Registry) -> None:
    registry.begin("device", 1.0, ModelOutline(fallback="small"))
    assert registry.view().fallbacks == {"device": "small"}
    registry.begin("device", 2.0, ModelOutline())
    assert registry.view().fallbacks == {"device": ""}


def test_nobody_stands_in_for_what_is_not_declared(registry: Registry) -> None:
    registry.begin("stray", 1.0, ModelOutline(fallback="small"))
    registry.begin("device", 1.0, ModelOutline(fallback="small"))
    assert registry.view().fallbacks == {"device": "small"}
    registry.declare(["other"], 0.0)
    assert registry.view().fallbacks == {}


def member(model: str, replica: str = "p") -> PoolMember:
    return PoolMember(model, f"{replica}.{model}", replica, "d", "1", "h:1", 2, 0.02)


def test_pool_members_are_in_the_view_while_their_replica_says_so(registry: Registry) -> None:
    registry.hold("p", (member("a"), member("b")), 10.0)
    registry.hold("q", (member("a", "q"),), 10.0)
    assert registry.view().pool == {"a": (member("a"), member("a", "q")), "b": (member("b"),)}
    registry.hold("p", (member("b"),), 11.0)
    assert registry.view().pool == {"a": (member("a", "q"),), "b": (member("b"),)}
    registry.hold("p", (), 12.0)
    assert registry.view().pool == {"a": (member("a", "q"),)}


def test_a_pool_replica_that_is_silent_is_gone_when_its_lease_ends(registry: Registry) -> None:
    registry.sweep(GATHERS_S)
    registry.hold("p", (member("a"),), 10.0)
    revision = registry.revision
    registry.hold("p", (member("a"),), 12.0)
    registry.sweep(12.0 + LEASE_S)
    assert registry.revision == revision
    registry.sweep(12.001 + LEASE_S)
    assert registry.view().pool == {}
    assert registry.revision > revision


def test_a_pool_replica_that_holds_nothing_tells_nobody(registry: Registry) -> None:
    revision = registry.revision
    registry.hold("p", (), 10.0)
    assert (registry.pool, registry.revision) == ({}, revision)


def test_a_replica_that_starts_hears_what_others_of_its_settings_have_measured(
    registry: Registry, description: Describe
) -> None:
    assert registry.profile("device", "d") == ()
    registry.announce(description(digest="d", profile=((1, 4, 0.5),)), b"", 10.0)
    assert registry.profile("device", "d") == ((1, 4, 0.5),)
    assert registry.profile("device", "other") == ()
    group = GroupDescription(
        "cpu", "d-cpu", "synthetic", "fp32", "cpu", 2, 8, profile=((1, 8, 0.7),)
    )
    registry.announce(description(generation=2, digest="whole", groups=(group,)), b"", 10.0)
    assert registry.profile("device", "d-cpu") == ((1, 8, 0.7),)


def test_a_replica_that_generates_hears_what_others_have_measured_of_their_steps(
    registry: Registry, description: Describe
) -> None:
    measured = Generating(1000, 8000, 8, 16, profile=((1, 1, 0.02), (8, 8, 0.03)))
    registry.announce(description(digest="d", generating=measured), b"", 10.0)
    assert registry.profile("device", "d") == measured.profile
    group = GroupDescription(
        "gpu", "d-gpu", "vllm", "fp32", "cuda", 2, 8, generating=replace(measured, profile=())
    )
    registry.announce(description(generation=2, digest="whole", groups=(group,)), b"", 10.0)
    assert registry.profile("device", "d-gpu") == ()


def test_an_anchor_says_whether_its_model_is_optional(registry: Registry) -> None:
    registry.begin("device", 1.0, ModelOutline(optional=True))
    assert registry.view().optional == {"device"}
    registry.begin("device", 2.0, ModelOutline())
    assert registry.view().optional == frozenset()


def test_gateways_hear_of_aliases_and_of_their_end(registry: Registry) -> None:
    registry.begin("device", 1.0, ModelOutline(aliases=("org/device", "gpt-4o")))
    assert registry.view().aliases == {"org/device": "device", "gpt-4o": "device"}
    registry.begin("device", 2.0, ModelOutline(aliases=("gpt-4o",)))
    registry.begin(canary_of("device"), 3.0, ModelOutline(aliases=("gpt-4o",)))
    assert registry.view().aliases == {"gpt-4o": "device"}


def test_a_model_serves_from_its_announcement_until_its_last_anchor_goes(
    registry: Registry, description: Describe
) -> None:
    assert not registry.serves("device")
    registry.announce(description(generation=1), b"", 0.0)
    registry.announce(description(generation=2), b"", 0.0)
    registry.withdraw("device", 1)
    assert registry.serves("device")
    registry.withdraw("device", 2)
    assert not registry.serves("device")


PROFILE = ((1, 8, 0.010),)
COST_FIT = (0.001, 0.0, 0.0, 0.0)


def test_a_new_version_s_costs_are_compared_with_the_live_one_s_and_what_gateways_say(
    registry: Registry, description: Describe
) -> None:
    assert registry.live_costs("device", "", "new") is None
    registry.announce(description(profile=PROFILE), b"", 10.0)
    registry.push("g", GatewaySnapshot({"device": ModelSnapshot(cost_fit=COST_FIT)}), 10.0)
    registry.push("other", GatewaySnapshot(), 10.0)
    assert registry.live_costs("device", "", "new") == LiveCosts(PROFILE, (COST_FIT,))


def test_settings_that_have_served_are_never_compared_again(
    registry: Registry, description: Describe
) -> None:
    registry.announce(description(profile=PROFILE), b"", 10.0)
    assert registry.live_costs("device", "", "d") is None
    registry.announce(description(profile=PROFILE, digest="fast", generation=2), b"", 20.0)
    assert registry.live_costs("device", "", "d") is None
    assert registry.live_costs("device", "", "new") is not None


def test_what_has_served_as_a_canary_is_promoted_without_a_comparison(
    registry: Registry, description: Describe
) -> None:
    registry.declare(["device", "device@canary"], 0.0)
    registry.announce(description(profile=PROFILE), b"", 10.0)
    assert registry.live_costs("device@canary", "", "new") is None
    registry.announce(description(name="device@canary", digest="new"), b"", 10.0)
    assert registry.live_costs("device", "", "new") is None


def test_a_group_is_compared_with_its_own_past(registry: Registry, description: Describe) -> None:
    first = GroupDescription("fast", "f", "synthetic", "fp32", "cpu", 2, 8, profile=PROFILE)
    slow = replace(first, name="slow", digest="s", profile=((1, 8, 0.5),))
    registry.announce(description(groups=(first, slow)), b"", 10.0)
    registry.push("g", GatewaySnapshot({"device": ModelSnapshot(cost_fit=COST_FIT)}), 10.0)
    assert registry.live_costs("device", "fast", "new") == LiveCosts(PROFILE, (COST_FIT,))
    assert registry.live_costs("device", "slow", "new") == LiveCosts(slow.profile)
    assert registry.live_costs("device", "fast", "f") is None
    for unknown in ("another", ""):
        assert registry.live_costs("device", unknown, "new") is None


def test_of_many_settings_the_last_ones_are_remembered(
    registry: Registry, description: Describe
) -> None:
    for number in range(40):
        registry.announce(description(digest=f"d{number}", generation=number), b"", 10.0)
    assert registry.live_costs("device", "", "d0") is not None
    assert registry.live_costs("device", "", "d8") is None
    registry.declare([], 11.0)
    assert registry.served == {}
