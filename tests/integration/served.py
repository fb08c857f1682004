"""A server under test, started as a user starts it: `headrace serve FILE`, in processes of its own.

Every port is free at the moment of asking, state and cache lie in a folder of the test. Whatever
the server starts inherits a mark in its environment, by which tests find its processes and, after
it ended, what it left behind. It runs the code of this checkout, whatever is installed. Tests wait
for conditions; all their limits are multiplied by `PATIENCE`, since machines differ and are shared.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import yaml

from deployments.tools.where import ask

# Without certificates, which take 30 ms of a processor to load for each request.
http = SimpleNamespace(
    get=partial(httpx.get, verify=False),
    post=partial(httpx.post, verify=False),
    request=partial(httpx.request, verify=False),
)
MARK = "HEADRACE_TEST_MARK"
CHECKOUT = Path(__file__).parents[2]
# -P: as the installed command, which never imports from the folder where it is typed.
HEADRACE = [sys.executable, "-P", "-m", "deployments.cli"]
PATIENCE = float(os.environ.get("HEADRACE_TEST_PATIENCE", "4"))
ANSWER_S = 15 * PATIENCE
_PAGE_KEPT_S = 1.0  # how old a metrics port's page may be
_PAUSE_S = 0.02  # of a load's client: without it the load takes the processors that it waits for
PORTS = ("port", "metrics_port", "haproxy_stats_port", "haproxy_metrics_port")


def free_port(count: int = 1) -> int:
    """The first of `count` ports in a row that nobody listens on, below the ephemeral range. Each
    of several processes of tests has a range of its own."""
    begin = 20_000 + 5_000 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    for first in range(begin + os.getpid() % 3_000, begin + 5_000, count):
        with contextlib.ExitStack() as sockets:
            try:
                for port in range(first, first + count):
                    probe = sockets.enter_context(socket.socket())
                    probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if first not in _given:
            _given.update(range(first, first + count))
            return first
    raise RuntimeError("no port is free")


_given: set[int] = set()


def patient(limit_s: float) -> float:
    """What a limit that would do on a quiet machine is on this one."""
    return limit_s * PATIENCE


def environment(**own: str) -> dict[str, str]:
    """This process's environment, with this checkout first on the import path."""
    path = os.pathsep.join(p for p in (str(CHECKOUT), os.environ.get("PYTHONPATH")) if p)
    return {**os.environ, "PYTHONPATH": path, **own}


def synthetic(**fields: Any) -> dict[str, Any]:
    """A model's settings; `options` and the rest as in a file."""
    return {"runtime": "synthetic", "slo": {"latency_ms": 20_000}, **fields}


def adder(base_ms: float, fail_ids: Sequence[int] = (), **fields: Any) -> dict[str, Any]:
    """As `synthetic`, but a Python class of a user's own."""
    source = f"{CHECKOUT}/tests/integration/classes:adder:Adder"
    settings = {"base_ms": base_ms, "fail_ids": list(fail_ids)}
    return synthetic(**fields) | {
        "runtime": "python", "source": source, "options": {"settings": settings}
    }  # fmt: skip


# How fast a busy machine answers is no matter here.
QUICK_ROLLOUT = {
    "steps_percent": [20, 50], "hold_s": 1, "min_requests": 20,
    "max_latency_ratio": 100,
}  # fmt: skip


def model_with_rollout(
    base_ms: float, rollout: dict[str, Any] = QUICK_ROLLOUT, fail_ids: Sequence[int] = ()
) -> dict[str, Any]:
    """A version of a model of two replicas that has a rollout."""
    replicas = {"count": 2, "num_cpus": 0}
    return adder(base_ms, fail_ids, replicas=replicas, rollout=rollout)


class Server:
    """`models`, `gateway`, `tenants`: as in a file. Nothing runs before `start`. `before`: words
    before the server's own command, of a program that becomes it; `beside`: before other commands.
    While `reads` is cleared nobody reads what the terminal is written."""

    def __init__(self, folder: Path, models: dict[str, Any], **sections: Any) -> None:
        self.folder = folder
        self.models = models
        gateways = sections.get("gateway", {}).get("replicas", 1)
        counts = {"metrics_port": gateways}
        ports = {name: free_port(counts.get(name, 1)) for name in PORTS}
        self.gateway = {**ports, "replicas": 1, **sections.pop("gateway", {})}
        self.file = self.write("settings.yaml", models, **sections)
        self.mark = uuid.uuid4().hex
        self.environ = environment(
            XDG_STATE_HOME=str(folder / "state"),
            XDG_CACHE_HOME=str(folder / "cache"),
            **{MARK: self.mark},
        )
        self.started_s = 0.0
        self.before: list[str] = []
        self.beside: list[str] = []
        self.reads = threading.Event()
        self.reads.set()
        self._output = bytearray()

    @property
    def port(self) -> int:
        return int(self.gateway["port"])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def write(self, name: str, models: dict[str, Any], **sections: Any) -> Path:
        """A settings file for this server's gateway."""
        path = self.folder / name
        path.write_text(yaml.safe_dump({"models": models, "gateway": self.gateway} | sections))
        return path

    # ---- life -------------------------------------------------------------------------------

    def start(self, *, ready: bool = True) -> Server:
        """In a terminal of its own."""
        began = time.monotonic()
        self._output = bytearray()
        self._terminal, inside = pty.openpty()
        self.process = subprocess.Popen(
            [*self.before, *HEADRACE, "serve", str(self.file)],
            stdin=inside, stdout=inside, stderr=inside,
            env=self.environ,
            cwd=self.folder,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(inside)
        threading.Thread(target=self._read, daemon=True).start()
        if ready:
            # A replica's own log says "ready: " too, before the command line does.
            said = "ready: http"
            self.until(lambda: get(f"{self.url}/readyz") == 200 and said in self.output, 120)
            self.started_s = time.monotonic() - began
        return self

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while chunk := os.read(self._terminal, 65_536):
                self._output += chunk
                self.reads.wait()

    @property
    def output(self) -> str:
        """What the terminal has been shown so far."""
        return self._output.decode(errors="replace")

    def until(self, condition: Callable[[], bool], limit_s: float) -> None:
        """Fails when the server ends or the limit, on a quiet machine, passes before it holds."""
        end = time.monotonic() + patient(limit_s)
        while not condition():
            assert self.process.poll() is None, f"the server ended:\n{self.output}"
            assert time.monotonic() < end, f"not within {patient(limit_s)} s:\n{self.output}"
            time.sleep(0.05)

    def press_ctrl_c(self) -> None:
        os.write(self._terminal, b"\x03")

    def wait(self, limit_s: float = 40) -> int:
        """The exit code."""
        try:
            return self.process.wait(patient(limit_s))
        except subprocess.TimeoutExpired as late:
            raise AssertionError(f"{late}:\n{self.output}") from None

    @property
    def ended(self) -> bool:
        """Whether it was started, and its foreground process has gone."""
        return hasattr(self, "process") and self.process.poll() is not None

    def end(self) -> list[str]:
        """Ends what still runs; the command lines of what it left behind, which are ended too."""
        if not hasattr(self, "process"):
            return []
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(patient(40))
        return self.clear()

    def clear(self) -> list[str]:
        """Kills what a server that has ended left behind; the command lines of it."""
        left = [describe(process) for process in self.remaining()]
        while processes := self.processes():
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(processes, timeout=1)
        return left

    # ---- what is there ----------------------------------------------------------------------

    def processes(self) -> list[psutil.Process]:
        """All that carries the mark, the foreground process included."""
        return [p for p in psutil.process_iter() if _environ(p).get(MARK) == self.mark]

    def remaining(self, grace_s: float = 5.0) -> list[psutil.Process]:
        """What is left after a grace: a child of one that ended hears of it by a closed pipe."""
        end = time.monotonic() + patient(grace_s)
        while (left := self.processes()) and time.monotonic() < end:
            time.sleep(0.1)
        return left

    def host(self) -> psutil.Process:
        return next(
            p
            for p in self.processes()
            if "deployments.control.supervisor.host_process" in describe(p)
        )

    def called(self, name: str) -> list[psutil.Process]:
        """Processes that the kernel knows by that name, such as `haproxy`."""
        return [p for p in self.processes() if name_of(p) == name]

    def named(self, title: str) -> list[psutil.Process]:
        """Processes whose command line begins with `title`, such as `ray::ServeReplica:gateway`."""
        return [p for p in self.processes() if describe(p).startswith(title)]

    def replicas(self, model: str) -> set[int]:
        """Pids of a model's replicas."""
        return {p.pid for p in self.named(f"ray::ServeReplica:model-{model}:model")}

    def gateway_urls(self) -> list[str]:
        """Each gateway's own address, past HAProxy, by rank; of those that answer."""
        first, found = int(self.gateway["metrics_port"]), {}
        for process in self.named("ray::ServeReplica:gateway"):
            ports = [port for _, port in listens_on(process)]
            ranks = [p - first for p in ports if 0 <= p - first < self.gateway["replicas"]]
            urls = [f"http://127.0.0.1:{port}" for port in ports]
            found |= dict(zip(ranks, [u for u in urls if get(f"{u}/healthz") == 200], strict=False))
        return [found[rank] for rank in sorted(found)]

    def metrics(self, rank: int = 0) -> str:
        """The page of one gateway, with all that has happened until now. Each gateway's own port
        shows a page that may be a second old; callers' port has it fresh, of any gateway, where no
        keys are asked for."""
        if self.gateway["replicas"] == 1:
            answer = http.get(f"{self.url}/metrics")
            if answer.status_code == 200:
                return answer.text
        time.sleep(_PAGE_KEPT_S)
        answer = http.get(f"http://127.0.0.1:{self.gateway['metrics_port'] + rank}/metrics")
        assert answer.status_code == 200
        return answer.text

    def listening(self) -> list[tuple[str, int, str]]:
        """Address, port and whose, of everything that the server listens on."""
        return [
            (ip, port, describe(process)[:80])
            for process in self.processes()
            for ip, port in listens_on(process)
        ]

    # ---- use --------------------------------------------------------------------------------

    def headrace(self, *arguments: str, limit_s: float = 90) -> subprocess.CompletedProcess[str]:
        """Another command of the same user, on this server's state."""
        return subprocess.run(
            [*self.beside, *HEADRACE, *arguments],
            env={k: v for k, v in self.environ.items() if k != MARK},
            capture_output=True, text=True, timeout=patient(limit_s), check=False,
        )  # fmt: skip

    def status(self) -> dict[str, Any]:
        """As the command line asks for it; without its imports, which take 0.7 s of a processor."""
        if not self.beside:
            return ask(self.port, {"do": "status"})
        asked = self.headrace("status", "--port", str(self.port), "--json")
        assert asked.returncode == 0, asked.stderr
        answer: dict[str, Any] = json.loads(asked.stdout)
        return answer

    def works_on(self, model: str, batches: int = 1) -> None:
        """Waits until so many of a model's batches are at its replicas."""
        name = "headrace_inflight_batches"
        self.until(lambda: metric(self.metrics(), name, model=model) == batches, 10)

    def model_status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = next(m for m in self.status()["models"] if m["name"] == name)
        return found

    def infer(
        self,
        model: str,
        ids: list[int],
        *,
        headers: dict[str, str] | None = None,
        within_s: float = ANSWER_S,
    ) -> httpx.Response:
        url, body = self._infer_url(model), infer_body(ids)
        return http.post(url, json=body, headers=headers, timeout=within_s)

    def _infer_url(self, model: str, gateway: str = "") -> str:
        return f"{gateway or self.url}/v2/models/{model}/infer"

    @contextlib.contextmanager
    def load(
        self, model: str, clients: int = 4, *, gateway: str = "", tenant: str = "default"
    ) -> Iterator[Load]:
        """Steady requests on kept connections, one after another from each client. `gateway`: of
        `gateway_urls`; through HAProxy without."""
        load = Load(self._infer_url(model, gateway), clients, {"x-tenant": tenant})
        try:
            yield load
        finally:
            load.stop()

    @contextlib.contextmanager
    def writes(
        self, kind: Completions, clients: int, *, gateway: str = "", tenant: str = "default"
    ) -> Iterator[Load]:
        """As `load`, for a model that generates."""
        url = f"{gateway or self.url}/v1/completions"
        load = Load(url, clients, {"x-tenant": tenant}, kind)
        try:
            yield load
        finally:
            load.stop()


@contextlib.contextmanager
def running(server: Server) -> Iterator[Server]:
    """Started, and at the end ended; it must leave nothing behind."""
    try:
        yield server.start()
    finally:
        left = server.end()
    assert not left, left


class Rows:
    """One row a request, whose numbers the model adds up."""

    def body(self, client: int) -> dict[str, Any]:
        return infer_body([client + 1, 2, 3])

    def is_right(self, client: int, answer: httpx.Response) -> bool:
        return total(answer) == client + 6


@dataclass(frozen=True)
class Completions:
    """Of so many tokens each."""

    model: str
    tokens: int

    def body(self, client: int) -> dict[str, Any]:
        prompt = f"client {client} asks for some words"
        return {"model": self.model, "prompt": prompt, "max_tokens": self.tokens}

    def is_right(self, client: int, answer: httpx.Response) -> bool:
        tokens: int = answer.json()["usage"]["completion_tokens"]
        return tokens == self.tokens


LoadKind = Rows | Completions


class Load:
    """`failures`: what was not a right answer, as text."""

    def __init__(
        self, url: str, clients: int, headers: dict[str, str], kind: LoadKind | None = None
    ) -> None:
        self._url, self._headers, self._kind = url, headers, kind or Rows()
        self._over = threading.Event()
        self.answered = 0
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(clients)]
        for thread in self._threads:
            thread.start()

    def _ask(self, client: int) -> None:
        body = self._kind.body(client)
        with httpx.Client(verify=False, timeout=ANSWER_S, headers=self._headers) as connection:
            while not self._over.wait(_PAUSE_S):
                try:
                    answer = connection.post(self._url, json=body)
                except httpx.HTTPError as error:
                    self.failures.append(f"{type(error).__name__}: {error}")
                    continue
                if answer.status_code == 200 and self._kind.is_right(client, answer):
                    self.answered += 1
                else:
                    self.failures.append(f"{answer.status_code} {answer.text[:200]}")

    def goes_on(self, server: Server, answers: int = 20) -> None:
        """Waits until so many more have been answered."""
        aim = self.answered + answers
        server.until(lambda: self.answered >= aim, 30)

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


class Later:
    """A request on a thread of its own."""

    def __init__(self, request: Callable[[], httpx.Response]) -> None:
        self._answer: httpx.Response | Exception = RuntimeError("no answer yet")
        self._thread = threading.Thread(target=self._run, args=(request,))
        self._thread.start()

    def _run(self, request: Callable[[], httpx.Response]) -> None:
        try:
            self._answer = request()
        except Exception as error:
            self._answer = error

    def answer(self) -> httpx.Response:
        """Raises what the request raised."""
        self._thread.join()
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def infer_body(ids: list[int]) -> dict[str, Any]:
    ids_input = {"name": "ids", "datatype": "INT64", "shape": [1, len(ids)], "data": ids}
    return {"inputs": [ids_input]}


def total(answer: httpx.Response) -> float:
    """The sum that a synthetic model answers one row with."""
    value: float = answer.json()["outputs"][0]["data"][0]
    return value


def metric(page: str, name: str, **labels: str) -> float:
    """The sum of a metric over the samples that carry these labels."""
    found = re.findall(rf"^{name}(?:{{([^}}]*)}})? ([0-9.e+-]+)$", page, re.MULTILINE)
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    values = [float(value) for carried, value in found if all(w in carried for w in wanted)]
    assert values, (name, labels)
    return sum(values)


def get(url: str) -> int:
    """The status, 0 when nothing answers."""
    try:
        return http.get(url, timeout=5).status_code
    except httpx.HTTPError:
        return 0


def listens_on(process: psutil.Process) -> list[tuple[str, int]]:
    """Addresses and TCP ports, none of a process that has ended: a HAProxy that Serve has just
    replaced, a driver."""
    try:
        connections = process.net_connections("tcp")
    except psutil.Error:
        return []
    return [(*c.laddr,) for c in connections if c.status == psutil.CONN_LISTEN]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def describe(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def name_of(process: psutil.Process) -> str:
    """Empty when it has just ended."""
    try:
        return process.name()
    except psutil.Error:
        return ""


def _environ(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ() if process.status() != psutil.STATUS_ZOMBIE else {}
    except (psutil.Error, OSError):
        return {}
