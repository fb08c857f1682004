"""Merges Headrace's applications into the list of all applications on a cluster.

Serve takes a whole list at a time, and deletes what was in the last list and is not in this one. So
whoever puts Headrace's applications must put everybody else's again, unchanged. Applications that
were deployed from code (`serve.run`) are in no list and stay by themselves. Pure: Serve's details
in, a list out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from deployments.contract.app_names import GATEWAY_APP
from deployments.control.addresses import in_cluster
from deployments.control.dashboard import ClusterError
from deployments.control.differences import Applications, by_name
from deployments.control.ray_env import config_env
from deployments.control.serve_config import BUILDERS, LOGGING
from deployments.settings.gateway import GatewaySettings

_LISTENS = ("host", "port")
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
    _check_heard_once(config, ours(details))
    if details.get("applications"):
        _check_address(config["http_options"], details.get("http_options") or {})
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
    running = details.get("applications", {}).get(name)
    leaves = running is not None and running.get("status") == "DELETING"
    if (
        running is not None
        and not leaves
        and (name in foreign or not running.get("deployed_app_config"))
    ):
        return f"an application named {name} that is not Headrace's runs there; delete it first"
    for other, found in details.get("applications", {}).items():
        if route is not None and other != name and found.get("route_prefix") == route:
            return f"application {other} has the route {route} already; delete it first"
    return None


def _check_heard_once(config: Mapping[str, Any], running: Applications) -> None:
    """Raises ClusterError for changes that would make HAProxy unsafe or unreachable. HAProxy gets
    its variables from Serve's controller, which reads them when Serve starts, and never again."""
    changed = _heard_once(config, running) & _UNSAFE
    if changed:
        raise ClusterError(
            f"{', '.join(sorted(changed))} would change, which Serve hears only when it starts: "
            "`headrace stop --address`, `serve shutdown`, then apply"
        )


def heard_later(config: Mapping[str, Any], details: Mapping[str, Any]) -> list[str]:
    """Names of variables that the running processes will get only when Serve is restarted."""
    return sorted(_heard_once(config, ours(details)) - _UNSAFE)


def _heard_once(config: Mapping[str, Any], running: Applications) -> set[str]:
    if GATEWAY_APP not in running:
        return set()
    old, new = _environment(running), _environment(by_name(config))
    return {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}


def _environment(applications: Applications) -> dict[str, str]:
    settings = applications[GATEWAY_APP]["args"]["settings"]
    return config_env(in_cluster(GatewaySettings.model_validate(settings)))


def _check_address(wanted: Mapping[str, Any], running: Mapping[str, Any]) -> None:
    """Raises ClusterError if Serve would have to listen elsewhere: it reads these options once,
    when it starts, and ignores them later."""
    for option in _LISTENS:
        if option in running and running[option] != wanted[option]:
            raise ClusterError(
                f"the server listens with {option} {running[option]} there, and this file wants "
                f"{wanted[option]} (gateway.{option}); it reads that only when it starts"
            )
