"""The rollouts of a cluster, as Serve's own list of applications holds them.

On one machine the host remembers rollouts. A cluster has no host: whoever deploys ends, and the
process that drives rollouts may be replaced at any time. So all that must be known of a rollout
stands in the list that Serve keeps: the canary is an application of its own, and the application
`headrace-rollouts` carries one entry a model, with the new and the old version word for word.
Whoever reads the list can go on from there. Pure: lists in, lists out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from deployments.contract.app_names import ROLLOUTS_APP
from deployments.contract.rollout.account import RolloutRecord
from deployments.control.deployed import Canary
from deployments.control.differences import Applications
from deployments.control.listed_versions import ListedVersion
from deployments.control.rollout_records import unseen
from deployments.control.serve_config import BUILDERS
from deployments.settings.model import ModelSettings

ListedStage = Literal["starting", "judged", "promoting", "leaving", "over"]
_DEPLOYMENT = "rollouts"


class ListedRollout(TypedDict):
    """One model's rollout. Of one that is over only `id`, `stage` and `record` count."""

    id: int  # of the canary: grows with every one of the model
    stage: ListedStage
    rollout: int | None  # the registry's number; None until it has given one
    settings: Mapping[str, Any]  # the new version's, as the file has them
    new: ListedVersion
    old: ListedVersion
    asked: str | None  # by hand: "" the promotion, else an abort and why; None: nothing
    record: RolloutRecord  # for people


Entries = Mapping[str, ListedRollout]  # by model


def entries_of(applications: Applications) -> dict[str, ListedRollout]:
    """The rollouts that the list knows, ended ones included."""
    return dict(_content(applications).get("rollouts", {}))


def revision_of(applications: Applications) -> int | None:
    """How often a command changed the list since it has rollouts; None if it has none. Whoever
    drives rollouts leaves it as it is, so a command finds out whether its change was undone by a
    list that was read before."""
    found: int | None = _content(applications).get("revision")
    return found


def revised(applications: Applications) -> dict[str, Mapping[str, Any]]:
    """The list with the next revision, if it has rollouts."""
    return with_entries(
        applications, entries_of(applications), (revision_of(applications) or 0) + 1
    )


def with_entries(
    applications: Applications, entries: Entries, revision: int
) -> dict[str, Mapping[str, Any]]:
    """The list with these rollouts instead; without the application if there are none."""
    kept = {name: app for name, app in applications.items() if name != ROLLOUTS_APP}
    if not entries:
        return kept
    content = {"rollouts": dict(entries), "revision": revision}
    kept[ROLLOUTS_APP] = {
        "name": ROLLOUTS_APP,
        "route_prefix": None,
        "import_path": BUILDERS["rollouts"],
        "args": {},
        "deployments": [{"name": _DEPLOYMENT, "user_config": content}],
    }
    return kept


def _content(applications: Applications) -> Mapping[str, Any]:
    app = applications.get(ROLLOUTS_APP)
    found: Mapping[str, Any] = {} if app is None else app["deployments"][0]["user_config"]
    return found


def with_entry(
    applications: Applications, model: str, entry: ListedRollout
) -> dict[str, Mapping[str, Any]]:
    entries = {**entries_of(applications), model: entry}
    return with_entries(applications, entries, revision_of(applications) or 0)


def is_undecided(entry: ListedRollout | None) -> bool:
    return entry is not None and entry["stage"] not in ("leaving", "over")


def undecided(model: str, entry: ListedRollout | None, *, aborts: bool) -> str:
    """Why the model's rollout cannot be promoted or aborted now; "" if it can."""
    if entry is None:
        return f"no rollout of {model} is known there"
    record = entry["record"]
    if not is_undecided(entry):
        because = f" ({record['why']})" if record["why"] else ""
        return f"the last rollout of {model} is over: {record['phase']}{because}"
    if entry["asked"] or (entry["stage"] == "promoting" and not aborts):
        return f"the rollout of {model} is decided already"
    if entry["stage"] == "starting" and not aborts:
        return f"the new version of {model} is still starting: ask again once it runs"
    return ""


def new_entry(
    model: str, number: int, settings: ModelSettings, new: ListedVersion, old: ListedVersion
) -> ListedRollout:
    """Of a canary that is to start."""
    account = {**unseen(Canary(model, settings, number, 0.0)), "phase": "starting"}
    return ListedRollout(
        id=number,
        stage="starting",
        rollout=None,
        settings=settings.model_dump(mode="json", exclude_unset=True),
        new=new,
        old=old,
        asked=None,
        record={**account, "id": number, "over": False},  # type: ignore[typeddict-item]
    )


def ended(entry: ListedRollout, why: str) -> ListedRollout:
    """The rollout's end: aborted if there is a reason, else promoted. Its canary is leaving."""
    record: RolloutRecord = {
        **entry["record"], "phase": "aborted" if why else "promoted", "why": why, "share": 0.0,
        "over": True,
    }  # fmt: skip
    return {**entry, "stage": "leaving", "record": record}


def over(entry: ListedRollout) -> ListedRollout:
    """What is kept of a rollout whose canary is gone."""
    nothing = ListedVersion(application={}, scaling={})
    return {**entry, "stage": "over", "settings": {}, "new": nothing, "old": nothing}
