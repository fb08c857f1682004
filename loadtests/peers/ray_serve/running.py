"""Runs a Serve application on a Ray cluster of its own until a signal ends it."""

from __future__ import annotations

import signal
import threading

import ray
from ray import serve
from ray.serve import Application


def serve_until_ended(application: Application, port: int) -> None:
    """Prints `ready` once the application answers on `port`; ends Serve and Ray on SIGTERM or
    SIGINT."""
    stopped = threading.Event()
    ray.init(address="local", include_dashboard=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(application, route_prefix="/")
        # Ray replaces the handlers while it starts, so ours come last.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopped.set())
        print("ready", flush=True)
        stopped.wait()
    finally:
        serve.shutdown()
        ray.shutdown()
