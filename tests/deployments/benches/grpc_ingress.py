"""What does a unary gRPC request cost the server, by who speaks HTTP/2 for it?

`python -m tests.deployments.benches.grpc_ingress [--rounds N]`: HAProxy with the product's rules
before uvicorn (HTTP/1.1 with trailers), a protocol class over bare `h2`, and uvicorn's own HTTP/2.
Each echoes 230 bytes to a client of grpcio's in a process of its own. Says processor time per
request of HAProxy and of the server, from /proc. Needs `h2` and `zttp`, which nothing else here
does: `pip install --target DIR h2 zttp`, and DIR in PYTHONPATH. Figures: decision 77.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1])]

# ruff: noqa: E402
from grpc_stub import SERVICE
from real_haproxy import in_front_of, listens

from deployments.control.supervisor import ports

MESSAGE = bytes(range(230))  # 24 INT64 with a tensor's name and shape
SECONDS = 4
LOADS = ((1, 1), (4, 8), (4, 32), (32, 1))  # connections, and calls at once of each
HEADERS = [(b"content-type", b"application/grpc")]
OK = [(b"grpc-status", b"0")]


async def _body(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return body


async def http1(scope: Any, receive: Any, send: Any) -> None:
    """Ends its answer with trailers, which uvicorn's HTTP/1.1 cannot."""
    body = await _body(receive)
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    cycle = send.__self__
    cycle.transport.write(b"0\r\ngrpc-status: 0\r\n\r\n")
    cycle.response_complete = True
    cycle.on_response()


async def http2(scope: Any, receive: Any, send: Any) -> None:
    start = {"type": "http.response.start", "status": 200, "headers": HEADERS, "trailers": True}
    body = await _body(receive)
    await send(start)
    await send({"type": "http.response.body", "body": body})
    await send({"type": "http.response.trailers", "headers": OK})


class BareH2(asyncio.Protocol):
    """A server of nothing but `h2`."""

    def connection_made(self, transport: Any) -> None:
        from h2.config import H2Configuration
        from h2.connection import H2Connection

        self._bodies: dict[int, bytes] = {}
        self._transport = transport
        self._h2 = H2Connection(
            H2Configuration(
                client_side=False, header_encoding=None,
                validate_outbound_headers=False, normalize_outbound_headers=False,
            )
        )  # fmt: skip
        self._h2.initiate_connection()
        transport.write(self._h2.data_to_send())

    def data_received(self, data: bytes) -> None:
        for event in self._h2.receive_data(data):
            match type(event).__name__:
                case "RequestReceived":
                    self._bodies[event.stream_id] = b""
                case "DataReceived":
                    self._bodies[event.stream_id] += event.data
                    size = event.flow_controlled_length
                    self._h2.acknowledge_received_data(size, event.stream_id)
                case "StreamEnded":
                    self._h2.send_headers(event.stream_id, [(b":status", b"200"), *HEADERS])
                    self._h2.send_data(event.stream_id, self._bodies.pop(event.stream_id))
                    self._h2.send_headers(event.stream_id, OK, end_stream=True)
        if out := self._h2.data_to_send():
            self._transport.write(out)


def serve(kind: str, port: int) -> None:
    """Serves until it is ended, in a process of its own."""
    import uvicorn
    import uvloop

    async def bare() -> None:
        loop = asyncio.get_running_loop()
        await (await loop.create_server(BareH2, "127.0.0.1", port)).serve_forever()

    if kind == "h2":
        uvloop.run(bare())
        return
    options: Any = {"http": "httptools"} if kind == "haproxy" else {"http": "zttp", "http2": True}
    uvicorn.run(
        http1 if kind == "haproxy" else http2, port=port, loop="uvloop", lifespan="off",
        log_level="error", access_log=False, server_header=False, **options,
    )  # fmt: skip


async def call(port: int, connections: int, at_once: int) -> int:
    """Requests that were answered in `SECONDS`."""
    import grpc

    answered, end = 0, time.monotonic() + SECONDS

    async def one(asks: Any) -> None:
        nonlocal answered
        while time.monotonic() < end:
            assert await asks(MESSAGE) == MESSAGE
            answered += 1

    alone = [("grpc.use_local_subchannel_pool", 1)]
    channels = [
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=alone) for _ in range(connections)
    ]
    asks = [each.unary_unary(f"{SERVICE}ModelInfer") for each in channels]
    await asyncio.gather(*(one(each) for each in asks for _ in range(at_once)))
    return answered


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _measured(port: int, pids: list[int], load: tuple[int, int]) -> list[float]:
    """Microseconds per request, of each process."""
    command = [sys.executable, "-m", __spec__.name, "--call", str(port), *map(str, load)]

    async def answered() -> int:
        client = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        return int((await client.communicate())[0])

    await answered()  # so that all is warm
    before = [_cpu_s(pid) for pid in pids]
    count = await answered()
    return [1e6 * (_cpu_s(pid) - had) / count for pid, had in zip(pids, before, strict=True)]


async def bench(kind: str, load: tuple[int, int]) -> list[float]:
    own, edge = ports.several_free(2)
    command = [sys.executable, "-m", __spec__.name, "--serve", kind, str(own)]
    server = await asyncio.create_subprocess_exec(*command)
    try:
        while not await listens(own):  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.05)
        if kind != "haproxy":
            return await _measured(own, [server.pid], load)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            async with in_front_of(own, folder=Path(folder), GRPC_PORT=edge, THREADS=1):
                return await _measured(edge, [server.pid, _haproxy_of(Path(folder))], load)
    finally:
        server.terminate()
        await server.wait()


def _haproxy_of(folder: Path) -> int:
    return int((folder / "haproxy.cfg.current").read_text().split()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--call", nargs=3, type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve[0], int(args.serve[1]))
        return
    if args.call:
        print(asyncio.run(call(*args.call)))
        return
    for load in LOADS:
        for _ in range(args.rounds):
            for kind in ("haproxy", "h2", "zttp"):
                found = asyncio.run(bench(kind, load))
                parts = " + ".join(f"{each:.0f}" for each in found)
                print(f"{load[0]} x {load[1]}: {kind}: {parts} = {sum(found):.0f} us", flush=True)


if __name__ == "__main__":
    main()
