"""Tensors in shared memory through the whole gateway: by hand, and by Triton's own client."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from in_process import Answer, Stand, ask, standing
from uvicorn_server import serving

from deployments.gateway.tenancy.tenants import hash_key

SHM = Path("/dev/shm")
SYNTHETIC = {"runtime": "synthetic", "version": "1", "options": {"base_ms": 0}}
MODELS = {"device": SYNTHETIC, "kept": {**SYNTHETIC, "cache": {"max_bytes": 1_000_000}}}
IDS = np.array([[1, 2, 3], [4, 5, 6]], np.int64)
REGIONS = "/v2/systemsharedmemory"


@pytest.fixture
def prefix() -> Iterator[str]:
    found = f"hr-test-{os.getpid()}-"
    yield found
    for path in SHM.glob(f"{found}*"):
        path.unlink()


def settings(prefix: str, **more: Any) -> dict[str, Any]:
    return {"shared_memory": {"prefix": f"{prefix}{{tenant}}-"}, **more}


@pytest.fixture
async def stand(tmp_path: Path, prefix: str) -> AsyncIterator[Stand]:
    async with standing(MODELS, tmp_path, gateway=settings(prefix)) as stand:
        yield stand


async def send(stand: Stand, path: str, body: Any = None, tenant: str = "") -> Answer:
    headers = [(b"x-tenant", tenant.encode())] if tenant else []
    method = "GET" if path.endswith("/status") else "POST"
    written = b"" if body is None else json.dumps(body).encode()
    return await ask(stand.app, method, path, headers, written)


async def register(stand: Stand, key: str, name: str = "in", size: int = 4096) -> None:
    answer = await send(stand, f"{REGIONS}/region/{name}/register", {"key": key, "byte_size": size})
    assert (answer.status, answer.body) == (200, b"{}")


@pytest.fixture
async def keys(stand: Stand, prefix: str) -> tuple[Path, Path]:
    """The files of the registered regions `in`, which holds the ids, and `out`."""
    files = SHM / f"{prefix}default-in", SHM / f"{prefix}default-out"
    files[0].write_bytes(IDS.tobytes() + bytes(4000))
    files[1].write_bytes(bytes(4096))
    for name, file in zip(("in", "out"), files, strict=True):
        await register(stand, file.name, name, file.stat().st_size)
    return files


def place(region: str, size: int, offset: int | None = None) -> dict[str, Any]:
    found = {"shared_memory_region": region, "shared_memory_byte_size": size}
    return found if offset is None else {**found, "shared_memory_offset": offset}


def body(**changes: Any) -> dict[str, Any]:
    tensor = {"name": "ids", "datatype": "INT64", "shape": [2, 3], "parameters": place("in", 48)}
    outputs = [{"name": "sum", "parameters": place("out", 100, 8)}]
    return {"inputs": [{**tensor, **changes}], "outputs": outputs}


async def infer(stand: Stand, request: Any = None, model: str = "device") -> Answer:
    return await send(stand, f"/v2/models/{model}/infer", request or body())


async def test_inputs_are_read_and_outputs_written_where_the_request_says(
    stand: Stand, keys: tuple[Path, Path]
) -> None:
    answer = await infer(stand)
    assert answer.status == 200, answer.body
    (found,) = json.loads(answer.body)["outputs"]
    size = found["parameters"].pop("shared_memory_byte_size")
    assert found["parameters"] == {"shared_memory_region": "out", "shared_memory_offset": 8}
    assert "data" not in found
    dtype = {"INT64": np.int64, "FP32": np.float32}[found["datatype"]]
    content = keys[1].read_bytes()
    written = np.frombuffer(content[8 : 8 + size], dtype).reshape(found["shape"])
    assert written.reshape(-1).tolist() == [6, 15]
    assert content[:8] == bytes(8)
    assert not any(content[8 + size :])


async def test_an_output_in_memory_and_one_in_the_answer_go_together(
    stand: Stand, keys: tuple[Path, Path]
) -> None:
    request = {"inputs": body()["inputs"]}
    names = [each["name"] for each in json.loads((await infer(stand, request)).body)["outputs"]]
    assert "sum" in names
    answer = await infer(stand, {**body(), "outputs": [{"name": name} for name in names]})
    assert all("data" in each for each in json.loads(answer.body)["outputs"])


async def test_a_repeated_request_reads_again_and_kept_answers_are_of_what_was_there(
    stand: Stand, keys: tuple[Path, Path]
) -> None:
    assert (await infer(stand, model="kept")).header(b"x-cache") == b"miss"
    again = await infer(stand, model="kept")
    assert again.header(b"x-cache") == b"hit"
    keys[0].write_bytes((IDS + 1).tobytes())
    keys[1].write_bytes(bytes(4096))
    other = await infer(stand, model="kept")
    assert other.header(b"x-cache") == b"miss"
    assert any(keys[1].read_bytes())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"parameters": place("none", 48)}, "Tensor 'ids': no shared memory region 'none'"),
        ({"parameters": place("in", 40)}, "takes 48 bytes, shared_memory_byte_size is 40"),
        ({"parameters": place("in", 48, 4096)}, "ends at 4144; region 'in' has 4048 bytes"),
        ({"parameters": place("in", 10**15)}, "more than gateway.limits.max_body_bytes"),
        ({"parameters": place("in", 48, -1)}, "shared_memory_offset must be"),
        ({"parameters": place("in", 0)}, "shared_memory_byte_size must be"),
        ({"parameters": {"shared_memory_region": 3}}, "shared_memory_region must be a text"),
        ({"parameters": {"shared_memory_offset": 3}}, "without shared_memory_region"),
        ({"data": [1, 2, 3, 4, 5, 6]}, "has data besides"),
        ({"shape": [2, 2**31]}, "2147483647"),
        ({"datatype": "FP7"}, "unknown datatype"),
    ],
)
async def test_what_cannot_be_meant_is_refused_by_name(
    stand: Stand, keys: tuple[Path, Path], changes: dict[str, Any], says: str
) -> None:
    answer = await infer(stand, body(**changes))
    assert answer.status in (400, 413)
    assert says in json.loads(answer.body)["error"]


async def test_an_output_without_room_is_refused_before_it_is_computed(
    stand: Stand, keys: tuple[Path, Path]
) -> None:
    before = len(stand.channels["device"].calls)
    os.truncate(keys[1], 50)
    answer = await infer(stand)
    assert "Output 'sum'" in json.loads(answer.body)["error"]
    assert answer.status == 400
    assert len(stand.channels["device"].calls) == before


async def test_a_region_truncated_while_the_model_runs_fails_that_request_alone(
    stand: Stand, keys: tuple[Path, Path]
) -> None:
    channel = stand.channels["device"]
    channel.hold()
    asked = asyncio.create_task(infer(stand))
    plain = {"inputs": [{"name": "ids", "datatype": "INT64", "shape": [1, 1], "data": [7]}]}
    beside = asyncio.create_task(infer(stand, plain))
    await channel.sent(1)
    for file in keys:
        os.truncate(file, 0)
    channel.let_go()
    answer = await asked
    assert (answer.status, b"truncated or replaced" in answer.body) == (400, True)
    assert (await beside).status == 200
    assert keys[1].stat().st_size == 0


async def test_an_unregistration_while_the_model_runs_hurts_nothing(
    stand: Stand, keys: tuple[Path, Path]
) -> None:
    channel = stand.channels["device"]
    channel.hold()
    asked = asyncio.create_task(infer(stand))
    await channel.sent(1)
    assert (await send(stand, f"{REGIONS}/unregister")).status == 200
    channel.let_go()
    assert (await asked).status == 200
    assert any(keys[1].read_bytes())
    assert json.loads((await send(stand, f"{REGIONS}/status")).body) == []


async def test_what_is_read_counts_as_held_and_is_given_back(tmp_path: Path, prefix: str) -> None:
    gateway = settings(prefix, limits={"max_held_bytes": 1024})
    async with standing(MODELS, tmp_path, gateway=gateway) as stand:
        room = stand.app._services.limits.room
        (SHM / f"{prefix}default-in").write_bytes(bytes(8 * 200))
        await register(stand, f"{prefix}default-in", size=1600)
        room.keep(("other", 1.0), 1000)  # others hold nearly all
        parameters = place("in", 1600)
        answer = await infer(
            stand, {"inputs": body(shape=[2, 100], parameters=parameters)["inputs"]}
        )
        assert (answer.status, b"max_held_bytes" in answer.body) == (503, True)
        room.give(("other", 1.0), 1000)
        assert room.held_bytes == 0
        answer = await infer(
            stand, {"inputs": body(shape=[2, 100], parameters=parameters)["inputs"]}
        )
        assert answer.status == 200
        assert room.held_bytes == 0


async def test_tenants_have_regions_of_their_own(tmp_path: Path, prefix: str) -> None:
    tenants = {"acme": {}, "other": {}}
    async with standing(MODELS, tmp_path, gateway=settings(prefix), tenants=tenants) as stand:
        key = f"{prefix}acme-in"
        (SHM / key).write_bytes(IDS.tobytes())
        asked = {"key": key, "byte_size": 48}
        path = f"{REGIONS}/region/in/register"
        assert (await send(stand, path, asked, "other")).status == 400
        assert (await send(stand, path, asked, "acme")).status == 200
        seen = json.loads((await send(stand, f"{REGIONS}/status", tenant="acme")).body)
        assert seen == [{"name": "in", "key": key, "offset": 0, "byte_size": 48}]
        assert json.loads((await send(stand, f"{REGIONS}/status", tenant="other")).body) == []
        missing = await send(stand, f"{REGIONS}/region/in/status", tenant="other")
        assert missing.status == 404
        request = {"inputs": body()["inputs"]}
        path = "/v2/models/device/infer"
        assert (await send(stand, path, request, "other")).status == 400
        assert (await send(stand, f"{REGIONS}/unregister", tenant="other")).status == 200
        assert (await send(stand, path, request, "acme")).status == 200


async def test_pages_of_regions_count_at_the_tenants_rate(tmp_path: Path, prefix: str) -> None:
    tenants = {"default": {"rate": {"requests_per_s": 0.01, "burst_s": 100}}}
    async with standing(MODELS, tmp_path, gateway=settings(prefix), tenants=tenants) as stand:
        assert (await send(stand, f"{REGIONS}/status")).status == 200
        assert (await send(stand, f"{REGIONS}/status")).status == 429


async def test_without_the_setting_everything_says_that_it_is_off(tmp_path: Path) -> None:
    async with standing(MODELS, tmp_path) as stand:
        for path in ("/status", "/region/r/status", "/region/r/register", "/unregister"):
            answer = await send(stand, f"{REGIONS}{path}", {"key": "k", "byte_size": 1})
            assert (answer.status, b"gateway.shared_memory" in answer.body) == (400, True)
        for request in (body(), {**body(), "outputs": []}):
            answer = await infer(stand, request)
            assert "Tensor 'ids': shared memory is off" in json.loads(answer.body)["error"]
            assert answer.status == 400


async def test_where_keys_are_needed_a_region_needs_one(tmp_path: Path, prefix: str) -> None:
    tenants = {"acme": {"keys": [hash_key("hr_acme")]}}
    async with standing(MODELS, tmp_path, gateway=settings(prefix), tenants=tenants) as stand:
        assert (await send(stand, f"{REGIONS}/status")).status == 401
        headers = [(b"authorization", b"Bearer hr_acme")]
        found = await ask(stand.app, "GET", f"{REGIONS}/status", headers)
        assert (found.status, found.body) == (200, b"[]")


async def test_cuda_memory_is_listed_as_none_and_refused(stand: Stand) -> None:
    cuda = "/v2/cudasharedmemory"
    assert (await send(stand, f"{cuda}/status")).body == b"[]"
    assert (await send(stand, f"{cuda}/unregister")).status == 200
    answer = await send(stand, f"{cuda}/region/r/register", {"raw_handle": {"b64": ""}})
    assert (answer.status, b"register system shared memory" in answer.body) == (400, True)


async def test_tritons_client_works_as_it_is(stand: Stand, prefix: str) -> None:
    tritonclient = pytest.importorskip("tritonclient.http")
    memory = pytest.importorskip("tritonclient.utils.shared_memory")

    def use(port: int) -> None:
        client = tritonclient.InferenceServerClient(f"127.0.0.1:{port}")
        client.unregister_system_shared_memory()
        client.unregister_cuda_shared_memory()
        given = memory.create_shared_memory_region("in", f"{prefix}default-in", 48)
        taken = memory.create_shared_memory_region("out", f"{prefix}default-out", 4096)
        try:
            memory.set_shared_memory_region(given, [IDS])
            client.register_system_shared_memory("in", f"{prefix}default-in", 48)
            client.register_system_shared_memory("out", f"/{prefix}default-out", 4096)
            assert [r["name"] for r in client.get_system_shared_memory_status()] == ["in", "out"]
            tensor = tritonclient.InferInput("ids", [2, 3], "INT64")
            tensor.set_shared_memory("in", 48)
            wanted = tritonclient.InferRequestedOutput("sum", binary_data=True)
            wanted.set_shared_memory("out", 64, offset=32)
            result = client.infer("device", [tensor], outputs=[wanted])
            found = result.get_output("sum")
            dtype = {"INT64": np.int64, "FP32": np.float32}[found["datatype"]]
            sums = memory.get_contents_as_numpy(taken, dtype, found["shape"], offset=32)
            assert sums.reshape(-1).tolist() == [6, 15]
            with pytest.raises(Exception, match="no shared memory region 'x'"):
                client.get_system_shared_memory_status("x")
            with pytest.raises(Exception, match="the key must be one name"):
                client.register_system_shared_memory("x", "plasma", 8)
            with pytest.raises(Exception, match="CUDA shared memory is not supported"):
                client.register_cuda_shared_memory("x", b"aGFuZGxl", 0, 8)
            client.unregister_system_shared_memory("in")
            assert [r["name"] for r in client.get_system_shared_memory_status()] == ["out"]
            client.unregister_system_shared_memory()
        finally:
            memory.destroy_shared_memory_region(given)
            memory.destroy_shared_memory_region(taken)
            client.close()

    config = uvicorn.Config(stand.app, port=0, http="httptools", log_config=None)
    async with serving(config) as port:
        await asyncio.to_thread(use, port)
