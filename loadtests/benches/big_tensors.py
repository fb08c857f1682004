"""Bench: what does a tensor of 100 MB cost the gateway, in time, processor time and memory?

`python -m loadtests.benches.big_tensors`: one client sends a tensor of FP32 to a class that returns
it, at both kinds of ingress, as one row and as many rows of 256 KiB; and to the same class in
Triton's Python backend. *Peak* is how far the resident memory of the gateway, or of Triton's server
process, grew during a request (VmHWM, set back before it), as a multiple of the tensor. Request and
answer are in memory together for a moment at least, so the peak is 2 where nothing is held twice.
A `Form` is a way to send a tensor: others are added to `FORMS`.
"""

from __future__ import annotations

import http.client
import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import grpc

from loadtests.benches.runner import Bench, BenchOption, BenchRun, Options, Runs, alternate, median
from loadtests.benches.server import (
    MIB,
    SETTINGS_DIR,
    Launch,
    ProcessUsage,
    RunningServer,
    ServerTrouble,
    Settings,
    cpu_between,
    free_port,
    headrace,
    launched,
)
from loadtests.client.grpc_load import INFER, raw_message, with_model
from loadtests.peers import venvs
from loadtests.results.report_table import BenchVerdict, at_most
from loadtests.traffic.workload import HEADER_LENGTH

ROW_ELEMENTS = 65_536
ELEMENT_BYTES = 4
TRITON = "triton"
ONE, MANY = "one row", "rows of 256 KiB"
INGRESSES = ("direct", "haproxy", TRITON)
MAX_PEAK = 2.3
_SEND_BYTES = 1 << 20
_TIMEOUT_S = 120.0
CLASSES = '''"""Return what they are given."""


class Whole:
    inputs = {"x": "FP32[%d]"}
    outputs = {"y": "FP32[%d]"}

    def load(self, settings):
        pass

    def predict(self, batch):
        return {"y": batch["x"].stacked}


class Rows(Whole):
    inputs = {"x": "FP32[%d]"}
    outputs = {"y": "FP32[%d]"}
'''


TRITON_DIR = Path(__file__).resolve().parents[1] / "peers" / "triton"
OF_TRITON = """
name: "{name}"
backend: "python"
max_batch_size: {rows}
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ {elements} ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ {elements} ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""
# The processes in a request's way, but for the model's own; the first one's memory is measured.
FRONT = {TRITON: ("triton",), "direct": ("gateway replica",)}
BEHIND_HAPROXY = ("gateway replica", "haproxy")


@dataclass(frozen=True, slots=True)
class Sent:
    """A request's body in parts, and its headers."""

    parts: tuple[bytes | memoryview, ...]
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Asked:
    """The median of a case's requests. `peak`: in tensors."""

    seconds: float
    cpu_ms: float  # of the gateway and HAProxy, or of Triton's server process
    total_cpu_ms: float  # of all processes of the server
    peak: float


Form = Callable[[int, int], Sent]
"""Makes the request of so many rows of so many elements, all of it zeros."""


def binary(rows: int, elements: int) -> Sent:
    """Open Inference over HTTP, tensors as bytes behind the JSON."""
    data = memoryview(bytes(rows * elements * ELEMENT_BYTES))
    tensor = {
        "name": "x", "shape": [rows, elements], "datatype": "FP32",
        "parameters": {"binary_data_size": len(data)},
    }  # fmt: skip
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return Sent((head, data), {HEADER_LENGTH: str(len(head))})


def arrow(rows: int, elements: int) -> Sent:
    """An Arrow IPC stream, as a client's pyarrow writes it."""
    import numpy as np
    import pyarrow as pa

    zeros = pa.array(np.zeros(rows * elements, np.float32))
    column = pa.FixedSizeListArray.from_arrays(zeros, elements)
    table = pa.table({"x": column})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    said = {"content-type": "application/vnd.apache.arrow.stream"}
    return Sent((memoryview(sink.getvalue()),), said)


def grpc_message(rows: int, elements: int) -> Sent:
    """A ModelInferRequest with raw contents; its model is in the path, as of the others."""
    data = memoryview(bytes(rows * elements * ELEMENT_BYTES))
    return Sent((raw_message("x", "FP32", (rows, elements), data),), {})


GRPC = "grpc"
FORMS: dict[str, Form] = {"binary": binary, "arrow": arrow, GRPC: grpc_message}


def settings_of(ingress: str, megabytes: int, grpc_port: int = 0) -> Settings:
    """Of a server for rows of the whole size and of 256 KiB; writes its classes."""
    elements = megabytes * MIB // ELEMENT_BYTES
    folder = SETTINGS_DIR / "big_tensors"
    folder.mkdir(parents=True, exist_ok=True)
    sizes = (elements, elements, ROW_ELEMENTS, ROW_ELEMENTS)
    (folder / "echoes.py").write_text(CLASSES % sizes)
    rows = elements // ROW_ELEMENTS

    def model(name: str, largest: int) -> Settings:
        return {
            "runtime": "python",
            "source": f"{folder.absolute()}:echoes:{name}",
            "batch": {"max_size": largest},
            "replicas": {"count": 1},
            "slo": {"latency_ms": 10_000},
        }

    gateway: Settings = {"limits": {"max_body_bytes": 2 * megabytes * MIB}, "ingress": ingress}
    if grpc_port:
        gateway["grpc"] = {"port": grpc_port, "max_message_bytes": 2 * megabytes * MIB}
    models = {"whole": model("Whole", 1), "rows": model("Rows", rows)}
    return {"models": models, "gateway": gateway}


@contextmanager
def triton(megabytes: int, grpc_port: int) -> Iterator[RunningServer]:
    """The same two models in Triton's Python backend."""
    elements = megabytes * MIB // ELEMENT_BYTES
    root = SETTINGS_DIR / "big_tensors" / "triton"
    shutil.rmtree(root, ignore_errors=True)
    shapes = {"whole": (1, elements), "rows": (elements // ROW_ELEMENTS, ROW_ELEMENTS)}
    for name, (rows, length) in shapes.items():
        (root / name / "1").mkdir(parents=True)
        shutil.copy(TRITON_DIR / "echo_model.py", root / name / "1" / "model.py")
        config = OF_TRITON.format(name=name, rows=rows, elements=length)
        (root / name / "config.pbtxt").write_text(config)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    python = str(venvs.make(venvs.PEERS[TRITON]))
    command = [python, str(TRITON_DIR / "serve.py"), "--repository", str(root.absolute())]
    command += ["--port", str(port), "--grpc-port", str(grpc_port)]
    with launched(Launch(TRITON, command, url, f"{url}/v2/health/ready")) as running:
        yield running


def process_of(running: RunningServer, role: str) -> ProcessUsage:
    found = [each for each in running.usage() if each.role == role]
    if len(found) != 1:
        raise ServerTrouble(f"{len(found)} processes are {role}, and one was expected")
    return found[0]


def memory_of(pid: int, field: str) -> int:
    """Bytes, from `/proc/PID/status`."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def ask(url: str, path: str, sent: Sent) -> int:
    """The answer's bytes. Raises ServerTrouble for anything but an answer."""
    at = urlsplit(url)
    size = sum(len(part) for part in sent.parts)
    headers = {**sent.headers, "content-length": str(size)}
    connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=_TIMEOUT_S)
    try:
        connection.request("POST", path, _pieces(sent.parts), headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise ServerTrouble(f"{answer.status}: {answer.read(500)!r}")
        room, size = bytearray(_SEND_BYTES), 0
        while got := answer.readinto(room):
            size += got
        return size
    finally:
        connection.close()


def ask_grpc(port: int, model: str, sent: Sent) -> int:
    """As `ask`."""
    options = [(f"grpc.max_{way}_message_length", -1) for way in ("send", "receive")]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options) as channel:
        call = channel.unary_unary(INFER)
        try:
            answer: bytes = call(with_model(model, sent.parts[0]), timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            raise ServerTrouble(str(error)) from None
        return len(answer)


def _pieces(parts: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    for part in parts:
        for start in range(0, len(part), _SEND_BYTES):
            yield part[start : start + _SEND_BYTES]


def runs(options: Options) -> Iterator[BenchRun]:
    grpc_port = free_port()

    @contextmanager
    def start(side: str) -> Iterator[RunningServer]:
        form, _, ingress = side.rpartition(", ")
        if ingress == TRITON:
            server = triton(options.megabytes, grpc_port)
        else:
            settings = settings_of(ingress, options.megabytes, grpc_port if form == GRPC else 0)
            server = headrace(settings, name=f"big-{ingress}")
        with server as running:
            yield running

    def drive(side: str, running: RunningServer, case: str) -> Asked:
        form, _, ingress = side.rpartition(", ")
        elements = options.megabytes * MIB // ELEMENT_BYTES
        shape = (1, elements) if case == ONE else (elements // ROW_ELEMENTS, ROW_ELEMENTS)
        model = "whole" if case == ONE else "rows"
        sent = FORMS[form](*shape)
        if form == GRPC:
            asks = partial(ask_grpc, grpc_port, model, sent)
        else:
            asks = partial(ask, running.url, f"/v2/models/{model}/infer", sent)
        return _measured(running, FRONT.get(ingress, BEHIND_HAPROXY), asks, options)

    sides = [
        f"{form}, {ingress}"
        for form in options.forms
        for ingress in options.ingresses
        if (form, ingress) not in ((GRPC, "direct"), ("arrow", TRITON))  # which they have not
    ]
    yield from alternate(sides, options.repeats, start, drive, (ONE, MANY))


def _measured(
    running: RunningServer, front: tuple[str, ...], asks: Callable[[], int], options: Options
) -> Asked:
    size = options.megabytes * MIB
    pid = process_of(running, front[0]).pid
    time.sleep(2.0)  # HAProxy may still change over to the gateway, and refuses large bodies then
    asks()  # memory that is kept from now on
    seconds, cpu_ms, total_ms, peaks = [], [], [], []
    for _ in range(options.requests):
        time.sleep(1.0)  # so that freed memory is given back
        Path(f"/proc/{pid}/clear_refs").write_text("5")
        held, before = memory_of(pid, "VmRSS"), running.usage()
        began = time.perf_counter()
        answered = asks()
        seconds.append(time.perf_counter() - began)
        if answered < size:
            raise ServerTrouble(f"{answered} bytes were answered, of a tensor of {size}")
        spent = cpu_between(before, running.usage())
        cpu_ms.append(1000 * sum(spent.get(role, 0.0) for role in front))
        total_ms.append(1000 * sum(spent.values()))
        peaks.append((memory_of(pid, "VmHWM") - held) / size)
    return Asked(*map(statistics.median, (seconds, cpu_ms, total_ms, peaks)))


def thresholds(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    for run in done:
        if not run.side.endswith(TRITON):
            claim = f"{run.side}, {run.case}: peak of request and answer, in tensors"
            yield at_most(claim, run.result.peak, MAX_PEAK)


BENCH = Bench(
    name="big_tensors",
    about=__doc__,
    title=lambda options: f"Tensors of {options.megabytes} MiB",
    options={
        "forms": BenchOption(list(FORMS), choices=tuple(FORMS), help="arrow needs pyarrow"),
        "ingresses": BenchOption(list(INGRESSES), choices=INGRESSES),
        "megabytes": BenchOption(100),
        "requests": BenchOption(5, help="in each case"),
        "repeats": BenchOption(2),
    },
    measure=runs,
    columns=(
        ("seconds", median("seconds")),
        ("gateway's CPU ms", median("cpu_ms")),
        ("all processes' CPU ms", median("total_cpu_ms")),
        ("peak, in tensors", median("peak")),
    ),
    caption=lambda case, options: f"{options.megabytes} MiB of FP32 sent and answered, {case}",
    first="form, server",
    thresholds=thresholds,
    record=asdict,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
