"""Serve's list of Headrace's applications, and what it says of models' versions.

The autoscaler is told of the last file's models as they are written, and apart from them of what
else runs: canaries, and live versions that are not the file's. Pure: lists in, lists out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec.structs import replace as changed

from deployments.contract.app_names import CONTROL_APP, GATEWAY_APP, model_app
from deployments.contract.listed import (
    MAX_HISTORY,
    Control,
    Entry,
    NewerFormat,
    Version,
    parse,
    plain,
)
from deployments.contract.rollout.terms import canary_of
from deployments.control.dashboard import ClusterError

App = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Listed:
    """The list. `applications`: by name, without the control plane's own, which is `own` and holds
    `control`. `own` is None in a list that has none; then nobody drives rollouts there."""

    applications: Mapping[str, App] = field(default_factory=dict)
    own: App | None = None
    control: Control = field(default_factory=Control)

    @classmethod
    def of(cls, applications: Mapping[str, App]) -> Listed:
        """From Headrace's applications by name. Raises ClusterError if a newer version of Headrace
        wrote the list."""
        others = {name: app for name, app in applications.items() if name != CONTROL_APP}
        own = applications.get(CONTROL_APP)
        if own is None:
            return cls(others)
        try:
            return cls(others, own, parse(own["deployments"][0].get("user_config") or {}))
        except NewerFormat as newer:
            raise ClusterError(str(newer)) from None

    def all(self) -> dict[str, App]:
        """Headrace's applications by name, in the order in which they are put."""
        if self.own is None:
            return dict(self.applications)
        options = {**self.own["deployments"][0], "user_config": plain(self.control)}
        found = {n: app for n, app in self.applications.items() if n == GATEWAY_APP}
        found[CONTROL_APP] = {**self.own, "deployments": [options]}
        return {**found, **self.applications}

    def with_control(self, **fields: Any) -> Listed:
        return replace(self, control=changed(self.control, **fields))

    # ---- entries and history -------------------------------------------------------------------

    @property
    def entries(self) -> Mapping[str, Entry]:
        return self.control.entries

    def with_entry(self, model: str, entry: Entry) -> Listed:
        return self.with_control(entries={**self.entries, model: entry})

    def history(self, model: str) -> Sequence[Version]:
        return self.control.history.get(model, ())

    def with_history(self, model: str, versions: Sequence[Version]) -> Listed:
        others = {n: each for n, each in self.control.history.items() if n != model}
        kept = {model: tuple(versions)[-MAX_HISTORY:]} if versions else {}
        return self.with_control(history={**others, **kept})

    # ---- versions ------------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Whether a model of this name, or a canary, is to run."""
        return model_app(name) in self.applications

    def version(self, name: str) -> Version:
        """The version that is to run as the model of this name, or as its canary."""
        told = {**self._told_of_file(), **self.control.versions}
        return Version(self.applications[model_app(name)], told.get(name, {}))

    def with_version(self, name: str, version: Version) -> Listed:
        """The list with this version as the model of this name, or as its canary."""
        told = {**self.control.versions, name: version.scaling}
        if version.scaling == self._told_of_file().get(name):
            del told[name]
        listed = {**self.applications, model_app(name): version.application}
        return replace(self, applications=listed).with_control(versions=told)

    def without_canary(self, model: str) -> Listed:
        return self._without(canary_of(model))

    def without_model(self, model: str) -> Listed:
        """Without the model, of which no version can start. The autoscaler is not told of it."""
        sections = {**self.control.scaling}
        models = {n: each for n, each in sections.get("models", {}).items() if n != model}
        sections["models"] = models
        return self._without(model).with_control(scaling=sections)

    def _without(self, name: str) -> Listed:
        listed = {app: each for app, each in self.applications.items() if app != model_app(name)}
        told = {n: section for n, section in self.control.versions.items() if n != name}
        return replace(self, applications=listed).with_control(versions=told)

    def _told_of_file(self) -> Mapping[str, Any]:
        """By model: its section of the last file that was applied."""
        found: Mapping[str, Any] = self.control.scaling.get("models", {})
        return found
