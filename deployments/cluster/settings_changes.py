"""What another settings file would do to models, tenants and controllers of a running server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from deployments.cluster.differences import by_name, differences
from deployments.cluster.serve_config import serve_config
from deployments.contract.app_names import is_model_app, model_name
from deployments.settings.model import ModelSettings
from deployments.settings.tree import Settings

KINDS = ("added", "removed", "restarted", "updated")


def changes_between(old: Settings, new: Settings) -> dict[str, list[str]]:
    """Names of models by what happens to them (`updated`: while they run), each that restarts with
    the reasons; of tenants that differ; what becomes of the controllers where that changes."""
    found = differences(_models(old), _models(new))
    kinds = {kind: [model_name(d.application) for d in found if d.kind == kind] for kind in KINDS}
    return {
        **kinds,
        "tenants": sorted(_different(old.tenants, new.tenants)),
        "controllers": switched(old.controllers.frozen, new.controllers.frozen),
        "reasons": [f"{model_name(d.application)}: {each}" for d in found for each in d.reasons],
    }


def same_version(settings: Settings, name: str, one: ModelSettings, other: ModelSettings) -> bool:
    """Whether two settings of a model start the same replicas, however many; the rest of the file
    is `settings`'."""
    both = (settings.model_copy(update={"models": {name: each}}) for each in (one, other))
    return not changes_between(*both)["restarted"]


def _models(settings: Settings) -> dict[str, Mapping[str, Any]]:
    apps = by_name(serve_config(settings, one_machine=True))
    return {name: app for name, app in apps.items() if is_model_app(name)}


def switched(was: bool, frozen: bool) -> list[str]:
    """What becomes of the controllers."""
    if was == frozen:
        return []
    return ["frozen" if frozen else "no longer frozen"]


def _different(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Names of what was added, removed or changed."""
    return (n for n in old.keys() | new.keys() if old.get(n) != new.get(n))
