"""Which models of a new file change at once, and which by a canary first?

A model changes by a canary if the server has the model already, its new settings would replace its
replicas, and they have a `rollout`. Pure: what runs and the new settings in, the plan out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count

from deployments.control.deployed import Canary, Deployed, leaving
from deployments.control.rollout_reasons import why_given_up
from deployments.control.settings_changes import changes_between, same_version
from deployments.control.version_history import with_numbers_of
from deployments.settings.model import ModelSettings
from deployments.settings.tree import Settings


@dataclass(frozen=True, slots=True)
class Plan:
    """What applying a file does."""

    wanted: Deployed  # what is to run
    begun: tuple[str, ...]  # models whose canary is to start
    kept: tuple[str, ...]  # models whose rollout goes on
    ended: Mapping[str, str]  # models whose rollout is given up, and why
    changes: dict[str, list[str]]  # for the user, by kind


def planned(running: Deployed, new: Settings, now: float, numbers: count[int]) -> Plan:
    """The plan. `numbers`: for new canaries. Raises ValueError if a live version cannot run with
    the numbers of replicas that the file gives."""
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
        name: why_given_up(
            removed=name in changes["removed"],
            begun=name in begun,
            changed=name in changes["restarted"],
        )
        for name, canary in running.canaries.items()
        if canary.undecided and name not in kept
    }
    updated = changes_between(running.settings, settings)["updated"]
    changes = _told({**changes, "updated": updated}, begun, kept, ended)
    return Plan(Deployed(settings, canaries), begun, kept, ended, changes)


def _goes_on(running: Deployed, name: str, new: Settings) -> bool:
    """Whether the file's version of the model is being rolled out already."""
    canary = running.canaries.get(name)
    if canary is None or not canary.undecided:
        return False
    return same_version(running.settings, name, canary.settings, new.models[name])


def _beside(running: Deployed, name: str, new: Settings) -> ModelSettings:
    """The live version during a rollout that goes on: with the file's numbers of replicas, if they
    differ from the last file's."""
    live, model = running.settings.models[name], new.models[name]
    if running.canaries[name].settings == model:
        return live
    return with_numbers_of(live, model)


def _goes(canary: Canary, now: float) -> Canary:
    return leaving(canary, now) if canary.undecided else canary


def _told(
    changes: dict[str, list[str]],
    begun: tuple[str, ...],
    kept: tuple[str, ...],
    ended: Mapping[str, str],
) -> dict[str, list[str]]:
    """The changes as the user is told them: models that are rolled out restart nothing now."""
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
