"""What would another settings file do to a running server's models, tenants and controllers?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from deployments.contract.app_names import is_model_app, model_name
from deployments.control.differences import by_name, changes, differences
from deployments.control.serve_config import serve_config
from deployments.settings.model import ModelSettings
from deployments.settings.tree import Settings
from yaml_document.section import Section

_SECTIONS = ("operators", "scaling")  # in force as soon as the file is applied
KINDS = ("added", "removed", "restarted", "updated")


def changes_between(old: Settings, new: Settings) -> dict[str, list[str]]:
    """The names of models by what happens to them (`updated`: while they run), with the reasons of
    each restart; the tenants that differ; the controllers' new state, if it changes; and which
    other sections differ (`sections`)."""
    found = differences(_models(old), _models(new))
    kinds = {kind: [model_name(d.application) for d in found if d.kind == kind] for kind in KINDS}
    reasons = [f"{model_name(d.application)}: {each}" for d in found for each in d.reasons]
    named = {model_name(d.application) for d in found}
    for name in new.models.keys() & old.models.keys() - named:
        # What the autoscaler and the rollout driver read is in no application's arguments.
        if lines := fields_changed(old.models[name], new.models[name]):
            kinds["updated"].append(name)
            reasons += [f"{name}: {line}" for line in lines]
    return {
        **kinds,
        "tenants": sorted(_different(old.tenants, new.tenants)),
        "controllers": switched(old.controllers.frozen, new.controllers.frozen),
        "sections": [each for each in _SECTIONS if getattr(old, each) != getattr(new, each)],
        "reasons": reasons,
    }


def fields_changed(old: Section, new: Section, path: str = "") -> list[str]:
    """The settings that differ below `path`: "path: old -> new". A default that is written out is
    no difference."""
    if old == new:
        return []
    return list(changes(old.model_dump(mode="json"), new.model_dump(mode="json"), path))


def same_version(settings: Settings, name: str, one: ModelSettings, other: ModelSettings) -> bool:
    """Whether two settings of a model start the same replicas, in whatever number. `settings`: the
    rest of the file."""
    both = (settings.model_copy(update={"models": {name: each}}) for each in (one, other))
    return not changes_between(*both)["restarted"]


def _models(settings: Settings) -> dict[str, Mapping[str, Any]]:
    apps = by_name(serve_config(settings, one_machine=True))
    return {name: app for name, app in apps.items() if is_model_app(name)}


def switched(was: bool, frozen: bool) -> list[str]:
    """The controllers' new state in words; [] if it does not change."""
    if was == frozen:
        return []
    return ["frozen" if frozen else "no longer frozen"]


def _different(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """The names of what was added, removed or changed."""
    return (n for n in old.keys() | new.keys() if old.get(n) != new.get(n))
