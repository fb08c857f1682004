"""Which models of a new file change at once on a cluster, and which by a canary first?

The same rule as on one machine (`rollout_plan`): a model changes by a canary if the cluster has it,
its new settings would replace its replicas, and they have a `rollout`. Pure: the lists that run and
that the file asks for in, the list to put out.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

from deployments.contract.app_names import model_app
from deployments.contract.rollout.terms import canary_of
from deployments.control.canary import canary_settings
from deployments.control.differences import REPLACES, Applications, by_name, differences
from deployments.control.listed_rollouts import (
    Entries,
    ListedRollout,
    ended,
    entries_of,
    is_undecided,
    new_entry,
    over,
    revision_of,
    with_entries,
)
from deployments.control.listed_versions import ListedVersion, lists, version_of, with_version
from deployments.control.rollout_reasons import why_given_up
from deployments.control.serve_config import serve_config
from deployments.control.version_history import NUMBERS
from deployments.settings.tree import Settings


@dataclass(frozen=True, slots=True)
class ListedPlan:
    """What deploying a file does to rollouts."""

    applications: Mapping[str, Mapping[str, Any]]  # that are to run, by name
    begun: Mapping[str, int]  # models whose canary is to start, with its number
    kept: Mapping[str, int]  # models whose rollout goes on, with its canary's number
    ended: Mapping[str, str]  # models whose rollout is given up, and why


@dataclass(frozen=True, slots=True)
class _Change:
    """Of one model."""

    entry: ListedRollout | None  # of its last rollout, as it is to be
    live: ListedVersion | None = None  # to run instead of the file's
    canary: ListedVersion | None = None  # to run beside it
    begins: bool = False
    goes_on: bool = False
    why: str = ""  # its rollout is given up


def planned(
    running: Applications, wanted: Applications, settings: Settings, dead: Set[str] = frozenset()
) -> ListedPlan:
    """The plan. `running`, `wanted`: Headrace's applications by name, the latter of the file.
    `dead`: those of `running` that could not start."""
    changes = {name: _change(name, running, wanted, settings, dead) for name in settings.models}
    changes |= {name: _removed(e) for name, e in entries_of(running).items() if name not in changes}
    listed: Mapping[str, Mapping[str, Any]] = wanted
    for name, change in changes.items():
        if change.live is not None:
            listed = with_version(listed, name, change.live)
        if change.canary is not None:
            listed = with_version(listed, canary_of(name), change.canary)
    entries = {name: c.entry for name, c in changes.items() if c.entry is not None}
    if _all_over(entries) and _all_over(entries_of(running)):
        entries = {}  # nobody looks after them any more
    return ListedPlan(
        with_entries(listed, entries, (revision_of(running) or 0) + 1),
        {name: entries[name]["id"] for name, c in changes.items() if c.begins},
        {name: entries[name]["id"] for name, c in changes.items() if c.goes_on},
        {name: c.why for name, c in changes.items() if c.why},
    )


def _all_over(entries: Entries) -> bool:
    return all(entry["stage"] == "over" for entry in entries.values())


def _removed(entry: ListedRollout) -> _Change:
    """Of a model that the file has not. Its canary goes with it. Its number is kept: whoever drives
    rollouts must not take the next one for this one."""
    if not is_undecided(entry):
        return _Change(over(entry))
    why = why_given_up(removed=True, begun=False, changed=False)
    return _Change(over(ended(entry, why)), why=why)


def _change(
    name: str,
    running: Applications,
    wanted: Applications,
    settings: Settings,
    dead: Set[str],
) -> _Change:
    entry, live = entries_of(running).get(name), _live(name, running, dead)
    if live is None:
        return _without_rollout(name, running, entry, changed=True)
    undecided = entry if is_undecided(entry) else None
    file, model = version_of(wanted, name), settings.models[name]
    changed = _restarts(live, file)
    if not changed or model.rollout is None:
        return _without_rollout(name, running, entry, changed=changed)
    if undecided is not None and not _restarts(undecided["new"], file):
        canary = _canary(name, running) or _new_canary(name, settings)
        return replace(_going_on(undecided, live, file), canary=canary)
    number = 1 if entry is None else entry["id"] + 1
    return _Change(
        new_entry(name, number, model, file, live),
        live,
        _new_canary(name, settings),
        begins=True,
        why=why_given_up(removed=False, begun=True, changed=True) if undecided else "",
    )


def _live(name: str, running: Applications, dead: Set[str]) -> ListedVersion | None:
    """The live version; while another one is being promoted, the one that it replaces. None if no
    version serves, so that there is nothing to protect."""
    entry = entries_of(running).get(name)
    if entry is not None and entry["stage"] == "promoting":
        return entry["old"]
    return version_of(running, name) if model_app(name) in running.keys() - dead else None


def _canary(name: str, running: Applications) -> ListedVersion | None:
    canary = canary_of(name)
    return version_of(running, canary) if lists(running, canary) else None


def _without_rollout(
    name: str, running: Applications, entry: ListedRollout | None, *, changed: bool
) -> _Change:
    """The file's version is put at once. A canary that is there leaves."""
    if entry is None or entry["stage"] == "over":
        return _Change(entry)
    canary = _canary(name, running)
    if not is_undecided(entry):
        return _Change(entry, canary=canary)
    why = why_given_up(removed=False, begun=False, changed=changed)
    return _Change(ended(entry, why), canary=canary, why=why)


def _going_on(entry: ListedRollout, live: ListedVersion, file: ListedVersion) -> _Change:
    """The rollout goes on. What serves callers gets the file's numbers of replicas."""
    placed = entry["stage"] == "promoting"
    old = with_numbers_of(live, file)
    kept: ListedRollout = {**entry, "new": file, "old": old}
    return _Change(kept, file if placed else old, goes_on=True)


def _restarts(one: ListedVersion, other: ListedVersion) -> bool:
    found = differences({"": one["application"]}, {"": other["application"]})
    return any(each.kind == "restarted" for each in found)


def _new_canary(name: str, settings: Settings) -> ListedVersion:
    canary = canary_of(name)
    models = {canary: canary_settings(settings.models[name])}
    alone = settings.model_copy(update={"models": models})
    return version_of(by_name(serve_config(alone)), canary)


def with_numbers_of(old: ListedVersion, new: ListedVersion) -> ListedVersion:
    """The old version with the new one's numbers of replicas and their scaling. A model with groups
    stays wholly as it was, because a group's number belongs to what the group runs on."""
    was, now = old["scaling"].get("replicas", {}), new["scaling"].get("replicas", {})
    if "groups" in was or "groups" in now:
        return old
    replicas = {n: v for n, v in was.items() if n not in NUMBERS}
    replicas |= {n: v for n, v in now.items() if n in NUMBERS}
    scaling = {**old["scaling"], "scaling": new["scaling"].get("scaling"), "replicas": replicas}
    theirs = {each["name"]: each for each in new["application"]["deployments"]}
    deployments = [
        _with_options_of(each, theirs.get(each["name"], each))
        for each in old["application"]["deployments"]
    ]
    return ListedVersion(
        application={**old["application"], "deployments": deployments},
        scaling={name: section for name, section in scaling.items() if section},
    )


def _with_options_of(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The deployment with the other one's options, but for those that replace its processes."""
    kept = {option: value for option, value in old.items() if option in REPLACES}
    return {option: value for option, value in new.items() if option not in REPLACES} | kept
