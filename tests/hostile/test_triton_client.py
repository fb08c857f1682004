"""Triton's own Python client over HTTP, unpatched, through each way in: its calls are answered,
or refused in words that say who does it here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

CALLS = {
    "is_server_live": (),
    "is_server_ready": (),
    "is_model_ready": ("device",),
    "get_server_metadata": (),
    "get_model_metadata": ("device",),
    "get_model_config": ("device",),
    "get_model_repository_index": (),
    "get_inference_statistics": ("device",),
}
REFUSED = {
    "get_trace_settings": ((), "gateway.tracing"),
    "update_trace_settings": (("device", {"trace_rate": "1"}), "gateway.tracing"),
    "get_log_settings": ((), "gateway.log"),
    "update_log_settings": (({"log_verbose_level": 1},), "gateway.log"),
    "load_model": (("device",), "headrace apply"),
    "unload_model": (("device",), "headrace apply"),
    "register_cuda_shared_memory": (("x", b"aGFuZGxl", 0, 8), "CUDA shared memory"),
}


@pytest.fixture(params=["edge", "direct"])
def client(request: pytest.FixtureRequest) -> Any:
    http: Any = pytest.importorskip(
        "tritonclient.http", reason="TRITON'S CLIENT IS NOT CHECKED: no tritonclient[http]"
    )
    target = getattr(request.getfixturevalue("roomy"), request.param)
    return http, http.InferenceServerClient(f"127.0.0.1:{target.port}")


@pytest.mark.slow
def test_its_calls_are_answered(client: Any) -> None:
    _, triton = client
    for name, arguments in CALLS.items():
        assert getattr(triton, name)(*arguments), name


@pytest.mark.slow
def test_what_changes_the_server_is_refused_in_words(client: Any) -> None:
    http, triton = client
    for name, (arguments, said) in REFUSED.items():
        with pytest.raises(http.InferenceServerException, match=said):
            getattr(triton, name)(*arguments)


@pytest.mark.slow
@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("sent", [None, "gzip", "deflate"])
@pytest.mark.parametrize("taken", [None, "gzip", "deflate"])
def test_tensors_go_both_ways_however_they_are_compressed(
    client: Any, binary: bool, sent: str | None, taken: str | None
) -> None:
    http, triton = client
    tensor = http.InferInput("ids", [1, 3], "INT64")
    tensor.set_data_from_numpy(np.array([[1, 2, 3]], dtype=np.int64), binary_data=binary)
    (output,) = triton.get_model_metadata("device")["outputs"]
    wanted = [http.InferRequestedOutput(output["name"], binary_data=binary)]
    answer = triton.infer(
        "device", [tensor], outputs=wanted,
        request_compression_algorithm=sent, response_compression_algorithm=taken,
    )  # fmt: skip
    assert answer.as_numpy(output["name"]).tolist() == [6.0]
