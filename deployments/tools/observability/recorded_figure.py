"""Draws the war room's panels over the recorded load, for the documentation:
`python -m deployments.tools.observability.recorded_figure docs/figures/war-room.svg`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

from deployments.tools.observability.dashboard_page import svg
from deployments.tools.observability.panel_figures import ask_all
from deployments.tools.observability.recorded_prometheus import WINDOW, of_recording
from deployments.tools.observability.war_room import WAR_ROOM
from loadtests.recordings import series_file, war_room

SHOWN = (
    "Arrivals by tenant", "Within the promise, by tenant", "Queue depth", "p50 by stage",
    "p95 by stage", "p99 by stage", "Total time", "Batch fill", "Padding", "Batch time by bucket",
    "Occupancy by replica", "Copies",
)  # fmt: skip


def drawn() -> str:
    """The picture (SVG). Raises NoPrometheus, ServerFailed, BlocksFailed and QueryFailed."""
    recording = series_file.read(war_room.RECORDING)
    with (
        tempfile.TemporaryDirectory() as folder,
        of_recording(recording, Path(folder)) as server,
    ):
        asked = {
            each.panel.title: each for each in ask_all(server.url, WAR_ROOM, server.span, WINDOW)
        }
    return svg(WAR_ROOM.title, [asked[title] for title in SHOWN])


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
def main(path: Path) -> None:
    """Write the picture to PATH."""
    path.write_text(drawn(), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
