"""Bench: what does a request cost in each form that callers may send it in?

`python -m loadtests.benches.protocols`: 1, 32 and 128 clients send the same 24 INT64 as JSON and as
binary data over HTTP, and by gRPC, to one Headrace behind HAProxy, whose device takes 2 ms for a
batch of at most 32 rows, and to Triton with the same device in its Python backend. Measured are
requests a second, p50 and p99, and the processor time of a request in all of the server's
processes. gRPC's client takes more of the machine than HTTP's, so the processor time is what
compares the forms; rates compare servers.
"""

from __future__ import annotations

import json
import random
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from loadtests.benches.overhead import PEERS_DIR, ROW_LENGTH, DeviceTrial
from loadtests.benches.runner import (
    Bench,
    BenchOption,
    Column,
    Options,
    Runs,
    in_systems,
    median,
    rates,
    total,
)
from loadtests.benches.server import (
    Launch,
    RunningServer,
    changed,
    cpu_between,
    example,
    free_port,
    headrace,
    launched,
)
from loadtests.client import grpc_load, load
from loadtests.client.grpc_load import GrpcLoad, infer_message
from loadtests.client.http1 import Target, render
from loadtests.client.load import Call, Load, LoadResult
from loadtests.peers import venvs
from loadtests.results.report_table import BenchVerdict, at_most, ratio
from loadtests.traffic.workload import infer_body

JSON, BINARY, GRPC = "json", "binary", "grpc"
FORMS = (JSON, BINARY, GRPC)
TRITON = "triton "
MAX_GRPC_TIMES_HTTP = 1.15


@dataclass(frozen=True, slots=True)
class ServedForms(RunningServer):
    """A server and its gRPC port."""

    grpc_port: int = 0


@contextmanager
def serving(name: str) -> Iterator[ServedForms]:
    grpc_port = free_port()
    if name.startswith(TRITON):
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        python = str(venvs.make(venvs.PEERS["triton"]))
        serve = str(PEERS_DIR / "triton" / "serve.py")
        command = [python, serve, "--port", str(port), "--grpc-port", str(grpc_port)]
        server = launched(Launch(name, command, url, f"{url}/v2/models/device/ready"))
    else:
        changes = {"gateway.grpc.port": grpc_port, "gateway.ingress": "haproxy"}
        server = headrace(changed(example("device"), changes), name="headrace-protocols")
    with server as found:
        yield ServedForms(
            found.name, found.url, found.mark, found.ready_s, found.log, grpc_port=grpc_port
        )


def sent(form: str, server: ServedForms, clients: int, seconds: float) -> LoadResult:
    rng = random.Random(24)
    values = [rng.randrange(30_000) for _ in range(ROW_LENGTH)]
    if form == GRPC:
        target, message = f"127.0.0.1:{server.grpc_port}", infer_message("device", "ids", values)
        return grpc_load.run(GrpcLoad(target, message, clients, seconds))
    where = Target.parse(f"{server.url}/v2/models/device/infer")
    if form == JSON:
        request = render(where, infer_body("ids", values))
    else:
        body, header_bytes = binary_body(values)
        headers = {"inference-header-content-length": str(header_bytes)}
        request = render(where, body, headers=headers)
    return load.run(Load(where, (Call(request),), clients=clients, seconds=seconds))


def binary_body(values: list[int]) -> tuple[bytes, int]:
    """A request whose tensor, and answer, are bytes; and how long its JSON is."""
    raw = struct.pack(f"<{len(values)}q", *values)
    tensor = {
        "name": "ids", "datatype": "INT64", "shape": [1, len(values)],
        "parameters": {"binary_data_size": len(raw)},
    }  # fmt: skip
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return head + raw, len(head)


def measure(
    name: str, server: ServedForms, clients: int, seconds: float, warmup_s: float
) -> DeviceTrial:
    form = name.removeprefix(TRITON)
    sent(form, server, clients, warmup_s)
    before = server.usage()
    result = sent(form, server, clients, seconds)
    spent = cpu_between(before, server.usage())
    answers = max(1, result.answers)
    cpu_us = {role: cpu_s / answers * 1e6 for role, cpu_s in spent.items() if cpu_s > 0}
    cpu_us["client"] = result.cpu_us
    return DeviceTrial(result, cpu_us, {})


def role(name: str) -> Any:
    return lambda runs: runs.median(lambda each: each.cpu_us.get(name, 0.0))


COLUMNS: tuple[Column, ...] = (
    *rates("req/s", JSON),
    ("server CPU µs/req", median("server_cpu_us")),
    ("gateway", role("gateway replica")),
    ("HAProxy", role("haproxy")),
    ("client", role("client")),
    ("errors", total("result.failed")),
)


def thresholds(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    if not {JSON, GRPC} <= set(options.systems):
        return
    for clients in options.clients:
        cost = [done.of(form, clients).median("server_cpu_us") for form in (GRPC, JSON)]
        claim = f"gRPC takes at most 1.15 × the processor time of HTTP at {clients} clients"
        yield at_most(claim, ratio(*cost), MAX_GRPC_TIMES_HTTP, " ×")


BENCH = Bench(
    name="protocols",
    about=__doc__,
    title="One request in each form",
    options={
        "systems": BenchOption(
            [*FORMS, *(TRITON + form for form in FORMS)],
            choices=(*FORMS, *(TRITON + form for form in FORMS)),
        ),
        "clients": BenchOption([1, 32, 128]),
        "seconds": BenchOption(6.0, "a trial (%(default)s)"),
        "warmup": BenchOption(2.0, "s before it (%(default)s)"),
        "repeats": BenchOption(3),
    },
    measure=lambda options: in_systems(options, serving, measure),
    columns=COLUMNS,
    caption=lambda clients, options: f"{clients} client{'s' * (clients > 1)}",
    first="form",
    thresholds=thresholds,
    record=DeviceTrial.record,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
