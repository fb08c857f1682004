"""Which models of a new file change at once, and which by a canary first.

A model goes by a canary where the server has it already, its new settings replace its replicas,
and they have a `rollout`. Pure: what runs and the new settings in, the plan out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count

from deployments.cluster.deployed import Canary, Deployed, leaving
from deployments.cluster.settings_changes import changes_between, same_version
from deployments.cluster.version_history import with_numbers_of
from deployments.settings.model import ModelSettings
from deployments.settings.tree import Settings

ANOTHER = "another version of it is rolled out instead"
AT_ONCE = "a file was applied that changes it at once"
AS_IT_WAS = "a file was applied that has its settings as they were"
REMOVED = "a file was applied that has not the model"


@dataclass(frozen=True, slots=True)
class Plan:
    """wanted: what is to run. begun: models whose canary is to start; kept: whose rollout goes on;
    ended: rollouts that are given up, and why. changes: to be told, by kind."""

    wanted: Deployed
    begun: tuple[str, ...]
    kept: tuple[str, ...]
    ended: Mapping[str, str]
    changes: dict[str, list[str]]


def planned(running: Deployed, new: Settings, now: float, numbers: count[int]) -> Plan:
    """`numbers`: of new canaries. Raises ValueError where a live version cannot run with the
    numbers that the file gives."""
    changes = changes_between(running.settings, new)
    rolled = [n for n in changes["restarted"] if new.models[n].rollout is not None]
    kept = tuple(n for n in rolled if _goes_on(running, n, new))
    begun = tuple(n for n in rolled if n not in kept)
    live = {n: running.settings.models[n] for n in begun}
    live |= {n: _beside(running, n, new) for n in kept}
    settings = new.model_copy(update={"models": {**new.models, **live}})
    canaries = {
        name: replace(canary, settings=new.models[name]) if name in kept else _goes(canary, now)
        for name, canary in running.canaries.items()
        if name in new.models
    } | {name: Canary(name, new.models[name], next(numbers), now) for name in begun}
    ended = {
        name: _why(name, begun, changes)
        for name, canary in running.canaries.items()
        if canary.undecided and name not in kept
    }
    updated = changes_between(running.settings, settings)["updated"]
    changes = _told({**changes, "updated": updated}, begun, kept, ended)
    return Plan(Deployed(settings, canaries), begun, kept, ended, changes)


def _goes_on(running: Deployed, name: str, new: Settings) -> bool:
    """Whether that version is being rolled out already."""
    canary = running.canaries.get(name)
    if canary is None or not canary.undecided:
        return False
    return same_version(running.settings, name, canary.settings, new.models[name])


def _beside(running: Deployed, name: str, new: Settings) -> ModelSettings:
    """The live version whose rollout goes on: with the numbers of the file, where that has others
    than the file before it."""
    live, model = running.settings.models[name], new.models[name]
    if running.canaries[name].settings == model:
        return live
    return with_numbers_of(live, model)


def _goes(canary: Canary, now: float) -> Canary:
    return leaving(canary, now) if canary.undecided else canary


def _why(name: str, begun: tuple[str, ...], changes: Mapping[str, list[str]]) -> str:
    if name in begun:
        return ANOTHER
    if name in changes["removed"]:
        return REMOVED
    return AT_ONCE if name in changes["restarted"] else AS_IT_WAS


def _told(
    changes: dict[str, list[str]],
    begun: tuple[str, ...],
    kept: tuple[str, ...],
    ended: Mapping[str, str],
) -> dict[str, list[str]]:
    """What is rolled out restarts nothing now."""
    at_once = [n for n in changes["restarted"] if n not in kept and n not in begun]
    reasons = [each for each in changes["reasons"] if each.partition(": ")[0] not in kept]
    return {
        **changes,
        "restarted": at_once,
        "rolled out": list(begun),
        "rollouts that go on": list(kept),
        "rollouts ended": [f"{name} ({why})" for name, why in ended.items()],
        "reasons": reasons,
    }
