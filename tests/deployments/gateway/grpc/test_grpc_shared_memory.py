"""Regions of shared memory over gRPC, by Triton's own client, unpatched."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.utils.shared_memory as memory
from grpc_stand import grpc_standing
from tritonclient.utils import InferenceServerException

from deployments.gateway.grpc import messages

SHM = Path("/dev/shm")
MODEL = {"runtime": "synthetic", "options": {"base_ms": 0}}
IDS = np.array([[1, 2, 3], [4, 5, 6]], np.int64)


@pytest.fixture
def prefix() -> Iterator[str]:
    found = f"hr-grpc-{os.getpid()}-"
    yield found
    for path in SHM.glob(f"{found}*"):
        path.unlink()


def use(target: str, prefix: str) -> None:
    client = triton.InferenceServerClient(target)
    given = memory.create_shared_memory_region("in", f"{prefix}default-in", 48)
    taken = memory.create_shared_memory_region("out", f"{prefix}default-out", 4096)
    try:
        memory.set_shared_memory_region(given, [IDS])
        client.register_system_shared_memory("in", f"{prefix}default-in", 48)
        client.register_system_shared_memory("out", f"/{prefix}default-out", 4096)
        assert set(client.get_system_shared_memory_status().regions) == {"in", "out"}
        assert client.get_system_shared_memory_status("in").regions["in"].byte_size == 48
        tensor = triton.InferInput("ids", [2, 3], "INT64")
        tensor.set_shared_memory("in", 48)
        wanted = triton.InferRequestedOutput("sum")
        wanted.set_shared_memory("out", 64, offset=32)
        found = client.infer("device", [tensor], outputs=[wanted]).get_output("sum")
        assert found.parameters["shared_memory_byte_size"].int64_param == 8
        sums = memory.get_contents_as_numpy(taken, np.float32, list(found.shape), offset=32)
        assert sums.reshape(-1).tolist() == [6, 15]
        assert client.infer("device", [tensor]).as_numpy("sum").tolist() == [6, 15]
        with pytest.raises(InferenceServerException, match="no shared memory region 'x'"):
            client.get_system_shared_memory_status("x")
        with pytest.raises(InferenceServerException, match="the key must be one name"):
            client.register_system_shared_memory("x", "plasma", 8)
        with pytest.raises(InferenceServerException, match="UNIMPLEMENTED"):
            client.get_cuda_shared_memory_status()
        os.truncate(SHM / f"{prefix}default-in", 8)
        with pytest.raises(InferenceServerException, match="INVALID_ARGUMENT"):
            client.infer("device", [tensor])
        client.unregister_system_shared_memory("in")
        assert set(client.get_system_shared_memory_status().regions) == {"out"}
        client.unregister_system_shared_memory()
    finally:
        memory.destroy_shared_memory_region(given)
        memory.destroy_shared_memory_region(taken)
        client.close()


async def test_tensors_are_read_and_written_in_shared_memory(tmp_path: Path, prefix: str) -> None:
    gateway: dict[str, Any] = {"shared_memory": {"prefix": f"{prefix}{{tenant}}-"}}
    async with grpc_standing({"device": MODEL}, tmp_path, gateway=gateway) as served:
        await asyncio.to_thread(use, served.target, prefix)


@pytest.mark.parametrize(
    ("place", "said"),
    [("shared_memory_region", "shared memory is off"), ("url", "inputs by URL are off")],
)
async def test_what_is_off_is_refused(channel: grpc.aio.Channel, place: str, said: str) -> None:
    request = messages.ModelInferRequest(model_name="device")
    entry = request.inputs.add(name="ids", datatype="INT64", shape=[1, 1])
    entry.parameters[place].string_param = "https://a.example/b"
    entry.parameters["shared_memory_byte_size"].int64_param = 8
    call = channel.unary_unary(f"/{messages.INFERENCE}/ModelInfer")
    with pytest.raises(grpc.aio.AioRpcError, match=said):
        await call(request.SerializeToString())
