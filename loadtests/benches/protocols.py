"""Bench: what does a request cost in each form that callers may send it in?

`python -m loadtests.benches.protocols`: 1, 32 and 128 clients send the same 24 INT64, and one
sends 8 MB of INT64, as JSON, as binary data, as an Arrow stream and in shared memory over HTTP,
and by gRPC, to one Headrace behind HAProxy, whose device takes 2 ms for a batch of at most 32 rows;
and to Triton with the same device in its Python backend. Measured are requests a second, p50 and
p99, and the processor time of a request in all of the server's processes.

A request costs a server less processor time the more come a second: work that wakes it is shared,
and Ray's own processes take theirs whatever comes. gRPC's client takes more of the machine than
HTTP's and so reaches a lower rate. What compares the forms is therefore the processor time at the
same rate, sent open loop; the rates of closed loops compare servers.
"""

from __future__ import annotations

import json
import random
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtests.benches.overhead import PEERS_DIR, ROW_LENGTH, DeviceTrial
from loadtests.benches.runner import (
    Bench,
    BenchOption,
    BenchRun,
    Column,
    Options,
    Runs,
    in_turn,
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
    post,
)
from loadtests.client import grpc_load, load
from loadtests.client.grpc_load import GrpcLoad, infer_message
from loadtests.client.http1 import Target, render
from loadtests.client.load import Call, Load, LoadResult
from loadtests.peers import venvs
from loadtests.results.report_table import BenchVerdict, at_most, ratio
from loadtests.traffic.workload import infer_body

JSON, BINARY, ARROW, SHARED, GRPC = "json", "binary", "arrow", "shared memory", "grpc"
FORMS = (JSON, BINARY, ARROW, SHARED, GRPC)
TRITON = "triton "
OF_TRITON = (JSON, BINARY, GRPC)
HEADRACE = "headrace"
LARGE_LENGTH = 1_000_000
SHM = Path("/dev/shm")
REGION = "headrace-default-bench"
MAX_GRPC_TIMES_HTTP = 1.15


@dataclass(frozen=True, slots=True)
class Offered:
    """A closed loop of `clients`, or an open loop of `rate` requests a second; `large`: one client
    with a large row."""

    about: str
    clients: int = 32
    rate: float = 0.0
    large: bool = False


OFFERED = {
    "1": Offered("1 client, 24 INT64", clients=1),
    "32": Offered("32 clients, 24 INT64"),
    "128": Offered("128 clients, 24 INT64", clients=128),
    "200/s": Offered("200 requests a second, open loop, 24 INT64", rate=200.0),
    "600/s": Offered("600 requests a second, open loop, 24 INT64", rate=600.0),
    "large": Offered("1 client, 8 MB of INT64", clients=1, large=True),
}


@dataclass(frozen=True, slots=True)
class ServedForms(RunningServer):
    """A server and its gRPC port."""

    grpc_port: int = 0


@contextmanager
def serving(name: str) -> Iterator[ServedForms]:
    grpc_port = free_port()
    if name != HEADRACE:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        python = str(venvs.make(venvs.PEERS["triton"]))
        serve = str(PEERS_DIR / "triton" / "serve.py")
        command = [python, serve, "--port", str(port), "--grpc-port", str(grpc_port)]
        server = launched(Launch(name, command, url, f"{url}/v2/models/device/ready"))
    else:
        changes = {
            "gateway.grpc.port": grpc_port,
            "gateway.ingress": "haproxy",
            "gateway.shared_memory.max_bytes": 1 << 30,
        }
        settings = changed(example("device"), changes)
        settings["models"]["large"] = changed(
            settings["models"]["device"],
            {"lengths.max": LARGE_LENGTH, "batch": {"max_size": 1}, "slo.latency_ms": 10_000},
        )
        server = headrace(settings, name="headrace-protocols")
    with server as found:
        yield ServedForms(
            found.name, found.url, found.mark, found.ready_s, found.log, grpc_port=grpc_port
        )


def sent(name: str, server: ServedForms, offered: Offered, seconds: float) -> LoadResult:
    form, rng = name.removeprefix(TRITON), random.Random(24)
    model = "large" if offered.large and form == name else "device"
    length = LARGE_LENGTH if offered.large else ROW_LENGTH
    values = [rng.randrange(30_000) for _ in range(length)]
    clients, rate = offered.clients, offered.rate
    if form == GRPC:
        target, message = f"127.0.0.1:{server.grpc_port}", infer_message(model, "ids", values)
        return grpc_load.run(GrpcLoad(target, message, clients, seconds, rate=rate))
    where = Target.parse(f"{server.url}/v2/models/{model}/infer")
    body, headers = BODIES[form](server, values)
    call = Call(render(where, body, headers=headers))
    return load.run(Load(where, (call,), clients=clients, seconds=seconds, rate=rate))


Body = tuple[bytes, dict[str, str]]


def json_body(server: ServedForms, values: list[int]) -> Body:
    return infer_body("ids", values), {}


def binary_body(server: ServedForms, values: list[int]) -> Body:
    """The tensor, and the answer's, are bytes."""
    raw = packed(values)
    head = head_of(values, {"binary_data_size": len(raw)}, {"binary_data_output": True})
    return head + raw, {"inference-header-content-length": str(len(head))}


def arrow_body(server: ServedForms, values: list[int]) -> Body:
    """A list column of one row, as pyarrow writes it."""
    import pyarrow as pa

    table = pa.table({"ids": pa.array([values], pa.list_(pa.int64()))})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes(), {"content-type": "application/vnd.apache.arrow.stream"}


def shared_body(server: ServedForms, values: list[int]) -> Body:
    """The tensor is in a region of the default tenant's."""
    raw = packed(values)
    (SHM / REGION).write_bytes(raw)
    at = f"{server.url}/v2/systemsharedmemory/region"
    post(f"{at}/bench/unregister", {}, 10.0)
    post(f"{at}/bench/register", {"key": REGION, "byte_size": len(raw)}, 10.0)
    place = {"shared_memory_region": "bench", "shared_memory_byte_size": len(raw)}
    return head_of(values, place, {}), {}


def packed(values: list[int]) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def head_of(values: list[int], of_tensor: dict[str, Any], of_request: dict[str, Any]) -> bytes:
    tensor = {
        "name": "ids", "datatype": "INT64", "shape": [1, len(values)], "parameters": of_tensor
    }  # fmt: skip
    return json.dumps({"inputs": [tensor], "parameters": of_request}).encode()


BODIES: dict[str, Callable[[ServedForms, list[int]], Body]] = {
    JSON: json_body, BINARY: binary_body, ARROW: arrow_body, SHARED: shared_body
}  # fmt: skip


def measure(options: Options) -> Iterator[BenchRun]:
    """Each server once a repetition, with all its forms in turn for each load."""
    forms: dict[str, list[str]] = {HEADRACE: [], TRITON.strip(): []}
    for name in options.systems:
        forms[TRITON.strip() if name.startswith(TRITON) else HEADRACE].append(name)
    for _, side in in_turn([side for side, names in forms.items() if names], options.repeats):
        with serving(side) as server:
            for at in options.loads:
                for name in forms[side]:
                    yield BenchRun(name, trial(name, server, OFFERED[at], options), at)


def trial(name: str, server: ServedForms, offered: Offered, options: Options) -> DeviceTrial:
    sent(name, server, offered, options.warmup)
    before = server.usage()
    result = sent(name, server, offered, options.seconds)
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
    for at in (each for each in options.loads if OFFERED[each].rate):
        cost = [done.of(form, at).median("server_cpu_us") for form in (GRPC, JSON)]
        claim = f"gRPC takes at most 1.15 × the processor time of HTTP at {at}"
        yield at_most(claim, ratio(*cost), MAX_GRPC_TIMES_HTTP, " ×")


BENCH = Bench(
    name="protocols",
    about=__doc__,
    title="One request in each form",
    options={
        "systems": BenchOption(
            [*FORMS, *(TRITON + form for form in OF_TRITON)],
            choices=(*FORMS, *(TRITON + form for form in OF_TRITON)),
        ),
        "loads": BenchOption(list(OFFERED), choices=tuple(OFFERED), help="clients, or a rate"),
        "seconds": BenchOption(6.0, "a trial (%(default)s)"),
        "warmup": BenchOption(2.0, "s before it (%(default)s)"),
        "repeats": BenchOption(3),
    },
    measure=measure,
    columns=COLUMNS,
    caption=lambda at, options: OFFERED[at].about,
    first="form",
    thresholds=thresholds,
    record=DeviceTrial.record,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
