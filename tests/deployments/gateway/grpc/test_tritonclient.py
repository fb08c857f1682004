"""Triton's own Python client, unpatched: its blocking form, its asyncio form, and its streams."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from grpc_stand import GrpcStand, grpc_standing
from tritonclient.utils import InferenceServerException

MODEL = {
    "runtime": "synthetic",
    "options": {"base_ms": 0, "per_request_ms": 0},
    "slo": {"latency_ms": 5000, "timeout_ms": 30_000, "max_timeout_ms": 60_000},
}
PATIENT = {"x-timeout-ms": "30000"}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server on a thread of its own: the client blocks."""
    started, targets = threading.Event(), []
    folder = tmp_path_factory.mktemp("served")
    ends: list[Any] = []

    async def serve() -> None:
        ended = asyncio.Event()
        ends.extend((asyncio.get_running_loop(), ended))
        async with grpc_standing({"device": MODEL}, folder) as served:
            targets.append(served.target)
            started.set()
            await ended.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(20)
    yield targets[0]
    ends[0].call_soon_threadsafe(ends[1].set)
    thread.join()


@pytest.fixture
def client(target: str) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(target) as found:
        yield found


def tensor(values: Any, module: Any = triton) -> Any:
    array = np.array([values], dtype=np.int64)
    made = module.InferInput("ids", list(array.shape), "INT64")
    made.set_data_from_numpy(array)
    return made


def test_server_and_model_are_ready(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("device")
    with pytest.raises(InferenceServerException, match="unknown model 'nobody'"):
        client.is_model_ready("nobody")


def test_metadata_and_configuration_are_tritons(client: triton.InferenceServerClient) -> None:
    assert client.get_server_metadata().name == "headrace"
    (entry,) = client.get_model_metadata("device").inputs
    assert (entry.name, entry.datatype, list(entry.shape)) == ("ids", "INT64", [-1, -1])
    config = client.get_model_config("device").config
    assert (config.name, config.backend, config.max_batch_size > 1) == ("device", "headrace", True)
    assert list(config.input[0].dims) == [-1]
    assert [each.state for each in client.get_model_repository_index().models] == ["READY"]


def test_statistics_count(client: triton.InferenceServerClient) -> None:
    before = client.get_inference_statistics("device").model_stats[0].inference_count
    client.infer("device", [tensor([1, 2])])
    after = client.get_inference_statistics("device").model_stats[0]
    assert after.inference_count == before + 1
    assert after.inference_stats.success.ns > 0


@pytest.mark.parametrize("how", [None, "gzip", "deflate"])
def test_tensors_are_inferred(client: triton.InferenceServerClient, how: str | None) -> None:
    result = client.infer(
        "device",
        [tensor([1, 2, 3])],
        outputs=[triton.InferRequestedOutput("sum")],
        request_id="r",
        timeout=5_000_000,
        sequence_id=7,
        compression_algorithm=how,
    )
    assert result.get_response().id == "r"
    assert result.as_numpy("sum").tolist() == [6.0]


def test_a_timeout_in_microseconds_is_the_budget(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException) as refusal:
        client.infer("device", [tensor([1])], timeout=1)
    assert refusal.value.status() == "StatusCode.DEADLINE_EXCEEDED"


def test_many_calls_side_by_side(client: triton.InferenceServerClient) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    for number in range(300):
        client.async_infer(
            "device",
            [tensor([number])],
            callback=lambda result, error: answers.put((result, error)),
        )
    found = [answers.get(timeout=10) for _ in range(300)]
    assert [str(error) for _, error in found if error is not None] == []
    assert sorted(result.as_numpy("sum")[0] for result, _ in found) == list(range(300))


def test_a_stream_is_answered_message_by_message(client: triton.InferenceServerClient) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(callback=lambda result, error: answers.put((result, error)))
    for number in range(20):
        client.async_stream_infer("device", [tensor([number])], request_id=str(number))
    found = [answers.get(timeout=10) for _ in range(20)]
    client.stop_stream()
    assert all(error is None for _, error in found)
    assert {result.get_response().id for result, _ in found} == {str(n) for n in range(20)}


async def test_the_asyncio_client_infers(served: GrpcStand) -> None:
    async with triton_aio.InferenceServerClient(served.target) as client:
        results = await asyncio.gather(
            *(client.infer("device", [tensor([n], triton_aio)], headers=PATIENT) for n in range(50))
        )
        assert [result.as_numpy("sum")[0] for result in results] == list(range(50))


async def test_a_large_tensor_comes_and_goes(tmp_path: Path) -> None:
    model = {"runtime": "synthetic", "options": {"base_ms": 0}, "lengths": {"max": 1_000_000},
             "queue": {"max_rows": 8}}  # fmt: skip
    async with (
        grpc_standing({"device": model}, tmp_path) as served,
        triton_aio.InferenceServerClient(served.target) as client,
    ):
        values = np.ones(1_000_000, dtype=np.int64)
        result = await client.infer("device", [tensor(values, triton_aio)], headers=PATIENT)
        assert result.as_numpy("sum").tolist() == [1_000_000.0]
