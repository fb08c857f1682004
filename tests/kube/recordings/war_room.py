"""Records metrics of a real server under load: `python -m tests.kube.recordings.war_room`.

It plays `war-room.yaml`. Both gateways are scraped every five seconds for some six minutes, while
two tenants send rows of 5 to 5,000 tokens. A replica's process is killed a third of the way in,
four times as much comes for a minute and a half, and a model that sleeps is asked twice. Written
beside the scenario; tests and the documentation's pictures are made of it.
"""

from __future__ import annotations

import contextlib
import datetime
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import yaml

from loadtests.benches.runner import meanwhile
from loadtests.benches.server import SETTINGS_DIR, RunningServer, headrace, marked
from loadtests.client.http1 import Target
from loadtests.client.player import PlayedRequest, PlayerSettings, play
from loadtests.client.protocols.open_inference import OpenInference
from loadtests.client.protocols.types import Endpoint
from loadtests.results.report_table import this_machine
from loadtests.run import versions
from loadtests.traffic import scenario_file
from loadtests.traffic.plan import TrafficPlan
from tests.kube.recordings import series_file

HERE = Path(__file__).parent
RECORDING = HERE / "war-room.series.xz"
MODEL, SLEEPER = "device", "rare"
EVERY_S = 5.0
KILL_AT_S = 120.0
WAKE_AT_S = (60.0, 330.0)
COMMAND = "python -m tests.kube.recordings.war_room"


def record() -> series_file.SeriesRecording:
    """Starts a server, plays the scenario, stops the server."""
    scenario = scenario_file.load(HERE / "war-room.yaml", ())
    settings = yaml.safe_load((HERE / "war-room-server.yaml").read_text())
    with headrace(settings, name="war-room") as running:
        recorder, started = series_file.SeriesRecorder(), datetime.datetime.now(datetime.UTC)
        ends: list[PlayedRequest] = []
        stand = PlayerSettings(
            Target.parse(running.url), OpenInference(Endpoint(running.url, MODEL)).request
        )
        with scraping(recorder, targets(settings["gateway"]["replicas"])), faults(running):
            play(TrafficPlan(scenario, HERE), stand, ends.append)
    answered = sum(end.ok for end in ends)
    return recorder.done(
        {
            "command": COMMAND,
            "started": f"{started:%Y-%m-%d %H:%M:%S} UTC",
            "machine": this_machine(),
            "versions": ", ".join(f"{name} {number}" for name, number in versions().items()),
            "requests": f"{len(ends)} sent, {answered} answered",
        }
    )


def targets(gateways: int) -> dict[str, str]:
    """Each gateway's own page; their ports follow one another."""
    written = yaml.safe_load((SETTINGS_DIR / "war-room.yaml").read_text())
    first = written["gateway"]["metrics_port"]
    return {f"gateway-{n}": f"http://127.0.0.1:{first + n}/metrics" for n in range(gateways)}


@contextlib.contextmanager
def scraping(recorder: series_file.SeriesRecorder, urls: dict[str, str]) -> Iterator[None]:
    def scrape() -> None:
        pages = {}
        for name, url in urls.items():
            with urllib.request.urlopen(url, timeout=EVERY_S) as answer:
                pages[name] = answer.read().decode()
        recorder.add(round(time.time(), 3), pages)

    with meanwhile(EVERY_S, scrape):
        yield


@contextlib.contextmanager
def faults(running: RunningServer) -> Iterator[None]:
    """What happens at its moment: a replica dies, the sleeping model is asked."""
    due = [(KILL_AT_S, lambda: kill_replica(running))]
    due += [(at_s, lambda: ask_sleeper(running)) for at_s in WAKE_AT_S]
    timers = [threading.Timer(at_s, act) for at_s, act in due]
    for timer in timers:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()


def kill_replica(running: RunningServer) -> None:
    title = f"ray::ServeReplica:model-{MODEL}:model"
    for process in marked(running.mark):
        with contextlib.suppress(psutil.Error):
            if " ".join(process.cmdline()).startswith(title):
                process.kill()
                print(f"killed replica {process.pid}", flush=True)
                return
    raise RuntimeError(f"no process is titled {title}")


def ask_sleeper(running: RunningServer) -> None:
    body = b'{"inputs": [{"name": "ids", "datatype": "INT64", "shape": [1, 3], "data": [1, 2, 3]}]}'
    request = urllib.request.Request(
        f"{running.url}/v2/models/{SLEEPER}/infer", body, {"x-tenant": "chat"}
    )
    with urllib.request.urlopen(request, timeout=60.0) as answer:
        print(f"{SLEEPER} answered {answer.status}", flush=True)


if __name__ == "__main__":
    found = record()
    series_file.write(found, RECORDING)
    print(f"{RECORDING}: {len(found.at_s)} scrapes of {len(found.series)} series; {found.facts}")
