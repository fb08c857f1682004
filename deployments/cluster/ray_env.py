"""The environment that Ray and Ray Serve read at import, set before anything imports them.

Serve's constants are module-level: they must stand in the environment of every process of the
cluster, so they are set by the process that starts Ray (children inherit them); a cluster started
otherwise must be given the same. The plain proxy is the fallback where HAProxy cannot run; direct
ingress stays off there, because Serve turns it on silently with the throughput settings (and then
ignores proxy locations).
Source: reading of ray 2.60 `serve/_private/constants.py`.
"""

from __future__ import annotations

import os
import resource
import secrets
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from deployments.settings.gateway import GatewaySettings

_ALWAYS = {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_QUEUE_LENGTH_CACHE_TIMEOUT_S": "3600",
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "deployments.gateway.http.fast_path:middlewares",
    "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",  # a datagram a request, parsed in Python
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # Ray's own 15 lets every other process go before gateways
    "OPENVINO_TELEMETRY_OPT_OUT": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}

# A cluster that `serve` starts is this machine's alone: the first makes Ray take the loopback
# address for its node's, on Linux too, so that none of its servers face the network; without the
# second a Python process starts for every logical CPU.
_LOCAL = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_AUTH_MODE": "token",
    # Nobody lists tasks here, and telling of them is a seventh of what idle processes cost.
    "RAY_task_events_report_interval_ms": "0",
    # Ray's agents rename themselves, which else overwrites their environment; in it stands the id
    # by which a server's processes are found once its host is dead.
    "SPT_NOENV": "1",
}

_MAXCONN = 65_536
_OTHER_FILES = 200


def resolved_ingress(ingress: str, platform: str = sys.platform) -> str:
    """`haproxy` or `proxy`: what `auto` means on this platform."""
    if ingress != "auto":
        return ingress
    return "haproxy" if platform.startswith("linux") else "proxy"


def serve_environment(gateway: GatewaySettings, folder: Path) -> dict[str, str]:
    """Every variable that the cluster's processes need, by name. `folder` holds HAProxy's files."""
    env = dict(_ALWAYS)
    if resolved_ingress(gateway.ingress) == "haproxy":
        env |= _haproxy(gateway, folder)
    else:
        env |= {"RAY_SERVE_ENABLE_HA_PROXY": "0", "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0"}
    return env


def haproxy_maxconn() -> int:
    """As many connections as the open files this process may have allow, at most 65,536: HAProxy
    takes two and a half of them each, and refuses to start when the limit is too low for that."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return _MAXCONN
    return max(100, min(_MAXCONN, int((hard - _OTHER_FILES) / 2.5)))


def _haproxy(gateway: GatewaySettings, folder: Path) -> dict[str, str]:
    return {
        "RAY_SERVE_HAPROXY_MAXCONN": str(haproxy_maxconn()),
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_ENABLE_DIRECT_INGRESS": "1",
        "RAY_SERVE_HAPROXY_NBTHREAD": str(gateway.haproxy_threads),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(gateway.haproxy_stats_port),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(gateway.haproxy_metrics_port),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": str(int(gateway.drain_s) + 60),
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0",
    }


def apply_environment(
    gateway: GatewaySettings,
    folder: Path,
    own: Mapping[str, str],
    environ: MutableMapping[str, str] | None = None,
) -> None:
    """Sets the variables of a local cluster; `own` are this start's (ports, paths).

    Refuses when Ray Serve was imported already: it would not see them.
    """
    if "ray.serve" in sys.modules:
        raise RuntimeError("the environment must be set before ray.serve is imported")
    target = os.environ if environ is None else environ
    target.update(serve_environment(gateway, folder))
    target.update(_LOCAL)
    target.update(own)
    target["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def auth_headers() -> dict[str, str]:
    """What the cluster's REST wants from whoever started it: a token of this cluster alone."""
    return {"Authorization": f"Bearer {os.environ['RAY_AUTH_TOKEN']}"}
