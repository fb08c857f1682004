"""What does one small request cost the gateway's process, all of it but system calls?

`python -m tests.deployments.benches.small_request`: 32 callers in a closed loop, each with one row
of 24 INT64 as JSON. uvicorn's protocol, the app, the queue, the channel's messages and the replica
core are the real ones, in this process and on one thread; sockets and the device's thread are
played. Time is virtual: a request arrives 0.1 ms after the one before at the earliest, a batch
takes 2 ms, so that every run, of another commit too, forms the same batches. Says processor time a
request, least and median of `--rounds`. To compare commits, run this file by its path in a checkout
of each, in turn.
"""

from __future__ import annotations

import time

cpu_s = time.process_time
now_s = [1000.0]
time.monotonic = time.perf_counter = lambda: now_s[0]  # before anybody takes it by name

# ruff: noqa: E402
import argparse
import asyncio
import contextvars
import json
import random
import selectors
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path[:0] = [str(Path.cwd()), str(Path.cwd() / "tests" / "deployments")]

import uvicorn
from in_process import Stand
from local_frames import soon, to_replica
from uvicorn.protocols.http import auto
from uvicorn.server import ServerState

from deployments.gateway.http import fast_path
from deployments.replica import device
from deployments.replica.device import run_bisected
from runtimes.synthetic import runtime as synthetic

MODEL = {
    "runtime": "synthetic", "slo": {"latency_ms": 100}, "lengths": {"max": 512},
    "batch": {"max_size": 32}, "replicas": {"count": 1, "slots": 2}, "options": {"base_ms": 2},
}  # fmt: skip
CALLERS, ROW_LENGTH = 32, 24
BATCH_S, ARRIVAL_S, AWAY_S = 0.002, 0.0001, (0.0005, 0.006)


class Passing(selectors.SelectSelector):
    """Nothing ever comes from outside: the time that there is to wait passes at once."""

    def select(self, timeout: float | None = None) -> list[Any]:
        now_s[0] += timeout or 0.0
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__(Passing())
        self._clock_resolution = 1e-9

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_soon(callback, *args, context=context)


def _nothing(*_: Any) -> None: ...


class PlayedThread:
    """Of a device: takes what is ready at once, and is done `BATCH_S` later."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    def put(self, job: Any) -> None:
        if job is not None:
            job.started = now_s[0]
            asyncio.get_running_loop().call_later(
                BATCH_S, self._done, job, context=contextvars.Context()
            )

    def _done(self, job: Any) -> None:
        job.result, job.finished = run_bisected(self._worker._runtime, job.batch), now_s[0]
        self._worker.queue.finish(job)


class Caller:
    """One connection: asks again a while after each answer, as long as `left` says."""

    left = idle = 0

    def __init__(self, config: uvicorn.Config, request: bytes, away: random.Random) -> None:
        self._loop, self._request, self._away = asyncio.get_running_loop(), request, away
        self._protocol: Any = auto.AutoHTTPProtocol(config, ServerState(), {}, self._loop)
        addresses = dict.fromkeys(("peername", "sockname"), ("127.0.0.1", id(self) % 60_000))
        transport = SimpleNamespace(
            write=self._answered, is_closing=lambda: False, get_write_buffer_size=lambda: 0,
            get_extra_info=addresses.get,
        )  # fmt: skip
        self._protocol.connection_made(transport)

    def ask(self) -> None:
        if Caller.left > 0:
            Caller.left -= 1
            now_s[0] += ARRIVAL_S
            self._protocol.data_received(self._request)
        else:
            Caller.idle += 1

    def _answered(self, data: bytes) -> None:
        assert data.startswith(b"HTTP/1.1 200"), data
        context = contextvars.Context()
        self._loop.call_later(self._away.uniform(*AWAY_S), self.ask, context=context)


def request_of(rng: random.Random) -> bytes:
    data = [rng.randrange(30_000) for _ in range(ROW_LENGTH)]
    tensor = {"name": "ids", "shape": [1, ROW_LENGTH], "datatype": "INT64", "data": data}
    body = json.dumps({"inputs": [tensor]}, separators=(",", ":")).encode()
    head = (
        "POST /v2/models/device/infer HTTP/1.1\r\nhost: 127.0.0.1:8000\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        "x-forwarded-for: 192.0.2.7\r\nx-forwarded-proto: http\r\n\r\n"
    )
    return head.encode() + body


def play(stand: Stand) -> None:
    """No thread, no sleeping, and no copies kept of what is sent."""
    synthetic._wait_until = _nothing
    for worker in stand._workers:
        worker.queue._ready = PlayedThread(worker)  # type: ignore[assignment]
    channel = stand.channels["device"]

    def send(replica_id: str, kind: Any, lease_id: int, body: Any = ()) -> bool:
        frame = to_replica(kind, lease_id, body)
        soon(channel._arrives, replica_id, channel._sessions[replica_id], frame)
        return True

    channel.send = send  # type: ignore[method-assign]


async def answered(callers: list[Caller], requests: int) -> None:
    Caller.left, Caller.idle = requests, 0
    for caller in callers:
        asyncio.get_running_loop().call_soon(caller.ask, context=contextvars.Context())
    while Caller.idle < len(callers):  # noqa: ASYNC110 - on virtual time
        await asyncio.sleep(0.1)


async def measured(requests: int, rounds: int, folder: Path) -> None:
    device.threading = SimpleNamespace(  # type: ignore[assignment]
        Thread=lambda **_: SimpleNamespace(start=_nothing, join=_nothing),
        Lock=device.threading.Lock,
    )
    stand, rng = Stand({"device": MODEL}, folder), random.Random(24)
    play(stand)
    fast_path.middlewares()
    fast_path.install(stand.app, (b"", b""))
    served: Any = fast_path.FastPath(stand.app)
    config = uvicorn.Config(served, lifespan="off", access_log=False, log_config=None)
    config.load()
    callers = [Caller(config, request_of(rng), rng) for _ in range(CALLERS)]
    await answered(callers, requests)
    us = []
    for _ in range(rounds):
        began = cpu_s()
        await answered(callers, requests)
        us.append((cpu_s() - began) / requests * 1e6)
    us.sort()
    print(f"least {us[0]:.1f}, median {us[len(us) // 2]:.1f} us a request")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=VirtualLoop) as run:
        run.run(measured(given.requests, given.rounds, Path(folder)))


if __name__ == "__main__":
    main()
