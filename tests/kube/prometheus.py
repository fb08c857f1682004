"""A Prometheus that holds the metrics of a recorded load, to try queries on real data.

The recording's samples become blocks, with the times at which they were scraped. The recording
rules' series are then added for the same time. A series ends after a few missed scrapes
(`query.lookback-delta`) rather than after Prometheus's five minutes, because blocks lack the
staleness markers that Prometheus writes when a series disappears.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from deployments.tools.observability.alerts import rules_file
from deployments.tools.observability.promql import RATE_WINDOW
from tests.kube.recordings.series_file import SeriesRecording

_KEEP = "--storage.tsdb.retention.time=100y"
_MISSED_SCRAPES = 2.5
_START_S, _BLOCKS_S = 30.0, 300.0
WINDOW = "30s"  # of rates: spans several scrapes


def program(name: str) -> Path:
    """`prometheus` or `promtool`: of $HEADRACE_PROMETHEUS, of `make prometheus`, of $PATH. The test
    is skipped where there is none."""
    made = os.environ.get("HEADRACE_PROMETHEUS", str(Path(sys.prefix, "prometheus/usr/bin")))
    found = shutil.which(name, path=f"{made}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        pytest.skip(f"NOT TRIED: {name} is not installed; `make prometheus` gets it")
    return Path(found)


def plain(query: str) -> str:
    """A dashboard's query with Grafana's variables filled in."""
    query = query.replace(RATE_WINDOW, WINDOW)
    for name in ("namespace", "model", "tenant"):
        query = query.replace(f"${name}", ".*")
    return query


@dataclass(frozen=True, slots=True)
class Answer:
    """One series: a value for each scrape of the recording, NaN where there is none."""

    labels: Mapping[str, str]
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class RecordedServer:
    """Its address; the first scrape (Unix seconds), seconds between two, how many there are."""

    url: str
    begin_s: float
    every_s: float
    scrapes: int

    def ask(self, query: str) -> list[Answer]:
        """The series over the recording. Raises ValueError in Prometheus's words."""
        end_s = self.begin_s + self.every_s * (self.scrapes - 1)
        form = {"query": query, "start": self.begin_s, "end": end_s, "step": self.every_s}
        answer = httpx.post(f"{self.url}/api/v1/query_range", data=form, timeout=30.0).json()
        if answer["status"] != "success":
            raise ValueError(answer["error"])
        found = []
        for series in answer["data"]["result"]:
            values = [math.nan] * self.scrapes
            for at_s, text in series["values"]:
                values[round((at_s - self.begin_s) / self.every_s)] = float(text)
            found.append(Answer(series["metric"], values))
        return found


@contextlib.contextmanager
def of_recording(recording: SeriesRecording, folder: Path) -> Iterator[RecordedServer]:
    """`folder`: an empty one."""
    at_s = recording.at_s
    every_s = round((at_s[-1] - at_s[0]) / (len(at_s) - 1), 1)
    (folder / "prometheus.yml").write_text("global: {scrape_interval: 1h}\nscrape_configs: []\n")
    with (folder / "samples.txt").open("w") as file:
        file.writelines(recording.openmetrics())
    (folder / "alerts.yaml").write_text(rules_file())
    lookback = f"--query.lookback-delta={int(every_s * _MISSED_SCRAPES * 1000)}ms"
    _blocks("openmetrics", str(folder / "samples.txt"), str(folder / "data"))
    with _running(folder, lookback) as url:
        end_s = at_s[0] + every_s * (len(at_s) - 1)
        _blocks(
            "rules", f"--url={url}", f"--start={int(at_s[0])}", f"--end={int(end_s)}",
            f"--eval-interval={int(every_s * 1000)}ms", f"--output-dir={folder / 'data'}",
            str(folder / "alerts.yaml"),
        )  # fmt: skip
    with _running(folder, lookback) as url:
        yield RecordedServer(url, at_s[0], every_s, len(at_s))


@contextlib.contextmanager
def _running(folder: Path, lookback: str) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [
        program("prometheus"), f"--config.file={folder / 'prometheus.yml'}", _KEEP, lookback,
        f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}",
    ]  # fmt: skip
    with (folder / "prometheus.log").open("wb") as log:
        child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait(f"http://{address}")
        yield f"http://{address}"
    finally:
        child.terminate()
        child.wait()


def _wait(url: str) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/-/ready").status_code == 200:
                return
        time.sleep(0.05)
    raise AssertionError("Prometheus did not start")


def _blocks(*arguments: str) -> None:
    command = [program("promtool"), "tsdb", "create-blocks-from", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_BLOCKS_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
