"""Environment variables for Ray Serve's throughput mode, and for a Ray on this machine alone.

Ray Serve reads them when it is imported, in every process, so the process that starts Ray must have
them. HAProxy's ports and files are chosen anew for each start.
Source: Ray Serve guide "High throughput"; ray 2.60 `serve/_private/constants.py`.
"""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

LOCAL = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's own servers take the loopback address
    "RAY_prestart_worker_first_driver": "0",
}
THROUGHPUT = {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "1",
    "RAY_SERVE_HAPROXY_NBTHREAD": "1",
    "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0",
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(variant: str) -> dict[str, str]:
    if variant != "throughput":
        return LOCAL
    folder = Path(tempfile.mkdtemp(prefix="ray-serve-peer-"))
    own = {
        "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port()),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port()),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
    }
    return LOCAL | THROUGHPUT | own
