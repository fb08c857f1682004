"""Serve's list of applications: which are Headrace's, how two lists differ, what our block says.

Serve takes a whole list at a time, and deletes what was in the last list and is not in this one. So
whoever puts Headrace's applications must put everybody else's again, unchanged. Applications that
were deployed from code (`serve.run`) are in no list and stay by themselves.

Serve rebuilds an application, and replaces its processes, if its import path, its runtime
environment or its arguments differ. Another reservation of resources replaces the processes of that
deployment. All other options of a deployment change while it runs. Pure: lists in, lists out.
Source: reading of ray 2.60 `serve/_private/deploy_utils.py`, `version.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

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
from deployments.control.ray_env import restart_env
from deployments.control.serve_config import BUILDERS, LOGGING, in_cluster
from deployments.settings.gateway import GatewaySettings
from yaml_document.credentials import redacted

# ---- our applications, and what is known of versions ---------------------------------------------


App = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AppList:
    """The list. `applications`: by name, without the control plane's own, which is `own` and holds
    `control`. `own` is None in a list that has none; then nobody drives rollouts there."""

    applications: Mapping[str, App] = field(default_factory=dict)
    own: App | None = None
    control: Control = field(default_factory=Control)

    @classmethod
    def of(cls, applications: Mapping[str, App]) -> AppList:
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

    def with_control(self, **fields: Any) -> AppList:
        return replace(self, control=changed(self.control, **fields))

    # ---- entries and history -------------------------------------------------------------------

    @property
    def entries(self) -> Mapping[str, Entry]:
        return self.control.entries

    def with_entry(self, model: str, entry: Entry) -> AppList:
        return self.with_control(entries={**self.entries, model: entry})

    def history(self, model: str) -> Sequence[Version]:
        return self.control.history.get(model, ())

    def with_history(self, model: str, versions: Sequence[Version]) -> AppList:
        others = {n: each for n, each in self.control.history.items() if n != model}
        kept = {model: tuple(versions)[-MAX_HISTORY:]} if versions else {}
        return self.with_control(history={**others, **kept})

    # ---- versions ------------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Whether a model of this name, or a canary, is to run."""
        return model_app(name) in self.applications

    def version(self, name: str) -> Version:
        """The version that is to run as the model of this name, or as its canary."""
        told = {**self._file_models(), **self.control.versions}
        return Version(self.applications[model_app(name)], told.get(name, {}))

    def with_version(self, name: str, version: Version) -> AppList:
        """The list with this version as the model of this name, or as its canary."""
        told = {**self.control.versions, name: version.scaling}
        if version.scaling == self._file_models().get(name):
            del told[name]
        listed = {**self.applications, model_app(name): version.application}
        return replace(self, applications=listed).with_control(versions=told)

    def without_canary(self, model: str) -> AppList:
        return self._without(canary_of(model))

    def without_model(self, model: str) -> AppList:
        """Without the model, of which no version can start. The autoscaler is not told of it."""
        sections = {**self.control.scaling}
        models = {n: each for n, each in sections.get("models", {}).items() if n != model}
        sections["models"] = models
        return self._without(model).with_control(scaling=sections)

    def _without(self, name: str) -> AppList:
        listed = {app: each for app, each in self.applications.items() if app != model_app(name)}
        told = {n: section for n, section in self.control.versions.items() if n != name}
        return replace(self, applications=listed).with_control(versions=told)

    def _file_models(self) -> Mapping[str, Any]:
        """By model: its section of the last file that was applied."""
        found: Mapping[str, Any] = self.control.scaling.get("models", {})
        return found


# ---- how two lists differ ------------------------------------------------------------------------


DifferenceKind = Literal["added", "removed", "restarted", "updated"]
_BUILDS = ("import_path", "runtime_env", "autoscaling_policy", "args")  # of an application
REPLACES = (  # options of a deployment that replace its processes
    "ray_actor_options", "placement_group_bundles", "placement_group_strategy",
    "max_replicas_per_node",
)  # fmt: skip
_ABSENT = "unset"
_SHOWN = 60  # characters of a value
_QUERY = re.compile(r"(?<=\S)\?[^#\s]*")  # of a URL; not shown, because it may be a signature


@dataclass(frozen=True, slots=True)
class AppDifference:
    """What would happen to one application. `reasons`: "path: old -> new", with those that restart
    it first; none for an application that is added or removed."""

    application: str
    kind: DifferenceKind
    reasons: tuple[str, ...] = ()


Applications = Mapping[str, Mapping[str, Any]]


def by_name(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The applications of a Serve config."""
    return {app["name"]: app for app in config["applications"]}


def differences(running: Applications, wanted: Applications) -> list[AppDifference]:
    """Applications by name, as Serve's config has them. Differences come in the order of `wanted`,
    removed applications last. Unchanged applications are left out."""
    found = [
        _compared(name, running[name], app) if name in running else AppDifference(name, "added")
        for name, app in wanted.items()
    ]
    removed = [AppDifference(name, "removed") for name in running if name not in wanted]
    return [each for each in found if each is not None] + removed


def _compared(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> AppDifference | None:
    restarts = [reason for at in _BUILDS for reason in changes(old.get(at), new.get(at), "")]
    updates: list[str] = []
    before, after = ({d["name"]: d for d in app.get("deployments") or ()} for app in (old, new))
    for deployment in before.keys() | after.keys():
        was, will = before.get(deployment, {}), after.get(deployment, {})
        for option in sorted(was.keys() | will.keys()):
            reasons = changes(was.get(option), will.get(option), f"{deployment}.{option}")
            (restarts if option in REPLACES else updates).extend(reasons)
    if restarts:
        return AppDifference(name, "restarted", (*restarts, *updates))
    return AppDifference(name, "updated", tuple(updates)) if updates else None


def changes(old: Any, new: Any, path: str) -> Iterator[str]:
    """The changes between two JSON values below `path`. An empty mapping counts as none."""
    if isinstance(old, Mapping) or isinstance(new, Mapping):
        was = old if isinstance(old, Mapping) else {}
        will = new if isinstance(new, Mapping) else {}
        for name in [*was, *(n for n in will if n not in was)]:
            at = f"{path}.{name}" if path else str(name)
            yield from changes(was.get(name), will.get(name), at)
    elif old != new:
        yield f"{path}: {_shown(old)} -> {_shown(new)}"


def _shown(value: Any) -> str:
    text = _ABSENT if value is None else _QUERY.sub("?...", redacted(str(value)))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


# ---- beside other people's applications ----------------------------------------------------------


_UNSAFE = {  # that HAProxy must not be told while it runs with another value
    "HEADRACE_HAPROXY_HOST", "HEADRACE_HAPROXY_ADMIN_HOST", "HEADRACE_HAPROXY_REPLAY",
    "RAY_SERVE_HAPROXY_STATS_PORT", "RAY_SERVE_HAPROXY_METRICS_PORT",
}  # fmt: skip


def ours(details: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Configs of Headrace's applications, by name, as they were put."""
    return {name: app for name, app in _configs(details) if is_ours(app)}


def others(details: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Configs of all other applications that were put as a list."""
    return {name: app for name, app in _configs(details) if not is_ours(app)}


def merged(config: Mapping[str, Any], details: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with all other applications added. Raises ClusterError if they cannot go together: a
    name or a route is taken, or Serve listens elsewhere."""
    foreign = others(details)
    for app in config["applications"]:
        if conflict := _conflict(app, details, foreign):
            raise ClusterError(conflict)
    # HAProxy gets its variables from Serve's controller, which reads them when Serve starts, and
    # never again: these would make it unsafe or unreachable.
    if unsafe := _changed_variables(config, ours(details)) & _UNSAFE:
        raise ClusterError(
            f"{', '.join(sorted(unsafe))} would change, which Serve hears only when it starts: "
            "`headrace stop --address`, `serve shutdown`, then apply"
        )
    if details.get("applications"):
        wanted, there = config["http_options"], details.get("http_options") or {}
        for option in ("host", "port"):
            if option in there and there[option] != wanted[option]:
                raise ClusterError(
                    f"the server listens with {option} {there[option]} there, and this file wants "
                    f"{wanted[option]} (gateway.{option}); it reads that only when it starts"
                )
    return {**config, **beside_others(config["applications"], details)}


def beside_others(
    applications: Iterable[Mapping[str, Any]], details: Mapping[str, Any]
) -> dict[str, Any]:
    """A list of these applications of Headrace, and of all other applications. Without the options
    for logs, which Serve does not keep for what comes later, an application that was changed would
    write its logs otherwise."""
    applications = [*applications, *others(details).values()]
    return {"logging_config": LOGGING, "applications": applications}


def _configs(details: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The applications that a list put. Those that Serve is deleting are in no list any more."""
    for name, app in details.get("applications", {}).items():
        config = app.get("deployed_app_config")
        if config and app.get("status") != "DELETING":
            yield name, config


def is_ours(app: Mapping[str, Any]) -> bool:
    """Whether the application, as Serve's list has it, is one of Headrace's."""
    return app.get("import_path") in BUILDERS.values()


def _conflict(
    app: Mapping[str, Any], details: Mapping[str, Any], foreign: Mapping[str, Any]
) -> str | None:
    name, route = app["name"], app["route_prefix"]
    running = details.get("applications", {}).get(name, {"status": "DELETING"})
    theirs = name in foreign or not running.get("deployed_app_config")
    if theirs and running.get("status") != "DELETING":
        return f"an application named {name} that is not Headrace's runs there; delete it first"
    for other, found in details.get("applications", {}).items():
        if route is not None and other != name and found.get("route_prefix") == route:
            return f"application {other} has the route {route} already; delete it first"
    return None


def waiting_for_restart(config: Mapping[str, Any], details: Mapping[str, Any]) -> list[str]:
    """Names of variables that the running processes will get only when Serve is restarted."""
    return sorted(_changed_variables(config, ours(details)) - _UNSAFE)


def _changed_variables(config: Mapping[str, Any], running: Applications) -> set[str]:
    if GATEWAY_APP not in running:
        return set()
    written = (apps[GATEWAY_APP]["args"]["settings"] for apps in (running, by_name(config)))
    old, new = (restart_env(in_cluster(GatewaySettings.model_validate(s))) for s in written)
    return {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
