"""Runs a Prometheus that holds the metrics of a recorded load, to try queries on real data.

The recording's samples become blocks, with the times at which they were scraped. The recording
rules' series are then added for the same time. A series ends after a few missed scrapes
(`query.lookback-delta`) rather than after Prometheus's five minutes, because blocks lack the
staleness markers that Prometheus writes when a series disappears.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deployments.tools.observability.local_server import free_port
from deployments.tools.observability.prometheus_api import Span
from deployments.tools.observability.prometheus_binary import needed
from deployments.tools.observability.prometheus_server import ServerFolder, running
from deployments.tools.observability.rules_file import rules_file
from loadtests.recordings.series_file import Recording

_CONFIG = "global: {scrape_interval: 1h}\nscrape_configs: []\n"
_KEEP = "--storage.tsdb.retention.time=100y"
_MISSED_SCRAPES = 2.5
_BLOCKS_S = 300
WINDOW = "30s"  # of rates: spans several scrapes


class BlocksFailed(RuntimeError):
    """promtool failed or did not end in time; the message quotes its output."""


@dataclass(frozen=True, slots=True)
class RecordedServer:
    url: str
    span: Span


@contextlib.contextmanager
def of_recording(recording: Recording, path: Path) -> Iterator[RecordedServer]:
    """Yields the running server and the recording's span. `path`: an empty folder.

    Raises NoPrometheus, ServerFailed and BlocksFailed.
    """
    folder, at_s = ServerFolder(path), recording.at_s
    every_s = round((at_s[-1] - at_s[0]) / (len(at_s) - 1), 1)
    span = Span(at_s[0], at_s[0] + every_s * (len(at_s) - 1), every_s)
    folder.config.write_text(_CONFIG)
    samples, rules = path / "samples.txt", path / "alerts.yaml"
    with samples.open("w") as file:
        file.writelines(recording.openmetrics())
    rules.write_text(rules_file())
    _promtool("create-blocks-from", "openmetrics", str(samples), str(folder.data))
    options = (_KEEP, f"--query.lookback-delta={int(every_s * _MISSED_SCRAPES * 1000)}ms")
    with running(folder, free_port(), options) as url:
        _promtool(
            "create-blocks-from", "rules", f"--url={url}", f"--start={int(span.begin_s)}",
            f"--end={int(span.end_s)}", f"--eval-interval={int(every_s * 1000)}ms",
            f"--output-dir={folder.data}", str(rules),
        )  # fmt: skip
    with running(folder, free_port(), options) as url:
        yield RecordedServer(url, span)


def _promtool(*arguments: str) -> None:
    command = [str(needed("promtool")), "tsdb", *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_BLOCKS_S, check=False
        )
    except subprocess.TimeoutExpired as late:
        raise BlocksFailed(f"`{' '.join(command)}` did not end within {_BLOCKS_S} s") from late
    if done.returncode:
        raise BlocksFailed(f"`{' '.join(command)}` failed: {done.stdout}{done.stderr}")
