"""Which list of applications follows from what a deployer wishes?

The wishes: a file (`applied`), the end of a rollout (`decided`), the version before (`went_back`),
the controllers' switch (`switched`), a revoked key (`revoked`), a number of replicas (`pinned`), an
adapter (`adapted`).
A file's model changes by a canary if a version of it serves, its new settings would replace that
version's replicas, and they have a `rollout`. Otherwise it changes in place, and the driver takes
the change back if the new version cannot start.

Pure: the list that runs in, the list to put out. Wishes that cannot be raise ClusterError.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from math import ceil
from typing import Any

from msgspec.structs import replace as changed

from deployments.contract.app_names import CONTROL_APP, is_model_app, model_app, model_name
from deployments.contract.description import adapters_by_hand
from deployments.contract.listed import Entry, Stage, Version
from deployments.contract.rollout.account import RolloutRecord, VersionAccount
from deployments.contract.rollout.terms import AgreementTerms, RolloutTerms, canary_of
from deployments.control.application_list import (
    REPLACES,
    AppDifference,
    AppList,
    DifferenceKind,
    by_name,
    changes,
    differences,
)
from deployments.control.dashboard import ClusterError
from deployments.control.serve_config import serve_config
from deployments.settings.model import ModelSettings
from deployments.settings.replicas import ReplicaSettings
from deployments.settings.rollout import RolloutSettings
from deployments.settings.tree import Settings

ANOTHER = "another version of it is rolled out instead"
AT_ONCE = "a file was applied that changes it at once"
AS_IT_WAS = "a file was applied that has its settings as they were"
REMOVED = "a file was applied that has not the model"
BY_HAND = "ended by hand"
STILL_IN_FILE = (
    "where the file still has the new version, a server that starts serves it at once: "
    "`headrace diff FILE` shows it"
)
OPENS = (
    "no tenant has a list of keys any more, which would let everybody in; set gateway.auth: open, "
    "if that is meant"
)
NUMBERS = ("count", "min", "max", "spare", "survive", "priority")
"""Settings of replicas that belong to no version: going back leaves them as they are."""
_NOTHING = VersionAccount(version="", answered=0, failed=0, median_ms=None)
_BLOCK = (
    "entries", "history", "pins", "adapters", "revoked", "revision", "lease", "changes", "turn",
)  # fmt: skip
"""Fields of the block that a file says nothing of."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """What deploying a file does."""

    names: tuple[str, ...]  # applications that are to run from now on, canaries not counted
    differences: list[AppDifference]
    begun: Mapping[str, int]  # models whose canary is to start, with their entry's id
    kept: Mapping[str, int]  # models whose rollout goes on, likewise
    replaced: Mapping[str, int]  # models that change in place, or are new, likewise
    ended: Mapping[str, str]  # models whose rollout is given up, and why
    change: str = ""  # its id, see `Writer`


@dataclass(frozen=True, slots=True)
class _Change:
    """Of one model."""

    entry: Entry | None = None  # as it is to be
    live: Version | None = None  # to run instead of the file's
    canary: Version | None = None  # to run beside it
    how: str = ""  # "begun", "kept", "replaced"; "": nothing of it is waited for
    why: str = ""  # its rollout is given up


def applied(
    running: AppList,
    wanted: AppList,
    settings: Settings,
    dead: Set[str] = frozenset(),
    *,
    one_machine: bool = False,
) -> tuple[AppList, Deployment]:
    """The list to put for a file, and what that does. `wanted`: the file's list, from
    `serve_config`, as is `one_machine`. `dead`: names of applications that run nothing, because
    they could not start."""
    before, after = running.control.tenants, wanted.control.tenants
    loses_keys = lists_keys(before or {}) and after is not None and not lists_keys(after)
    if loses_keys and wanted.control.auth is None:
        raise ClusterError(OPENS)
    file = _File(wanted, settings, one_machine)
    found = {name: _change(name, running, file, dead) for name in settings.models}
    found |= {name: _removed(e) for name, e in running.entries.items() if name not in found}
    listed = wanted.with_control(**_kept_of(running, settings))
    for name, change in found.items():
        if change.live is not None:
            listed = listed.with_version(name, change.live)
        if change.canary is not None:
            listed = listed.with_version(canary_of(name), change.canary)
    entries = {name: each.entry for name, each in found.items() if each.entry is not None}
    listed = listed.with_control(entries=entries)
    begun, kept, replaced = (
        {name: entries[name].id for name, each in found.items() if each.how == how}
        for how in ("begun", "kept", "replaced")
    )
    given_up = {name: each.why for name, each in found.items() if each.why}
    canaries = {model_app(canary_of(name)) for name in settings.models}
    names = tuple(name for name in listed.all() if name not in canaries)
    told = _differences(running, listed)
    return listed, Deployment(names, told, begun, kept, replaced, given_up)


def _kept_of(running: AppList, settings: Settings) -> dict[str, Any]:
    """Fields of the block that the file leaves as they are."""
    control, models = running.control, settings.models
    kept = {name: getattr(control, name) for name in _BLOCK}
    kept["history"] = {n: v for n, v in control.history.items() if n in models}
    kept["pins"] = {n: v for n, v in control.pins.items() if n.partition("/")[0] in models}
    kept["adapters"] = {n: v for n, v in control.adapters.items() if n in models}
    return kept


def lists_keys(tenants: Mapping[str, Any]) -> bool:
    """Whether a tenants file's content lists any key. It was valid for whoever wrote it, perhaps
    another version of Headrace."""
    return any((each or {}).get("keys") is not None for each in tenants.get("tenants", {}).values())


def _differences(running: AppList, listed: AppList) -> list[AppDifference]:
    """Those of applications, without what the control plane keeps for itself."""
    found = differences(running.applications, listed.applications)
    if listed.own is None:
        return found
    if running.own is None:
        found.append(AppDifference(CONTROL_APP, "added"))
    else:
        builds = tuple(changes(running.own.get("args"), listed.own.get("args"), ""))
        named = {model_name(d.application) for d in found if is_model_app(d.application)}
        told = tuple(changes(_of_file(running, named), _of_file(listed, named), ""))
        if builds or told:
            kind: DifferenceKind = "restarted" if builds else "updated"
            found.append(AppDifference(CONTROL_APP, kind, (*builds, *told)))
    order = [*listed.all(), *running.applications]
    return sorted(found, key=lambda each: order.index(each.application))


def _of_file(listed: AppList, named: Set[str]) -> dict[str, Any]:
    """What a file says there, but for these models, whose own differences are told."""
    c = listed.control
    models, versions = (
        {name: each for name, each in sections.items() if name not in named}
        for sections in (c.scaling.get("models", {}), c.versions)
    )
    return {"tenants": c.tenants, "priorities": list(c.priorities), "auth": c.auth,
            "scaling": {**c.scaling, "models": models}, "versions": versions}  # fmt: skip


# ---- one model of a file -------------------------------------------------------------------------


def _removed(entry: Entry) -> _Change:
    """Of a model that the file has not. Its canary goes with it. Its id is kept: whoever drives
    must not take the next one for this one."""
    if not undecided(entry):
        return _Change(over(entry))
    return _Change(over(ended(entry, REMOVED)), why=REMOVED if is_canary(entry) else "")


@dataclass(frozen=True, slots=True)
class _File:
    """What is applied."""

    listed: AppList
    settings: Settings
    one_machine: bool

    def canary(self, name: str) -> Version:
        """The version of this model, as its canary."""
        canary = canary_of(name)
        models = {canary: canary_settings(self.settings.models[name])}
        alone = self.settings.model_copy(update={"models": models})
        config = serve_config(alone, one_machine=self.one_machine)
        return AppList.of(by_name(config)).version(canary)


def _change(name: str, running: AppList, wanted: _File, dead: Set[str]) -> _Change:
    entry, live = running.entries.get(name), _live(name, running, dead)
    file, model = wanted.listed.version(name), wanted.settings.models[name]
    if live is None:
        return _in_place(name, running, None, file, model)
    if not _restarts(live, file):
        return _as_it_was(name, running, live, file)
    if model.rollout is None:
        return _in_place(name, running, live, file, model)
    if entry is not None and is_canary(entry) and not _restarts(_new(entry), file):
        # The rollout goes on. What serves callers gets the file's numbers of replicas.
        canary = _canary(name, running) or wanted.canary(name)
        old = with_numbers_of(live, file)
        placed = file if entry.stage == "promoting" else old
        return _Change(changed(entry, new=file, old=old), placed, canary, "kept")
    fresh = _entry(name, entry, "starting", model, (file, live))
    why = ANOTHER if entry is not None and is_canary(entry) else ""
    return _Change(fresh, live, wanted.canary(name), "begun", why)


def _live(name: str, running: AppList, dead: Set[str]) -> Version | None:
    """The version that served last; while another one starts in its place, the one that that
    replaces. None if no version serves, so that there is nothing to protect."""
    entry = running.entries.get(name)
    if entry is not None and entry.stage in ("promoting", "replacing"):
        return entry.old
    return running.version(name) if model_app(name) in running.applications.keys() - dead else None


def _canary(name: str, running: AppList) -> Version | None:
    canary = canary_of(name)
    return running.version(canary) if running.has(canary) else None


def _as_it_was(name: str, running: AppList, live: Version, file: Version) -> _Change:
    """The file's version is the one that serves. A rollout or a replacement is given up."""
    entry = running.entries.get(name)
    if entry is None or not undecided(entry):
        return _Change(entry, canary=_canary(name, running))
    canary = _canary(name, running)
    if entry.stage == "replacing":
        return _Change(changed(entry, stage="leaving", why=AS_IT_WAS), canary=canary)
    return _Change(ended(entry, AS_IT_WAS), canary=canary, why=AS_IT_WAS)


def _in_place(
    name: str, running: AppList, live: Version | None, file: Version, model: ModelSettings
) -> _Change:
    """The file's version starts at once in place of the live one. A canary that is there leaves."""
    entry = running.entries.get(name)
    if entry is not None and entry.stage == "replacing" and not _restarts(_new(entry), file):
        return _Change(changed(entry, new=file), None, _canary(name, running), "replaced")
    fresh, why = _entry(name, entry, "replacing", model, (file, live)), ""
    if entry is not None and is_canary(entry):
        why = AT_ONCE
        fresh = changed(fresh, record=ended(entry, why).record)
    return _Change(fresh, None, _canary(name, running), "replaced", why)


def is_canary(entry: Entry) -> bool:
    return entry.stage in ("starting", "judged", "promoting")


def _new(entry: Entry) -> Version:
    assert entry.new is not None  # of one that is undecided
    return entry.new


def _restarts(one: Version, other: Version) -> bool:
    found = differences({"": one.application}, {"": other.application})
    return any(each.kind == "restarted" for each in found)


def with_numbers_of(old: Version, new: Version) -> Version:
    """The old version with the new one's numbers of replicas and their scaling. A model with groups
    stays wholly as it was, because a group's number belongs to what the group runs on."""
    was, now = old.scaling.get("replicas", {}), new.scaling.get("replicas", {})
    if "groups" in was or "groups" in now:
        return old
    replicas = {n: v for n, v in was.items() if n not in NUMBERS}
    replicas |= {n: v for n, v in now.items() if n in NUMBERS}
    scaling = {**old.scaling, "scaling": new.scaling.get("scaling"), "replicas": replicas}
    theirs = {each["name"]: each for each in new.application["deployments"]}
    deployments = [
        _with_options_of(each, theirs.get(each["name"], each))
        for each in old.application["deployments"]
    ]
    return Version(
        {**old.application, "deployments": deployments},
        {name: section for name, section in scaling.items() if section},
    )


def _with_options_of(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The deployment with the other one's options, but for those that replace its processes."""
    return {option: value for option, value in new.items() if option not in REPLACES} | {
        option: value for option, value in old.items() if option in REPLACES
    }


# ---- entries -------------------------------------------------------------------------------------


def undecided(entry: Entry) -> bool:
    return entry.stage not in ("leaving", "over")


def _entry(
    name: str,
    before: Entry | None,
    stage: Stage,
    model: ModelSettings,
    versions: tuple[Version, Version | None],
) -> Entry:
    number = 1 if before is None else before.id + 1
    record = None if before is None else before.record
    return Entry(
        id=number,
        stage=stage,
        record=unseen(name, number, stage, terms_of(model)) if stage == "starting" else record,
        settings=model.model_dump(mode="json", exclude_unset=True),
        new=versions[0],
        old=versions[1],
    )


def terms_of(model: ModelSettings) -> RolloutTerms:
    return RolloutTerms() if model.rollout is None else rollout_terms(model.rollout)


def unseen(model: str, number: int, phase: str, terms: RolloutTerms) -> RolloutRecord:
    """The record of a change of which the registry has reported nothing yet."""
    return RolloutRecord(
        model=model, number=0, phase=phase, share=0.0, step=1, steps=len(terms.shares),
        held_s=0.0, hold_s=terms.hold_s, why="", live=_NOTHING, canary=_NOTHING, copies=_NOTHING,
        compared=0, agreed=0, id=number, over=False,
    )  # fmt: skip


def ended(entry: Entry, why: str) -> Entry:
    """The rollout's end: aborted if there is a reason, else promoted. Its canary is leaving."""
    if entry.record is None or not is_canary(entry):
        return changed(entry, stage="leaving")
    record: RolloutRecord = {
        **entry.record, "phase": "aborted" if why else "promoted", "why": why, "share": 0.0,
        "over": True,
    }  # fmt: skip
    return changed(entry, stage="leaving", record=record)


def over(entry: Entry) -> Entry:
    """What is kept of a change whose canary is gone."""
    return Entry(entry.id, "over", entry.record, entry.why, rollout=entry.rollout)


# ---- other wishes --------------------------------------------------------------------------------


def decided(running: AppList, model: str, why: str = "") -> AppList:
    """The promotion of a model's rollout is asked for; with a reason, its abort."""
    entry = running.entries.get(model)
    if wrong := _not_decidable(model, entry, aborts=bool(why)):
        raise ClusterError(wrong)
    assert entry is not None
    return running.with_entry(model, changed(entry, asked=why))


def _not_decidable(model: str, entry: Entry | None, *, aborts: bool) -> str:
    if entry is None or (record := entry.record) is None:
        return f"no rollout of {model} is known there"
    if not is_canary(entry):
        because = f" ({record['why']})" if record["why"] else ""
        return f"the last rollout of {model} is over: {record['phase']}{because}"
    if entry.asked or (entry.stage == "promoting" and not aborts):
        return f"the rollout of {model} is decided already"
    if entry.stage == "starting" and not aborts:
        return f"the new version of {model} is still starting: ask again once it runs"
    return ""


def went_back(running: AppList, model: str) -> AppList:
    """The version that ran before the present one is to take its place, with the present numbers of
    replicas; each time one further back."""
    if not running.has(model):
        names = ", ".join(running.control.scaling.get("models", {}))
        raise ClusterError(f"no model {model!r}; there are: {names}")
    entry, history = running.entries.get(model), running.history(model)
    if entry is not None and entry.stage == "replacing":
        raise ClusterError(f"another version of {model} is starting: ask again once it runs")
    if entry is not None and undecided(entry):
        raise ClusterError(
            f"a new version of {model} is being rolled out, the live one has not changed; "
            f"`headrace rollout abort {model}` ends it"
        )
    if not history:
        raise ClusterError(
            f"no other version of {model} has run that is known: what ran before the first "
            "`apply` is not"
        )
    present = running.version(model)
    last = with_numbers_of(history[-1], present)
    settings = ModelSettings.model_validate(last.application["args"]["settings"])
    fresh = _entry(model, entry, "replacing", settings, (last, present))
    return running.with_version(model, last).with_entry(model, changed(fresh, back=True))


def switched(running: AppList, frozen: bool) -> AppList:
    """The controllers of all models are frozen, or learn again, until the next file is applied."""
    if running.control.tenants is None:
        raise ClusterError(
            "nothing publishes tenants there; where gateway.tenants_path names a file, set "
            "controllers.frozen in it"
        )
    tenants = {**running.control.tenants, "controllers": {"frozen": frozen}}
    return running.with_control(tenants=tenants, turn=running.control.turn + 1)


def pinned(running: AppList, name: str, replicas: int | None) -> AppList:
    """A number of replicas by hand. `name`: "model/group"; None lets the autoscaler decide."""
    pins = {n: each for n, each in running.control.pins.items() if n != name}
    return running.with_control(pins=pins if replicas is None else {**pins, name: replicas})


def declared_adapters(running: AppList, model: str) -> Mapping[str, str]:
    """The adapters in the model's settings. Raises ClusterError where it has none: its engine was
    started without places for any."""
    if not running.has(model):
        names = ", ".join(running.control.scaling.get("models", {}))
        raise ClusterError(f"no model {model!r}; there are: {names}")
    found = running.applications[model_app(model)]["args"]["settings"].get("adapters") or {}
    if not found:
        raise ClusterError(
            f"{model} has no adapters in its settings, so its engine has no places for any; add "
            "the first one in the file and apply it"
        )
    declared: Mapping[str, str] = found
    return declared


def adapted(running: AppList, model: str, name: str, source: str | None) -> AppList:
    """An adapter of a model by hand; None takes it out. It stays so when a file is applied."""
    declared = declared_adapters(running, model)
    by_hand = dict(running.control.adapters.get(model, {}))
    if source is None and name not in adapters_by_hand(declared, by_hand):
        raise ClusterError(f"{model} has no adapter {name!r}")
    by_hand.pop(name, None)
    if source != declared.get(name):  # else it is as the settings say
        by_hand[name] = source
    others = {n: each for n, each in running.control.adapters.items() if n != model}
    return running.with_control(adapters={**others, model: by_hand} if by_hand else others)


def revoked(running: AppList, key_hash: str) -> AppList:
    known = (each for each in running.control.revoked if each != key_hash)
    return running.with_control(revoked=(*known, key_hash))


# ---- from settings: the canary, and the terms of its rollout -------------------------------------


_COUNTS = ("count", "min", "max", "spare", "survive", "groups")  # the canary has its own numbers


def canary_settings(model: ModelSettings) -> ModelSettings:
    """The canary's settings, for a model with a `rollout`. If the model has groups, the canary runs
    the first that takes all lengths."""
    assert model.rollout is not None
    one = model.main_view()
    written = one.model_dump(mode="json", exclude_unset=True)
    for section in ("rollout", "optional", "aliases"):
        written.pop(section, None)
    replicas = {n: v for n, v in written.get("replicas", {}).items() if n not in _COUNTS}
    replicas |= _replica_numbers(model.rollout, one.replicas)
    return ModelSettings.model_validate(written | {"replicas": replicas})


def _replica_numbers(rollout: RolloutSettings, live: ReplicaSettings) -> dict[str, int]:
    if rollout.replicas is not None:
        return {"count": rollout.replicas}
    share = max(rollout.steps_percent[-1], rollout.shadow_percent) / 100
    least, most = (max(1, ceil(number * share)) for number in (live.least, live.most))
    return {"count": most} if least == most else {"min": least, "max": most}


def rollout_terms(rollout: RolloutSettings) -> RolloutTerms:
    """The rollout's terms. A step of copies, if the settings ask for one, comes first."""
    shares = tuple(percent / 100 for percent in rollout.steps_percent)
    asked = rollout.agreement
    return RolloutTerms(
        shares=(0.0, *shares) if rollout.shadow_percent else shares,
        hold_s=rollout.hold_s,
        least_requests=rollout.min_requests,
        shadow=rollout.shadow_percent / 100,
        max_errors=rollout.max_errors_percent / 100,
        max_latency_ratio=rollout.max_latency_ratio,
        max_cost_ratio=rollout.max_latency_ratio,
        agreement=AgreementTerms(asked.cosine, asked.max_abs, asked.top1),
    )
