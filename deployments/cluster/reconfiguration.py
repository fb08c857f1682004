"""Another settings file for a running server: what differs, what is put, what is taken back.

A model that cannot start is taken back alone: it goes on as it was, or stays away, and everything
else is as the new file says. Gateways re-read the tenants' file; a gateway's own settings cannot
change while it runs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import yaml

from deployments.cluster.applications import Place, serve_config
from deployments.settings.load import SettingsErrors, load
from deployments.settings.model import ModelSettings
from deployments.settings.tree import ControllerSettings, Settings, TenantsSettings


class Cluster(Protocol):
    """What this needs of the cluster."""

    def declare(self, names: list[str]) -> None: ...

    def put(self, config: dict[str, Any]) -> None: ...

    def settle(
        self, changed: Mapping[str, ModelSettings], stop: threading.Event
    ) -> dict[str, str]: ...


class Reconfiguration:
    """Of one running server: `settings` are what it runs now. Calls must come one at a time."""

    def __init__(
        self, settings: Settings, cluster: Cluster, place: Place, stop: threading.Event
    ) -> None:
        self.settings = settings
        self._cluster = cluster
        self._place = place
        self._stop = stop

    def apply(self, request: dict[str, Any]) -> dict[str, Any]:
        """Loads the file, refuses what cannot change while running, and puts the whole list."""
        try:
            new = load(Path(request["path"]))
        except SettingsErrors as wrong:
            return {"error": str(wrong)}
        gateway = self.settings.gateway
        if new.gateway.model_copy(update={"port": gateway.port, "host": gateway.host}) != gateway:
            return {"error": "gateway settings cannot change while it runs; stop and serve again"}
        new = new.model_copy(update={"gateway": gateway})
        changes = changes_between(self.settings, new)
        failed = self._put(new, changes["added"] + changes["changed"])
        if not failed:
            self.settings = new
            return changes
        kept = without(self.settings, new, failed)
        self._put(kept, [])
        self.settings = kept
        return {"error": "\n".join(taken_back(kept, failed))}

    def freeze(self, request: dict[str, Any]) -> dict[str, Any]:
        """Until it is asked for the opposite, or a file is applied: then that one holds."""
        switched = {"controllers": ControllerSettings(frozen=request["frozen"])}
        new = self.settings.model_copy(update=switched)
        write_tenants(new, Path(self._place.tenants_file))
        changes = changes_between(self.settings, new)
        self.settings = new
        return changes

    def _put(self, new: Settings, changed: list[str]) -> dict[str, str]:
        """Makes the list of models that of `new`; why those of `changed` that failed did."""
        write_tenants(new, Path(self._place.tenants_file))
        self._cluster.declare(list(new.models))
        self._cluster.put(serve_config(new, self._place))
        return self._cluster.settle({name: new.models[name] for name in changed}, self._stop)


def changes_between(old: Settings, new: Settings) -> dict[str, list[str]]:
    """Names of models by what happens to them, of tenants that differ, and what becomes of the
    controllers where that changes."""
    before, after = dict(old.models), dict(new.models)
    return {
        "added": sorted(after.keys() - before.keys()),
        "removed": sorted(before.keys() - after.keys()),
        "changed": sorted(n for n in before.keys() & after.keys() if before[n] != after[n]),
        "tenants": sorted(_different(old.tenants, new.tenants)),
        "controllers": _switched(old.controllers.frozen, new.controllers.frozen),
    }


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


def write_tenants(settings: Settings, path: Path) -> None:
    """Puts what gateways take up while they run where they re-read it, in one rename."""
    taken_up = settings.model_dump(mode="json", include=set(TenantsSettings.model_fields))
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as stream:
        stream.write(yaml.safe_dump(taken_up))
    os.replace(new, path)
