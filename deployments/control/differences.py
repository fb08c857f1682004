"""What would a list of Serve applications do to those that run: start, end, restart or change them?

Serve rebuilds an application, and replaces its processes, if its import path, its runtime
environment or its arguments differ. Another reservation of resources replaces the processes of that
deployment. All other options of a deployment change while it runs. Pure: two lists in, differences
out, with the values that cause them.
Source: reading of ray 2.60 `serve/_private/deploy_utils.py`, `version.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from yaml_document.credentials import redacted

Kind = Literal["added", "removed", "restarted", "updated"]
_BUILDS = ("import_path", "runtime_env", "autoscaling_policy", "args")  # of an application
REPLACES = (  # options of a deployment that replace its processes
    "ray_actor_options", "placement_group_bundles", "placement_group_strategy",
    "max_replicas_per_node",
)  # fmt: skip
_ABSENT = "unset"
_SHOWN = 60  # characters of a value
_QUERY = re.compile(r"(?<=\S)\?[^#\s]*")  # of a URL; not shown, because it may be a signature


@dataclass(frozen=True, slots=True)
class Difference:
    """What would happen to one application. `reasons`: "path: old -> new", with those that restart
    it first; none for an application that is added or removed."""

    application: str
    kind: Kind
    reasons: tuple[str, ...] = ()


Applications = Mapping[str, Mapping[str, Any]]


def by_name(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The applications of a Serve config."""
    return {app["name"]: app for app in config["applications"]}


def differences(running: Applications, wanted: Applications) -> list[Difference]:
    """Applications by name, as Serve's config has them. Differences come in the order of `wanted`,
    removed applications last. Unchanged applications are left out."""
    found = [
        _compared(name, running[name], app) if name in running else Difference(name, "added")
        for name, app in wanted.items()
    ]
    removed = [Difference(name, "removed") for name in running if name not in wanted]
    return [each for each in found if each is not None] + removed


def _compared(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Difference | None:
    builds = [reason for at in _BUILDS for reason in changes(old.get(at), new.get(at), "")]
    restarts, updates = _of_deployments(old, new)
    if builds or restarts:
        return Difference(name, "restarted", (*builds, *restarts, *updates))
    return Difference(name, "updated", tuple(updates)) if updates else None


def _of_deployments(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The changes that replace processes, and those that apply while they run."""
    before, after = _deployments(old), _deployments(new)
    restarts: list[str] = []
    updates: list[str] = []
    for deployment in before.keys() | after.keys():
        was, will = before.get(deployment, {}), after.get(deployment, {})
        for option in sorted(was.keys() | will.keys()):
            reasons = changes(was.get(option), will.get(option), f"{deployment}.{option}")
            (restarts if option in REPLACES else updates).extend(reasons)
    return restarts, updates


def _deployments(app: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {each["name"]: each for each in app.get("deployments") or ()}


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
