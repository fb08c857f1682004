"""Shows dashboards of a server on this machine: `make dashboard FILE=settings.yaml`.

Runs beside `headrace serve`. Prometheus scrapes every gateway's own port and evaluates the alerts.
Pages of our own show the dashboards (`page_server`); Grafana shows them too if it is installed.
Everything listens on 127.0.0.1 and ends with Ctrl-C. Settings and data are in out/dashboard and
stay there for the next time.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import click
import yaml

from deployments.control.serve_config import EVERY_INTERFACE
from deployments.process.loopback import LOOPBACK, keep_loopback_direct
from deployments.settings.gateway import GatewaySettings
from deployments.settings_files.load import load
from deployments.tools.observability import grafana_server, page_server, prometheus_server
from deployments.tools.observability.local_server import ServerFailed
from deployments.tools.observability.prometheus_binary import NoPrometheus
from deployments.tools.observability.prometheus_server import ServerFolder
from deployments.tools.observability.rules_file import rules_file
from yaml_document.mistakes import DocumentErrors

FOLDER = Path("out/dashboard")
_EVERY = "5s"


def targets(gateway: GatewaySettings) -> list[str]:
    """`host:port` of every gateway's own metrics on this machine."""
    host = gateway.metrics_host or LOOPBACK
    host = LOOPBACK if host in (EVERY_INTERFACE, "::") else host
    return [f"{host}:{gateway.metrics_port + rank}" for rank in range(gateway.replicas)]


def prometheus_config(gateways: Sequence[str], gpus: Sequence[str]) -> str:
    """Prometheus's configuration; both arguments are targets (`host:port`)."""
    jobs = {"headrace": list(gateways), "dcgm-exporter": list(gpus)}
    return yaml.safe_dump(
        {
            "global": {"scrape_interval": _EVERY, "evaluation_interval": _EVERY},
            "rule_files": ["alerts.yaml"],
            "scrape_configs": [
                {"job_name": name, "static_configs": [{"targets": found}]}
                for name, found in jobs.items()
                if found
            ],
        },
        sort_keys=False,
    )


def write_files(folder: Path, gateways: Sequence[str], gpus: Sequence[str]) -> ServerFolder:
    """Writes Prometheus's configuration, the alerts and the dashboards below `folder`."""
    made = ServerFolder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    made.config.write_text(prometheus_config(gateways, gpus))
    (folder / "alerts.yaml").write_text(rules_file())
    grafana_server.write_dashboards(folder / "grafana" / "dashboards")
    return made


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--port", default=9090, show_default=True, help="Prometheus's port.")
@click.option("--pages-port", default=9091, show_default=True, help="The pages' port.")
@click.option("--grafana-port", default=3000, show_default=True, help="Grafana's port.")
@click.option("--gpus", multiple=True, metavar="HOST:PORT", help="A dcgm-exporter; repeatable.")
@click.option("--folder", type=click.Path(path_type=Path), default=FOLDER, show_default=True)
def main(
    file: Path, port: int, pages_port: int, grafana_port: int, gpus: tuple[str, ...], folder: Path
) -> None:
    """Show what the server of FILE does, until Ctrl-C."""
    keep_loopback_direct()
    try:
        found = targets(load(file, here=False).gateway)
        made = write_files(folder, found, gpus)
        with contextlib.ExitStack() as stack:
            prometheus = stack.enter_context(prometheus_server.running(made, port))
            pages = stack.enter_context(page_server.serving(pages_port, prometheus))
            click.echo(f"pages       {pages}/headrace-war-room, {pages}/headrace-tenants")
            click.echo(f"Prometheus  {prometheus}, alerts {prometheus}/alerts")
            click.echo(
                f"Grafana     {_grafana(stack, folder / 'grafana', grafana_port, prometheus)}"
            )
            click.echo(f"scrapes     {', '.join([*found, *gpus])}")
            click.echo("Ctrl-C stops all of them.")
            _wait_for_signal()
    except (NoPrometheus, ServerFailed, DocumentErrors, OSError) as error:
        raise click.ClickException(str(error)) from error


def _grafana(stack: contextlib.ExitStack, folder: Path, port: int, prometheus: str) -> str:
    installed = grafana_server.home()
    if installed is None:
        return (
            f"is not installed here; import {folder / 'dashboards'} into one elsewhere, or name "
            f"the folder of an installed one in ${grafana_server.PLACE}"
        )
    return stack.enter_context(grafana_server.running(installed, folder, port, prometheus))


def _wait_for_signal() -> None:
    received = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: received.set())
    received.wait()


if __name__ == "__main__":
    sys.exit(main())
