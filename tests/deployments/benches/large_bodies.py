"""What do large bodies cost everybody else, and the gateway's memory?

`python -m tests.deployments.benches.large_bodies`. The whole gateway in a process of its own behind
uvicorn, on the loop and with the garbage collection that it has under Ray Serve, without Ray; its
replica in another, at the end of a real channel. A caller asks for one short row every 10 ms; four
others, in a process of theirs, send one kind of large body, each again as soon as it is answered;
they are another tenant. Printed a kind: their answers' status and longest time, the short requests'
p50, p99 and longest time, ms, their p99 without large bodies, what the gateway's resident memory
grew by at most, MB, and how late a timer on the gateway's loop was, which alone is its own doing.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))

from replica_apart import FarReplica, StandApart, replica_of
from uvicorn_server import serving

from deployments.gateway.deployment import settle
from deployments.gateway.http import strict_protocol, whole_response
from tests.deployments.benches.loop_gaps import LoopGaps

MODEL = {"runtime": "synthetic", "options": {"base_ms": 0}, "slo": {"latency_ms": 5000}}
TENANTS: dict[str, Any] = {"default": {}, "large": {}}
SHORT = b'{"inputs": [{"name": "ids", "datatype": "INT64", "shape": [1, 1], "data": [4]}]}'
INFER, PREDICT, EMBED = "/v2/models/device/infer", "/v1/models/device:predict", "/v1/embeddings"
AT_ONCE, EVERY_S = 4, 0.01
MB = 1 << 20


def numbers(rows: int, width: int, value: bytes = b"1") -> bytes:
    data = b",".join([value] * (rows * width))
    head = b'{"inputs":[{"name":"ids","datatype":"INT64","shape":[%d,%d],"data":['
    return head % (rows, width) + data + b"]}]}"


def nested(rows: int, width: int) -> bytes:
    row = b"[" + b",".join([b"12345"] * width) + b"]"
    head = b'{"inputs":[{"name":"ids","datatype":"INT64","shape":[%d,%d],"data":['
    return head % (rows, width) + b",".join([row] * rows) + b"]}]}"


def instances(rows: int, width: int) -> bytes:
    row = b"[" + b",".join([b"12345"] * width) + b"]"
    return b'{"instances":[' + b",".join([row] * rows) + b"]}"


def parameters(lists: int) -> bytes:
    return SHORT[:-1] + b',"parameters":{"a":[' + b",".join([b"[]"] * lists) + b"]}}"


def tensors(count: int) -> bytes:
    each = b'{"name":"a","datatype":"INT64","shape":[1,1],"data":[1]}'
    return b'{"inputs":[' + b",".join([each] * count) + b"]}"


KINDS: dict[str, tuple[str, bool, Callable[[], bytes]]] = {
    "20 million numbers, gzip": (INFER, True, lambda: numbers(1, 20_000_000)),
    "200,000 numbers of 400 rows, flat": (INFER, False, lambda: numbers(400, 500, b"12345")),
    "the same, nested": (INFER, False, lambda: nested(400, 500)),
    "the same, :predict": (PREDICT, False, lambda: instances(400, 500)),
    "1 million numbers, all the rows that may wait": (
        INFER, False, lambda: numbers(2048, 512, b"12345"),
    ),
    "20 million numbers, :predict, gzip": (
        PREDICT, True, lambda: b'{"instances":[[' + b"1," * 20_000_000 + b"1]]}",
    ),
    "20 million tokens, embeddings, gzip": (
        EMBED, True, lambda: b'{"model":"device","input":[' + b"1," * 20_000_000 + b"1]}",
    ),
    "8 million lists in parameters, gzip": (INFER, True, lambda: parameters(8_000_000)),
    "300,000 tensors, gzip": (INFER, True, lambda: tensors(300_000)),
    "6 million open brackets, gzip": (INFER, True, lambda: b"[" * 6_000_000),
    "a number of 16 million digits, gzip": (INFER, True, lambda: numbers(1, 1, b"1" * 16_000_000)),
    "64 MB of spaces": (INFER, False, lambda: SHORT + b" " * (60 * MB)),
}  # fmt: skip


def request(path: str, body: bytes, zipped: bool) -> bytes:
    encoding = b"content-encoding: gzip\r\n" if zipped else b""
    if body is not SHORT:
        encoding += b"x-tenant: large\r\n"
    head = b"POST %s HTTP/1.1\r\nhost: x\r\n%scontent-length: %d\r\n\r\n"
    return head % (path.encode(), encoding, len(body)) + body


async def ask(port: int, data: bytes) -> tuple[int, float]:
    """Status, and seconds until the answer is whole."""
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        status = int((await reader.readline()).split()[1])
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(x for x in head.lower().split(b"\r\n") if x.startswith(b"content-length"))
        await reader.readexactly(int(length.split(b":")[1]))
        return status, time.perf_counter() - began
    except (OSError, asyncio.IncompleteReadError, IndexError):
        return 0, time.perf_counter() - began
    finally:
        writer.close()


async def callers(port: int, until: float, times: list[tuple[int, float]]) -> None:
    """One short request every 10 ms, whether or not the last is answered."""
    data, asked = request(INFER, SHORT, False), []
    while time.perf_counter() < until:
        asked.append(asyncio.create_task(ask(port, data)))
        await asyncio.sleep(EVERY_S)
    times += await asyncio.gather(*asked)


async def attack(port: int, kind: str, seconds: float) -> None:
    """Prints the answers' statuses, and the longest time."""
    path, zipped, make = KINDS[kind]
    plain = make()
    data = request(path, gzip.compress(plain, 6) if zipped else plain, zipped)
    seen: list[tuple[int, float]] = []
    print(f"{len(data) / MB:.1f} MB", flush=True)
    until = time.perf_counter() + seconds

    async def repeatedly() -> None:
        while time.perf_counter() < until:
            seen.append(await ask(port, data))

    await asyncio.gather(*(repeatedly() for _ in range(AT_ONCE)))
    print(f"{dict(Counter(s for s, _ in seen))}, {max(s for _, s in seen):.2f} s")


def resident_mb(pid: int, name: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    return 0.0


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def at(times: list[float], share: float) -> float:
    return sorted(times)[min(int(len(times) * share), len(times) - 1)] * 1e3


async def measure(server: Server, kind: str, seconds: float) -> None:
    times: list[tuple[int, float]] = []
    await callers(server.port, time.perf_counter() + 2.0, times)
    quiet = [seconds for _, seconds in times]
    times.clear()
    attacked = "--attack", kind, "--port", str(server.port), "--seconds", str(seconds)
    with child(*attacked) as attackers:
        assert attackers.stdout is not None
        size = (await asyncio.to_thread(attackers.stdout.readline)).strip()
        await server.gaps()
        before = resident_mb(server.pid, "VmRSS")
        forget_peak(server.pid)
        await callers(server.port, time.perf_counter() + seconds, times)
        growth = resident_mb(server.pid, "VmHWM") - before
        gaps = await server.gaps()
        told = (await asyncio.to_thread(attackers.stdout.readline)).strip()
    fine = [seconds for status, seconds in times if status == 200]
    print(
        f"{kind} ({size}): {told} | p50 {at(fine, 0.5):.1f}, p99 {at(fine, 0.99):.1f}, "
        f"longest {at(fine, 1.0):.1f} ms, {len(times) - len(fine)} of {len(times)} not 200; "
        f"alone p99 {at(quiet, 0.99):.1f} | +{growth:.0f} MB | {gaps}",
        flush=True,
    )


class Server:
    """The gateway's process: says its port, and for each line that it gets what gaps its loop had
    since the last one."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        assert process.stdin is not None
        self.pid = process.pid
        self._told, self._asked = process.stdout, process.stdin
        self.port = int(self._told.readline())

    async def gaps(self) -> str:
        self._asked.write("\n")
        self._asked.flush()
        return (await asyncio.to_thread(self._told.readline)).strip()


def child(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.deployments.benches.large_bodies", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)


async def serve(replica: FarReplica) -> None:
    whole_response.offer()
    strict_protocol.enforce()
    with tempfile.TemporaryDirectory() as folder:
        stand = StandApart("device", MODEL, Path(folder), replica, tenants=TENANTS)
        await stand.reached("device")
        config = uvicorn.Config(stand.app, port=0, http="auto", log_config=None, access_log=False)
        async with serving(config) as port:
            settle()
            print(port, flush=True)
            gaps = LoopGaps()
            while await asyncio.to_thread(sys.stdin.readline):
                print(gaps.take(), flush=True)
            gaps.end()
        stand.close()


async def run_replica() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with replica_of("device", MODEL, Path(folder)) as replica:
            print(replica, flush=True)
            await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), help="by the beginning")
    parser.add_argument("--replica", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.replica:
        uvloop.run(run_replica())
    elif options.serve:
        uvloop.run(serve(FarReplica.read(options.serve)))
    elif options.attack:
        asyncio.run(attack(options.port, options.attack, options.seconds))
    else:
        for kind in KINDS:
            if any(kind.startswith(each) for each in options.kinds):
                bench(kind, options.seconds)


def bench(kind: str, seconds: float) -> None:
    with child("--replica") as replica:
        assert replica.stdout is not None
        assert replica.stdin is not None
        with child("--serve", replica.stdout.readline().strip()) as server:
            assert server.stdin is not None
            asyncio.run(measure(Server(server), kind, seconds))
            server.stdin.close()
        replica.stdin.close()


if __name__ == "__main__":
    main()
