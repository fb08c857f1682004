"""How a gateway follows the registry where a model has a canary: served, routed to, found by nobody
and waited for by nobody."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from fake_engines import until
from followed_registry import Following

from deployments.contract import errors
from deployments.contract.description import ModelDescription, Recording
from deployments.contract.rollout.terms import RolloutRoute, RolloutTerms

Describe = Callable[..., ModelDescription]
CANARY = "device@canary"
ROUTES = {"device": RolloutRoute(1, 0, CANARY, 0.5, 0.0, RolloutTerms())}


async def both(following: Following, description: Describe) -> ModelDescription:
    """The canary, as announced."""
    canary = description(
        name=CANARY, version="2", digest="e", recording=Recording("x", (8,), 1, 1, 1)
    )
    following.run(description())
    following.run(canary)
    await following.registry.tell(
        description(), canary, rollouts=ROUTES, optional=frozenset({CANARY})
    )
    return canary


async def test_a_canary_is_had_by_its_route_alone(
    following: Following, description: Describe
) -> None:
    canary = await both(following, description)
    catalogue = following.catalogue
    served = catalogue.canary(CANARY)
    assert served is not None
    assert served.description == replace(canary, name="device", recording=None)
    assert catalogue.routes == ROUTES
    with pytest.raises(errors.NotFound):
        catalogue.find(CANARY)
    assert set(catalogue.served) == {"device"}
    assert set(catalogue.queued) == {"device", CANARY}
    assert [d.version for d in catalogue.descriptions] == ["1"]
    assert catalogue.declared == {"device"}
    assert catalogue.find("device").description.version == "1"


async def test_nobody_waits_for_a_canary(following: Following, description: Describe) -> None:
    following.run(description())
    await following.registry.tell(
        description(), declared=CANARY, optional=frozenset({CANARY}), rollouts=ROUTES
    )
    assert following.catalogue.all_ready
    assert following.catalogue.waiting_for == []
    assert following.catalogue.canary(CANARY) is None


async def test_the_same_announcement_changes_nothing_and_another_version_goes_live(
    following: Following, description: Describe
) -> None:
    canary = await both(following, description)
    served = following.catalogue.canary(CANARY)
    await following.registry.tell(description(), canary, rollouts=ROUTES)
    assert following.catalogue.canary(CANARY) is served
    assert len(following.channels) == 2
    newer = replace(canary, version="3", digest="f", generation=2)
    following.run(newer)
    await following.registry.tell(description(), newer, rollouts=ROUTES)
    assert following.catalogue.canary(CANARY) is served
    assert served is not None
    assert served.description.version == "3"


async def test_a_canary_that_is_removed_is_closed(
    following: Following, description: Describe
) -> None:
    await both(following, description)
    served = following.catalogue.canary(CANARY)
    assert served is not None
    await following.registry.tell(description())
    assert following.catalogue.canary(CANARY) is None
    assert set(following.catalogue.queued) == {"device"}
    assert following.catalogue.routes == {}


async def test_a_canary_out_of_reach_is_asked_nothing(
    following: Following, description: Describe
) -> None:
    await both(following, description)
    served = following.catalogue.canary(CANARY)
    assert served is not None
    served.channel.kill(f"{CANARY}-0")  # type: ignore[attr-defined]
    await until(lambda: following.catalogue.canary(CANARY) is None)
    assert following.catalogue.all_ready


async def test_a_registry_that_starts_anew_keeps_the_routes_until_all_is_known(
    following: Following, description: Describe
) -> None:
    canary = await both(following, description)
    await following.registry.tell(description(), complete=False)
    assert following.catalogue.routes == ROUTES
    assert following.catalogue.canary(CANARY) is not None
    await following.registry.tell(description(), canary)
    assert following.catalogue.routes == {}


async def test_the_switch_reaches_canaries(following: Following, description: Describe) -> None:
    await both(following, description)
    following.catalogue.freeze(True)
    for served in following.catalogue.queued.values():
        assert {each.frozen for each in served.queue.snapshot().controllers} == {True}
