"""Bench: what does one scikit-learn model cost to serve, in lines and in requests a second?

`python -m loadtests.benches.tabular`: 32 clients send one flower a request, as JSON over HTTP, to
the same random forest of 50 trees behind Headrace (`runtime: python`), Triton's Python backend,
LitServe, BentoML and Ray Serve, each written as its documentation shows (`loadtests/peers/tabular`)
and batching up to 32 rows. Measured are requests a second, p50 and p99; lines are those of code and
configuration that a user writes, without blank lines, comments and docstrings.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from loadtests.benches.runner import (
    Bench,
    BenchOption,
    Column,
    in_systems,
    median,
    rates,
    times_the_others,
    total,
)
from loadtests.benches.server import (
    Launch,
    RunningServer,
    cpu_between,
    free_port,
    headrace,
    launched,
    post,
)
from loadtests.client.http1 import Target, render
from loadtests.client.load import Call, Load, LoadResult, run
from loadtests.peers import venvs

FOLDER = Path(__file__).resolve().parent.parent / "peers" / "tabular"
ROOT = FOLDER.parents[2]
FLOWER, SPECIES = [5.1, 3.5, 1.4, 0.2], "setosa"
_TENSORS = {"inputs": [{"name": "flower", "shape": [1, 4], "datatype": "FP32", "data": FLOWER}]}
HEADRACE = "headrace"


@dataclass(frozen=True, slots=True)
class TabularSystem:
    """`files`: what a user writes; `program`: after the interpreter, before the port."""

    path: str
    body: dict[str, Any]
    files: tuple[str, ...]
    ready: str = "/"
    environment: str = ""  # of `venvs`; "": this process's own
    program: tuple[str, ...] = ()


SYSTEMS = {
    HEADRACE: TabularSystem(
        "/v2/models/forest/infer", _TENSORS, ("headrace_forest.py", "headrace.yaml"), "/readyz"
    ),
    "triton": TabularSystem(
        "/v2/models/forest/infer",
        _TENSORS,
        ("triton/forest/1/model.py", "triton/forest/config.pbtxt"),
        "/v2/models/forest/ready",
        "triton",
        (
            *(str(ROOT / "loadtests/peers/triton/serve.py"), "--repository"),
            *(str(FOLDER / "triton"), "--port"),
        ),
    ),
    "litserve": TabularSystem(
        "/predict",
        {"flower": FLOWER},
        ("litserve_forest.py",),
        "/health",
        "tabular",
        (str(FOLDER / "litserve_forest.py"),),
    ),
    "bentoml": TabularSystem(
        "/predict",
        {"flowers": [FLOWER]},
        ("bentoml_forest.py",),
        "/readyz",
        "tabular",
        (
            *("-m", "bentoml", "serve", "bentoml_forest:Forest", "--working-dir", str(FOLDER)),
            *("--host", "127.0.0.1", "--port"),
        ),
    ),
    "ray-serve": TabularSystem(
        "/",
        {"flower": FLOWER},
        ("ray_serve_forest.py",),
        program=("-m", "loadtests.peers.tabular.ray_serve_forest"),
    ),
}


@dataclass(frozen=True, slots=True)
class TabularTrial:
    """One measurement of one server."""

    result: LoadResult
    lines: int
    server_cpu_us: float  # a request

    def record(self) -> dict[str, Any]:
        return {
            **self.result.summary(), "lines": self.lines, "server_cpu_us": self.server_cpu_us,
        }  # fmt: skip


def lines_of(system: TabularSystem) -> int:
    return sum(_lines(FOLDER / name) for name in system.files)


def _lines(file: Path) -> int:
    text = file.read_text()
    if file.suffix == ".py":
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                node.body = node.body[ast.get_docstring(node) is not None :]
        text = ast.unparse(tree)  # without comments
    return sum(bool(line.strip()) for line in text.splitlines())


@contextmanager
def serving(name: str) -> Iterator[RunningServer]:
    """Once it has answered rightly. A peer's environment is made if it does not exist."""
    system = SYSTEMS[name]
    if name == HEADRACE:
        settings = yaml.safe_load((FOLDER / "headrace.yaml").read_text())
        settings["models"]["forest"]["source"] = f"{FOLDER}:headrace_forest:Forest"
        with headrace(settings, name=name) as running:
            yield _checked(running, system)
        return
    python, port = sys.executable, free_port()
    if system.environment:
        python = str(venvs.make(venvs.PEERS[system.environment]))
    url = f"http://127.0.0.1:{port}"
    environ = {
        "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0", "BENTOML_DO_NOT_TRACK": "true",
        "BENTOML_CONFIG_OPTIONS": "api_server.logging.access.enabled=false",
    }  # fmt: skip
    command = [python, *system.program, str(port)]
    with launched(Launch(name, command, url, f"{url}{system.ready}", environ)) as running:
        yield _checked(running, system)


def _checked(running: RunningServer, system: TabularSystem) -> RunningServer:
    said = post(running.url + system.path, system.body, 30).decode()
    if SPECIES not in said:
        raise AssertionError(f"{running.name} answers {said[:200]}, not {SPECIES}")
    return running


def measure(
    name: str, running: RunningServer, clients: int, seconds: float, warmup_s: float
) -> TabularTrial:
    system = SYSTEMS[name]
    target = Target.parse(running.url + system.path)
    call = Call(render(target, json.dumps(system.body).encode()))
    run(Load(target, (call,), clients=clients, seconds=warmup_s))
    before = running.usage()
    result = run(Load(target, (call,), clients=clients, seconds=seconds))
    spent = sum(cpu_between(before, running.usage()).values())
    return TabularTrial(result, lines_of(system), spent / max(1, result.answers) * 1e6)


COLUMNS: tuple[Column, ...] = (
    ("lines", median("lines")),
    *rates("req/s", HEADRACE),
    ("server CPU µs/req", median("server_cpu_us")),
    ("errors", total("result.failed")),
)


BENCH = Bench(
    name="tabular",
    about=__doc__,
    title="One scikit-learn model behind five servers",
    options={
        "systems": BenchOption(list(SYSTEMS), choices=tuple(SYSTEMS)),
        "clients": BenchOption([32]),
        "seconds": BenchOption(8.0, "a trial (%(default)s)"),
        "warmup": BenchOption(2.0, "s before it (%(default)s)"),
        "repeats": BenchOption(3),
    },
    measure=lambda options: in_systems(options, serving, measure),
    columns=COLUMNS,
    caption=lambda clients, options: f"{clients} clients",
    first="system",
    thresholds=lambda done, options: times_the_others(done, options, HEADRACE, 1.0),
    notes=(
        "`lines` are those of `loadtests/peers/tabular` that a user writes.",
        "What binds Headrace beside Triton: on two processors its gateway takes 0.55 ms of a "
        "request and the replica 0.59 (a batch of 13 rows takes 6.5 to 7.5 ms); Triton's front "
        "end is C++, and takes 0.36 ms with the model.",
    ),
    record=TabularTrial.record,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
