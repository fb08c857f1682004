"""The other servers of the overhead figure, each started the way its own documentation starts it.

`ray-serve` is the plain app with `max_ongoing_requests` raised so that batches can form;
`ray-serve-defaults` leaves even that as it comes. `triton` runs the device in Triton's Python
backend; `pytriton` binds it through PyTriton. Their processes are ended when they leave some.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadtests.benches.launched import Launch, RunningServer, free_port, launched
from loadtests.peers import venvs

PEERS_DIR = Path(__file__).parent.parent / "peers"
RAY_SERVE = "ray-serve"
RAY_SERVE_DEFAULTS = "ray-serve-defaults"
TRITON = "triton"
PYTRITON = "pytriton"
PEERS = (RAY_SERVE, RAY_SERVE_DEFAULTS, TRITON, PYTRITON)


def launch_of(name: str, port: int) -> Launch:
    """Makes Triton's environment when it is not there yet (half a minute)."""
    url = f"http://127.0.0.1:{port}"
    environ = {"RAY_USAGE_STATS_ENABLED": "0"}
    return Launch(name, command_of(name, port), url, f"{url}/v2/models/device/ready", environ)


def command_of(name: str, port: int) -> list[str]:
    if name in (TRITON, PYTRITON):
        python = str(venvs.make(venvs.PEERS["triton"]))
        script = {TRITON: "serve.py", PYTRITON: "bind.py"}[name]
        return [python, str(PEERS_DIR / "triton" / script), "--port", str(port)]
    raised = ["--max-ongoing", "256"] if name == RAY_SERVE else []
    app = "loadtests.peers.ray_serve_plain.app"
    return [sys.executable, "-m", app, "--port", str(port), *raised]


@contextmanager
def peer(name: str) -> Iterator[RunningServer]:
    with launched(launch_of(name, free_port())) as running:
        yield running
