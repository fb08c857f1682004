"""Runs a Grafana that is installed on this machine, with the dashboards and our own Prometheus.

Neither PyPI nor Debian has Grafana, so this module never fetches Grafana. $HEADRACE_GRAFANA names
the folder of an installed one (with `bin/grafana` and `conf/`), or `grafana` is in $PATH. The
dashboards are the chart's own files, provisioned. Whoever can reach 127.0.0.1 sees them without
logging in.

Source: Grafana's documentation, "Provisioning" and "Configure Grafana".
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import yaml

from deployments.tools.observability import local_server
from deployments.tools.observability.grafana import DASHBOARDS, dashboard_json
from deployments.tools.observability.local_server import HOST, LocalServer

PLACE = "HEADRACE_GRAFANA"
_START_S = 120.0  # Grafana's first start writes a database


def home() -> Path | None:
    """The folder that Grafana is installed in, if there is one."""
    named = os.environ.get(PLACE)
    if named:
        return Path(named)
    found = shutil.which("grafana")
    beside = Path("/usr/share/grafana") if found is None else Path(found).resolve().parents[1]
    return next(
        (each for each in (beside, Path("/usr/share/grafana")) if (each / "conf").is_dir()), None
    )


def write_dashboards(folder: Path) -> list[Path]:
    """Writes each dashboard to a file that any Grafana imports; returns the files' paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for dashboard in DASHBOARDS:
        paths.append(folder / f"{dashboard.name}.json")
        paths[-1].write_text(dashboard_json(dashboard))
    return paths


def running(
    installed: Path, folder: Path, port: int, prometheus: str
) -> contextlib.AbstractContextManager[str]:
    """A context that runs Grafana and has its address. Entering the context raises ServerFailed.

    `folder` gets Grafana's settings and data; `folder/dashboards` has the dashboards. `prometheus`
    is the address of the data source.
    """
    provisioning = _provisioned(folder, prometheus)
    program = installed / "bin" / "grafana"
    command = (
        str(program if program.exists() else shutil.which("grafana") or program), "server",
        f"--homepath={installed}",
    )  # fmt: skip
    environ = {
        **os.environ,
        "GF_SERVER_HTTP_ADDR": HOST,
        "GF_SERVER_HTTP_PORT": str(port),
        "GF_PATHS_DATA": str(folder / "data"),
        "GF_PATHS_LOGS": str(folder / "log"),
        "GF_PATHS_PROVISIONING": str(provisioning),
        "GF_AUTH_ANONYMOUS_ENABLED": "true",
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
    }
    log = folder / "grafana.log"
    return local_server.running(
        LocalServer(
            "Grafana", command, port, "--grafana-port", "/api/health", log, _START_S, environ
        )
    )


def _provisioned(folder: Path, prometheus: str) -> Path:
    source = {"name": "Prometheus", "type": "prometheus", "url": prometheus, "isDefault": True}
    provider = {
        "name": "headrace",
        "type": "file",
        "options": {"path": str((folder / "dashboards").absolute())},
    }
    place = folder / "provisioning"
    for name, content in (
        ("datasources", {"apiVersion": 1, "datasources": [{**source, "access": "proxy"}]}),
        ("dashboards", {"apiVersion": 1, "providers": [provider]}),
    ):
        (place / name).mkdir(parents=True, exist_ok=True)
        (place / name / "headrace.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return place.absolute()
