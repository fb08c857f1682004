"""A Ray cluster on machines of a `Lab`: one head that runs nothing, workers beside it.

Each node is `ray start --block` on a machine of its own, small enough for several on one computer.
Who knows what shall run there says which environment a node needs; Serve's applications are seen
and changed from outside, through the dashboard's REST with the cluster's token.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx

from tests.cluster.machines import Lab, Machine, only_child

PATIENCE = float(os.environ.get("HEADRACE_TEST_PATIENCE", "4"))
DASHBOARD_PORT = 8265
CPUS = 8  # that a worker says it has
_OBJECT_STORE_BYTES = 80 * 1024 * 1024
_GCS_PORT = 6379
_RAY = str(Path(sys.executable).with_name("ray"))
_ANSWER_S = 30.0
_POLL_S = 0.1


def until(condition: Callable[[], bool], limit_s: float, what: str) -> float:
    """Seconds until it held. Fails when the limit, on a quiet machine, passes before."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + limit_s * PATIENCE, f"not in time: {what}"
        time.sleep(_POLL_S)
    return time.monotonic() - began


class Node:
    """A machine that runs `ray start --block`; `words`: of its command line."""

    def __init__(self, machine: Machine, env: Mapping[str, str], *words: str) -> None:
        self.machine = machine
        self.env = env
        self._words = words
        self.start()

    def start(self) -> None:
        """Also anew, once it has ended."""
        command = [
            _RAY, "start", "--block", "--disable-usage-stats", "--node-ip-address", self.ip,
            "--object-store-memory", str(_OBJECT_STORE_BYTES), *self._words,
        ]  # fmt: skip
        with (self.machine.root / "tmp/ray-start.log").open("a") as log:
            self.process = self.machine.start(
                *command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @property
    def ip(self) -> str:
        return self.machine.ip

    @property
    def name(self) -> str:
        return self.machine.name

    @property
    def url(self) -> str:
        return f"http://{self.ip}"

    @property
    def runs(self) -> bool:
        return self.machine.runs and self.process.poll() is None

    def terminate(self) -> None:
        """SIGTERM to `ray start --block`, as a kubelet sends it to a pod that shall go."""
        os.kill(only_child(self.process.pid), signal.SIGTERM)

    def processes(self, title: str) -> list[int]:
        """Pids, as this machine numbers them, of those whose name begins so."""
        listed = self.machine.run("ps", "axo", "pid,args").stdout.splitlines()[1:]
        rows = (line.split(maxsplit=1) for line in listed)
        return [int(pid) for pid, args in rows if args.startswith(title)]

    def listening(self, title: str) -> list[tuple[str, int]]:
        """Address and port of everything that those processes listen on; `*` is every address."""
        pids = {f"pid={pid}," for pid in self.processes(title)}
        found = []
        for line in self.machine.run("ss", "-H", "-l", "-t", "-n", "-p").stdout.splitlines():
            if any(pid in line for pid in pids):
                address, _, port = line.split()[3].rpartition(":")
                found.append((address, int(port)))
        return found


class RayNodes:
    """`environment`: what a node's processes need, called once its machine is there."""

    def __init__(self, lab: Lab, environment: Callable[[Machine], Mapping[str, str]]) -> None:
        self._lab = lab
        self._environment = environment
        self._made = 0
        self.token = secrets.token_hex(32)
        self.workers: list[Node] = []

    def start_head(self, **env: str) -> None:
        """Where there was one, another takes its address. `env`: its alone."""
        before = getattr(self, "head", None)
        words = ["--head", "--port", str(_GCS_PORT), "--num-cpus", "0", "--dashboard-host",
                 "0.0.0.0", "--dashboard-port", str(DASHBOARD_PORT)]  # fmt: skip
        self.head = self._node("head", words, env, before)
        self.rest = httpx.Client(
            base_url=f"{self.head.url}:{DASHBOARD_PORT}",
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=_ANSWER_S * PATIENCE,
        )
        until(self.reachable, 30, "the dashboard answers")

    def add_worker(self) -> Node:
        self._made += 1
        words = ["--address", f"{self.head.ip}:{_GCS_PORT}", "--num-cpus", str(CPUS)]
        self.workers.append(self._node(f"worker{self._made}", words, {}))
        return self.workers[-1]

    def _node(
        self, name: str, words: list[str], env: Mapping[str, str], before: Node | None = None
    ) -> Node:
        machine = self._lab.machine(name, before.machine if before else None)
        own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token}
        return Node(machine, {**self._environment(machine), **own, **env}, *words)

    def remove(self, node: Node) -> None:
        """Its machine ends, if it has not yet."""
        self.workers.remove(node)
        node.machine.kill()

    @property
    def nodes(self) -> list[Node]:
        return [self.head, *self.workers]

    # ---- through the dashboard's REST ---------------------------------------------------------

    def reachable(self) -> bool:
        try:
            return self.rest.get("/api/version", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def alive(self) -> set[str]:
        """Addresses of the nodes that Ray takes for alive."""
        nodes = self.rest.get("/nodes?view=summary").json()["data"]["summary"]
        return {n["raylet"]["nodeManagerAddress"] for n in nodes if n["raylet"]["state"] == "ALIVE"}

    def serve_details(self) -> dict[str, Any]:
        """Applications, replicas and proxies, as Serve's REST interface describes them."""
        answer = self.rest.get("/api/serve/applications/")
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def applications(self) -> dict[str, Any]:
        """Serve's, by name."""
        found: dict[str, Any] = self.serve_details()["applications"]
        return found
