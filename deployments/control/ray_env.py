"""The environment of Ray's processes in three layers: image, before `ray start`, Serve config.

Ray Serve reads its constants when a process imports them, Ray its own when a process starts. So the
process that reads a variable decides how late it may be set. A Serve config's
`controller_options.runtime_env.env_vars` reach the controller and, by inheritance, all that it
starts on every node: HAProxy's managers and all replicas. They are read only when the controller is
created. The raylet and other processes of `ray start` get only what was set before it. Every
variable may be set earlier: `headrace cluster env` prints all of them, for `ray start`.

Source: ray 2.60, `serve/_private/constants.py` and who imports what from it, and the raylet's
configuration. That a controller's variables reach proxies and replicas was tested.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from deployments.contract.haproxy_settings import DYNAMIC
from deployments.control.ingress import haproxy
from deployments.process.logs import LOG_FORMAT, LOG_LEVEL
from deployments.process.loopback import keep_loopback_direct
from deployments.settings.gateway import GatewaySettings
from deployments.settings.model_fields import MAX_TIMEOUT_MS, TIMEOUT_MS


class EnvLayer(StrEnum):
    """Who sets a variable: the image (same for all), the node (its own paths), or the settings."""

    IMAGE = "image"
    NODE = "node"
    CONFIG = "config"


class ProcessKind(StrEnum):
    """Which process reads a variable: those of `ray start`, then those that Serve's controller
    starts."""

    RAYLET = "raylet"
    DASHBOARD = "dashboard"
    CONTROLLER = "controller"
    HAPROXY = "haproxy"
    REPLICA = "replica"


HARD_STOP_S = int(MAX_TIMEOUT_MS / 1000) + 60
_LATER_S = 90  # until every HAProxy has heard of a change and dropped what it had
_OF_SERVE = {ProcessKind.CONTROLLER, ProcessKind.HAPROXY, ProcessKind.REPLICA}


@dataclass(frozen=True, slots=True)
class EnvVariable:
    """One environment variable."""

    name: str
    value: str
    layer: EnvLayer
    readers: tuple[ProcessKind, ...]
    why: str  # what it is for
    breaks: bool = False  # without it a cluster works wrongly, rather than slower or chattier

    @property
    def is_dynamic(self) -> bool:
        """Whether running processes take up a change of it: HAProxy asks its gateways, the others
        follow `process.log_choice`."""
        return self.name in DYNAMIC or self.name in (LOG_LEVEL, LOG_FORMAT)

    @property
    def in_config(self) -> bool:
        """Whether a Serve config can still set it."""
        return self.layer is not EnvLayer.NODE and set(self.readers) <= _OF_SERVE


def _baked(ha_proxy: bool) -> Iterator[EnvVariable]:
    """Variables that do not depend on the settings, except for `gateway.ingress`."""
    on, of = "1" if ha_proxy else "0", ProcessKind
    serve, replica = (of.CONTROLLER, of.HAPROXY, of.REPLICA), (of.REPLICA,)
    for name, value, readers, why, breaks in (
        ("RAY_SERVE_ENABLE_HA_PROXY", on, serve, "HAProxy takes requests", True),
        # Off where the gateway itself takes callers (`gateway.ingress: direct`): Serve turns its
        # own direct ingress on silently with the throughput settings, and then ignores proxy
        # locations.
        ("RAY_SERVE_ENABLE_DIRECT_INGRESS", on, serve,
         "it brings them to gateways without a proxy in Python", True),
        ("RAY_SERVE_THROUGHPUT_OPTIMIZED", "1", serve, "one event loop a replica", True),
        ("RAY_SERVE_QUEUE_LENGTH_CACHE_TIMEOUT_S", "3600", replica,
         "Serve does not ask replicas for queues that are ours", False),
        ("RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS", "1", (of.CONTROLLER,),
         "what answers no health check is not waited for", False),
        ("RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH",
         "deployments.gateway.http.fast_path:middlewares", (of.HAPROXY, of.REPLICA),
         "the gateways' way around Serve's wrapper, and their bounds", True),
        ("RAY_SERVE_HAPROXY_METRICS_ENABLED", "0", (of.HAPROXY,),
         "no datagram a request, parsed in Python", False),
        ("RAY_worker_niceness", "0", (of.RAYLET,),
         "Ray's own 15 lets every other process go before gateways", False),
        ("RAY_USAGE_STATS_ENABLED", "0", (of.DASHBOARD,), "no telemetry", False),
        ("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0", replica,
         "gateways leave accelerators' variables alone", False),
        ("OPENVINO_TELEMETRY_OPT_OUT", "1", replica, "no telemetry", False),
        ("TOKENIZERS_PARALLELISM", "false", replica, "no threads beside the gateway's pool", False),
        ("HF_HUB_OFFLINE", "1", replica, "nothing is fetched behind a model's back", False),
    ):  # fmt: skip
        yield EnvVariable(name, value, EnvLayer.IMAGE, readers, why, breaks)


def _of_settings(gateway: GatewaySettings) -> Iterator[EnvVariable]:
    """Variables for how replicas log, and for HAProxy where it runs."""
    log, tls, grpc, replica = gateway.log, gateway.tls, gateway.grpc, (ProcessKind.REPLICA,)
    yield EnvVariable(LOG_LEVEL, log.level, EnvLayer.CONFIG, replica, "gateway.log.level")
    yield EnvVariable(LOG_FORMAT, log.format, EnvLayer.CONFIG, replica, "gateway.log.format")
    if gateway.ingress == "direct":
        return
    for name, value, why in (
        ("RAY_SERVE_HAPROXY_STATS_PORT", gateway.haproxy_stats_port, "gateway.haproxy_stats_port"),
        ("RAY_SERVE_HAPROXY_METRICS_PORT", gateway.haproxy_metrics_port,
         "gateway.haproxy_metrics_port"),
        ("HEADRACE_HAPROXY_HOST", gateway.host, "gateway.host: where requests are accepted"),
        ("HEADRACE_HAPROXY_ADMIN_HOST", gateway.haproxy_admin_host, "gateway.haproxy_admin_host"),
        ("HEADRACE_HAPROXY_CERTIFICATE", tls.certificate if tls else "", "gateway.tls"),
        ("HEADRACE_HAPROXY_KEY", tls.key if tls else "", "gateway.tls"),
        ("HEADRACE_HAPROXY_CLIENT_CA", (tls.client_ca or "") if tls else "", "gateway.tls"),
        ("HEADRACE_HAPROXY_CLIENT_CA_OPERATORS",
         int(tls is not None and tls.client_ca_for == "operators"), "gateway.tls"),
        ("HEADRACE_HAPROXY_REPLAY", int(gateway.replay), "gateway.replay"),
        ("HEADRACE_HAPROXY_GRPC_PORT", grpc.port if grpc else "", "gateway.grpc.port"),
        ("HEADRACE_HAPROXY_GRPC_TLS", int(grpc is None or grpc.tls), "gateway.grpc.tls"),
        *((name, value(gateway), why) for name, (why, value) in DYNAMIC.items()),
    ):  # fmt: skip
        yield EnvVariable(name, str(value), EnvLayer.CONFIG, (ProcessKind.HAPROXY,), why)
    # A reloaded HAProxy ends with its last request. Serve reads the limit once, and models with
    # other timeouts may follow, so it is the longest timeout that settings can have.
    yield EnvVariable(
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S", str(HARD_STOP_S), EnvLayer.CONFIG,
        (ProcessKind.CONTROLLER, ProcessKind.HAPROXY), "as long as a stream may last, and a minute",
    )  # fmt: skip
    # An earlier HAProxy may send what it still has to a gateway's port once more. A controller
    # without a limit of its own would keep each port from others for as long as the hard stop.
    quarantine_s = max(int(gateway.drain_s), int(TIMEOUT_MS / 1000)) + _LATER_S
    yield EnvVariable(
        "RAY_SERVE_PORT_QUARANTINE_S", str(quarantine_s), EnvLayer.CONFIG,
        (ProcessKind.CONTROLLER,), "a gateway's port is not used again at once",
    )  # fmt: skip


def variables(gateway: GatewaySettings, program: Path | None = None) -> list[EnvVariable]:
    """All variables that a cluster's processes need, except Ray's own token. `program`: what stands
    in HAProxy's place on this node; None leaves it out."""
    found = [*_baked(gateway.ingress != "direct"), *_of_settings(gateway)]
    if program is not None and gateway.ingress != "direct":
        found.append(EnvVariable(
            "RAY_SERVE_HAPROXY_BINARY_PATH", str(program), EnvLayer.NODE, (ProcessKind.HAPROXY,),
            "HAProxy, behind the program that corrects Serve's template", True,
        ))  # fmt: skip
    return found


def config_env(gateway: GatewaySettings) -> dict[str, str]:
    """The variables that a Serve config can still set, by name, for its
    `controller_options.runtime_env.env_vars`."""
    return {each.name: each.value for each in variables(gateway) if each.in_config}


def restart_env(gateway: GatewaySettings) -> dict[str, str]:
    """Those of them of which a change needs a restart of Serve."""
    return {each.name: each.value for each in variables(gateway)
            if each.in_config and not each.is_dynamic}  # fmt: skip


# ---- a cluster of this machine alone ------------------------------------------------------------

# The first makes Ray use the loopback address as its node's, on Linux too, so that none of its
# servers face the network. Without the second, a Python process starts for every logical CPU.
_LOCAL = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_AUTH_MODE": "token",
    # Nobody lists tasks here, and reporting them is a seventh of what idle processes cost.
    "RAY_task_events_report_interval_ms": "0",
    # Ray's agents rename themselves, which would overwrite their environment. It holds the id by
    # which a server's processes are found after its host has died.
    "SPT_NOENV": "1",
    "RAY_DEDUP_LOGS": "0",
    # There is no HAProxy on another node that must first hear that a gateway goes.
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0",
}


OPERATOR_KEY = "HEADRACE_OPERATOR_KEY"
"""An operator's key, for commands that ask a server. Replicas run models' own code, which would
find it in its environment if the server was started where it is set."""


def local_environment(gateway: GatewaySettings, folder: Path) -> dict[str, str]:
    """Every variable of a local cluster, by name. `folder` holds HAProxy's files.

    Raises FileNotFoundError if HAProxy is wanted and there is none.
    """
    if gateway.ingress == "direct":
        return {each.name: each.value for each in variables(gateway)} | _LOCAL
    wanted = variables(gateway, haproxy.program(folder))
    return {
        **{each.name: each.value for each in wanted},
        **_LOCAL,
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
    }


def apply_environment(
    gateway: GatewaySettings,
    folder: Path,
    own: Mapping[str, str],
    environ: MutableMapping[str, str] | None = None,
) -> None:
    """Set the variables of a local cluster, and remove those that none of its processes needs.
    `own`: those of this start (ports, paths).

    Raises RuntimeError if Ray Serve was imported already, since it would not see them, and
    FileNotFoundError if HAProxy is wanted and there is none.
    """
    if "ray.serve" in sys.modules:
        raise RuntimeError("the environment must be set before ray.serve is imported")
    target = os.environ if environ is None else environ
    target.update(local_environment(gateway, folder))
    target.update(own)
    keep_loopback_direct(target)
    target["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    target.pop(OPERATOR_KEY, None)
