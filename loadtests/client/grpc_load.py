"""A load of gRPC calls: a closed loop of so many clients, or an open loop at Poisson times.

Messages are bytes on both sides: neither encoding them nor reading answers is in the figures. The
client is grpcio's own, of C++ below asyncio; it takes three times the processor time of this
package's HTTP client for a call (docs/benchmarks.md), so rates are lower where both share a
machine. Every `CLIENTS_A_CHANNEL` clients share a connection, as one process's calls do.
Source: Open Inference Protocol, open_inference_grpc.proto; protobuf's encoding.
"""

from __future__ import annotations

import asyncio
import random
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from loadtests.client.load import LoadResult, LoadTally
from loadtests.client.player import run_loop
from loadtests.traffic.workload import poisson_times

CLIENTS_A_CHANNEL = 32
INFER = "/inference.GRPCInferenceService/ModelInfer"
_MAX_BYTES = 256 << 20
_OK = 200


@dataclass(frozen=True, slots=True)
class GrpcLoad:
    """`target`: host:port; `message`: what each call sends; `metadata`: with it. `rate`: calls a
    second, sent open loop whatever is still under way, latency from when a call was due; 0 is the
    closed loop."""

    target: str
    message: bytes
    clients: int = 1
    seconds: float = 10.0
    method: str = INFER
    timeout_s: float = 30.0
    metadata: tuple[tuple[str, str], ...] = ()
    rate: float = 0.0


def run(load: GrpcLoad) -> LoadResult:
    """Runs the load to its end on a loop of its own."""
    return run_loop(run_async(load))


async def run_async(load: GrpcLoad) -> LoadResult:
    tally = LoadTally(time.perf_counter())
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_receive_message_length", _MAX_BYTES),
        ("grpc.max_send_message_length", _MAX_BYTES),
    ]
    channels = [
        grpc.aio.insecure_channel(load.target, options=options)
        for _ in range(-(-load.clients // CLIENTS_A_CHANNEL))
    ]
    cpu_s, end = time.process_time(), tally.begin + load.seconds
    calls = [channel.unary_unary(load.method) for channel in channels]
    if load.rate:
        await _at_times(load, calls, tally)
    else:
        await asyncio.gather(
            *(_client(load, calls[n % len(calls)], tally, end) for n in range(load.clients))
        )
    cpu_s = time.process_time() - cpu_s
    tally.end = time.perf_counter()
    for channel in channels:
        await channel.close()
    return LoadResult.of(tally, tally.end - tally.begin, cpu_s)


async def _client(
    load: GrpcLoad, call: grpc.aio.UnaryUnaryMultiCallable, tally: LoadTally, end: float
) -> None:
    while (since := time.perf_counter()) < end:
        await _one(load, call, tally, since)


async def _at_times(
    load: GrpcLoad, calls: Sequence[grpc.aio.UnaryUnaryMultiCallable], tally: LoadTally
) -> None:
    async with asyncio.TaskGroup() as sent:
        for n, at in enumerate(poisson_times(load.rate, load.seconds, random.Random(0))):
            since = tally.begin + at
            await asyncio.sleep(max(0.0, since - time.perf_counter()))
            sent.create_task(_one(load, calls[n % len(calls)], tally, since))


async def _one(
    load: GrpcLoad, call: grpc.aio.UnaryUnaryMultiCallable, tally: LoadTally, since: float
) -> None:
    try:
        await call(load.message, timeout=load.timeout_s, metadata=load.metadata)
    except grpc.aio.AioRpcError as error:
        tally.failed(time.perf_counter(), since, error.code().name)
    else:
        tally.answered(time.perf_counter(), since, _OK, 1)


def infer_message(model: str, name: str, values: Sequence[int]) -> bytes:
    """A ModelInferRequest with one row of INT64, raw."""
    raw = struct.pack(f"<{len(values)}q", *values)
    return with_model(model, raw_message(name, "INT64", (1, len(values)), raw))


def raw_message(name: str, datatype: str, shape: Sequence[int], raw: bytes | memoryview) -> bytes:
    """A ModelInferRequest with one tensor, raw, and no model yet."""
    sizes = b"".join(_varint(size) for size in shape)
    tensor = _field(1, name.encode()) + _field(2, datatype.encode()) + _field(3, sizes)
    return _field(5, tensor) + _field(7, raw)


def with_model(model: str, message: bytes | memoryview) -> bytes:
    return _field(1, model.encode()) + bytes(message)


def _field(number: int, value: bytes | memoryview) -> bytes:
    return b"".join((_varint(number << 3 | 2), _varint(len(value)), value))


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)
