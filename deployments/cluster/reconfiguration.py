"""Another settings file for a running server: what differs, what is put, what is taken back.

A model that cannot start is taken back alone: it goes on as it was, or stays away, and everything
else is as the new file says. Gateways take up tenants as they are published; a gateway's own
settings cannot change while it runs.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from deployments.cluster.differences import by_name, differences
from deployments.cluster.scaling_terms import scaling_document
from deployments.cluster.serve_config import serve_config
from deployments.cluster.source_folders import relative_to
from deployments.contract.app_names import is_model_app, model_name
from deployments.settings.load import SettingsErrors, load, tenants_text
from deployments.settings.tree import ControllerSettings, Settings

KINDS = ("added", "removed", "restarted", "updated")


class Cluster(Protocol):
    """What this needs of the cluster."""

    def publish_tenants(self, text: str) -> None: ...

    def publish_scaling(self, text: str) -> None: ...

    def put(self, config: dict[str, Any]) -> None: ...

    def settle(
        self, settings: Settings, changed: Collection[str], stop: threading.Event
    ) -> dict[str, str]: ...


class Reconfiguration:
    """Of one running server: `settings` are what it runs now, with paths as written in a file in
    `folder`. Calls must come one at a time."""

    def __init__(
        self, settings: Settings, cluster: Cluster, folder: Path, stop: threading.Event
    ) -> None:
        self.settings = settings
        self._cluster = cluster
        self._folder = folder
        self._stop = stop

    def start(self) -> None:
        """Puts what it runs, and does not wait."""
        self._put(self.settings)

    def diff(self, request: dict[str, Any]) -> dict[str, Any]:
        """What `apply` of that file would do."""
        new = self._loaded(request)
        return {"error": new} if isinstance(new, str) else changes_between(self.settings, new)

    def apply(self, request: dict[str, Any]) -> dict[str, Any]:
        """Loads the file, refuses what cannot change while running, and puts the whole list."""
        new = self._loaded(request)
        if isinstance(new, str):
            return {"error": new}
        changes = changes_between(self.settings, new)
        touched = [*changes["added"], *changes["restarted"], *changes["updated"]]
        touched = [name for name in touched if not new.models[name].optional]
        self._put(new)
        failed = self._cluster.settle(new, touched, self._stop)
        if not failed:
            self.settings = new
            return changes
        kept = without(self.settings, new, failed)
        self._put(kept)
        self._cluster.settle(kept, [], self._stop)
        self.settings = kept
        return {"error": "\n".join(taken_back(kept, failed))}

    def _loaded(self, request: dict[str, Any]) -> Settings | str:
        """The new settings, or why they cannot be had."""
        path = Path(request["path"])
        try:
            new = load(path, absolute=False)
        except SettingsErrors as wrong:
            return str(wrong)
        gateway = self.settings.gateway
        address = {"port": gateway.port, "host": gateway.host}
        if new.gateway.model_copy(update=address) != gateway:
            return "gateway settings cannot change while it runs; stop and serve again"
        new = new.model_copy(update={"gateway": gateway})
        return relative_to(new, path.absolute().parent, self._folder)

    def freeze(self, request: dict[str, Any]) -> dict[str, Any]:
        """Until it is asked for the opposite, or a file is applied: then that one holds."""
        if self.settings.gateway.tenants_path is not None:
            where = self.settings.gateway.tenants_path
            return {"error": f"{where} says what is frozen: set controllers.frozen there"}
        switched = {"controllers": ControllerSettings(frozen=request["frozen"])}
        new = self.settings.model_copy(update=switched)
        self._cluster.publish_tenants(tenants_text(new))
        changes = changes_between(self.settings, new)
        self.settings = new
        return changes

    def _put(self, new: Settings) -> None:
        if new.gateway.tenants_path is None:
            self._cluster.publish_tenants(tenants_text(new))
        self._cluster.publish_scaling(scaling_document(new).text())
        self._cluster.put(serve_config(new, one_machine=True))


def changes_between(old: Settings, new: Settings) -> dict[str, list[str]]:
    """Names of models by what happens to them (`updated`: while they run), each that restarts with
    the reasons; of tenants that differ; what becomes of the controllers where that changes."""
    found = differences(_models(old), _models(new))
    kinds = {kind: [model_name(d.application) for d in found if d.kind == kind] for kind in KINDS}
    return {
        **kinds,
        "tenants": sorted(_different(old.tenants, new.tenants)),
        "controllers": _switched(old.controllers.frozen, new.controllers.frozen),
        "reasons": [f"{model_name(d.application)}: {each}" for d in found for each in d.reasons],
    }


def _models(settings: Settings) -> dict[str, Mapping[str, Any]]:
    apps = by_name(serve_config(settings, one_machine=True))
    return {name: app for name, app in apps.items() if is_model_app(name)}


def _switched(was: bool, frozen: bool) -> list[str]:
    if was == frozen:
        return []
    return ["frozen" if frozen else "no longer frozen"]


def _different(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Names of what was added, removed or changed."""
    return (n for n in old.keys() | new.keys() if old.get(n) != new.get(n))


def without(old: Settings, new: Settings, failed: Collection[str]) -> Settings:
    """`new`, but a failed model is what it was before, or not there."""
    was = {name: old.models[name] for name in failed if name in old.models}
    models = {n: m for n, m in new.models.items() if n not in failed}
    return new.model_copy(update={"models": models | was})


def taken_back(kept: Settings, failed: Mapping[str, str]) -> Iterator[str]:
    """What to say of models that failed, by name and reason; `kept` is what runs now."""
    for name, reason in failed.items():
        left = "goes on as it was" if name in kept.models else "was left out"
        yield f"model {name} cannot start and {left}: {reason}"
    yield "everything else is as the file says"
