"""Open Inference requests whose tensors' bytes follow their JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from deployments.contract.errors import BadRequest
from deployments.gateway.http.protocols import open_inference
from deployments.gateway.http.protocols.tensors import (
    DTYPES,
    InferCall,
    RequestedOutput,
    Tensor,
    pack,
)

FIXED = sorted(set(DTYPES) - {"BYTES"})


def entry(name: str, datatype: str, shape: list[int], size: int) -> dict[str, Any]:
    parameters = {"binary_data_size": size}
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": parameters}


def request(*entries: dict[str, Any], pad: int = 0) -> bytes:
    return json.dumps({"inputs": list(entries)}).encode() + b" " * pad


def decode(header: bytes, tail: bytes) -> InferCall:
    return open_inference.decode_binary(header + tail, len(header))


def refusal(header: bytes, tail: bytes) -> str:
    with pytest.raises(BadRequest) as caught:
        decode(header, tail)
    return caught.value.message


def test_extensions_example_is_read() -> None:
    header = request(entry("input0", "UINT32", [2, 2], 16), entry("input1", "BOOL", [3], 3))
    call = decode(header, bytes(range(16)) + b"\x01\x00\x01")
    assert call.tensors[0].data.tolist() == [[0x03020100, 0x07060504], [0x0B0A0908, 0x0F0E0D0C]]
    assert call.tensors[1].data.tolist() == [True, False, True]


def test_extensions_answer_is_written() -> None:
    data = np.arange(6, dtype=np.float32).reshape(3, 2)
    call = InferCall([], outputs=[RequestedOutput("output0", True)])
    encoded = open_inference.encode(call, "m", "1", [Tensor("output0", "FP32", data)])
    length = int(dict(encoded.headers)[b"inference-header-content-length"])
    assert encoded.content_type == b"application/octet-stream"
    assert encoded.body[length:] == data.tobytes()
    assert json.loads(encoded.body[:length])["outputs"] == [
        {
            "name": "output0",
            "shape": [3, 2],
            "datatype": "FP32",
            "parameters": {"binary_data_size": 24},
        }
    ]


@settings(max_examples=80, deadline=None)
@given(data=st.data(), datatype=st.sampled_from(FIXED), pad=st.integers(0, 7))
def test_every_fixed_type_survives_bit_for_bit(
    data: st.DataObject, datatype: str, pad: int
) -> None:
    dtype = DTYPES[datatype]
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, max_side=4))
    size = int(np.prod(shape)) * dtype.itemsize
    raw = data.draw(st.binary(min_size=size, max_size=size))
    if datatype == "BOOL":
        raw = bytes(byte & 1 for byte in raw)
    call = decode(request(entry("x", datatype, list(shape), size), pad=pad), raw)
    assert call.tensors[0].data.dtype == dtype
    assert call.tensors[0].data.flags.aligned
    call.outputs = [RequestedOutput("x", True)]
    encoded = open_inference.encode(call, "m", "1", call.tensors)
    assert encoded.body.endswith(raw)


@settings(max_examples=40, deadline=None)
@given(items=st.lists(st.binary(max_size=9), min_size=1, max_size=5))
def test_byte_strings_survive(items: list[bytes]) -> None:
    array = np.empty(len(items), dtype=object)
    array[:] = items
    raw = bytes(pack("BYTES", array))
    call = decode(request(entry("x", "BYTES", [len(items)], len(raw))), raw)
    assert call.tensors[0].data.tolist() == items


def test_aligned_data_is_not_copied_and_misaligned_is() -> None:
    copied = set()
    for pad in range(8):
        body = request(entry("x", "INT64", [1], 8), pad=pad)
        whole = bytearray(body + b"\x00" * 8)
        array = open_inference.decode_binary(memoryview(whole), len(body)).tensors[0].data
        whole[len(body)] = 7
        copied.add(int(array[0]) != 7)
    assert copied == {True, False}


def test_json_and_binary_tensors_mix() -> None:
    plain = {"name": "j", "datatype": "INT64", "shape": [1], "data": [5]}
    call = decode(request(plain, entry("b", "UINT8", [2], 2)), b"\x01\x02")
    assert [t.data.tolist() for t in call.tensors] == [[5], [1, 2]]


def test_outputs_of_both_forms_stand_in_one_answer() -> None:
    call = InferCall([], outputs=[RequestedOutput("a", True), RequestedOutput("b", False)])
    one = np.ones(1, dtype=np.float32)
    encoded = open_inference.encode(
        call, "m", "1", [Tensor("a", "FP32", one), Tensor("b", "FP32", one)]
    )
    length = int(dict(encoded.headers)[b"inference-header-content-length"])
    outputs = json.loads(encoded.body[:length])["outputs"]
    assert "data" not in outputs[0]
    assert outputs[1]["data"] == [1.0]
    assert len(encoded.body) == length + 4


@pytest.mark.parametrize("length", [-1, 0, 10_000])
def test_header_length_outside_the_body_is_refused(length: int) -> None:
    with pytest.raises(BadRequest, match="Inference-Header-Content-Length"):
        open_inference.decode_binary(b"{}", length)


@pytest.mark.parametrize("left", [0, 1, 7, 9, 16])
def test_sizes_that_do_not_add_up_are_refused(left: int) -> None:
    message = refusal(request(entry("x", "INT64", [1], 8)), b"\x00" * left)
    assert "binary_data_size" in message


@pytest.mark.parametrize("size", [0, 4, 12, -8, 2**62])
def test_size_unlike_the_shape_is_refused(size: int) -> None:
    tail = b"\x00" * (size if 0 <= size < 100 else 8)
    assert "'x'" in refusal(request(entry("x", "INT64", [1], size)), tail)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "cannot hold 2"),
        (b"\x00" * 7, "cannot hold 2"),
        (b"\x01\x00\x00\x00a\xff\xff\xff\xff", "element 1 runs over"),
        (b"\x09\x00\x00\x00abcd", "element 0 runs over"),
        (b"\x00" * 9, "take 8 bytes"),
    ],
)
def test_byte_strings_that_do_not_add_up_are_refused(raw: bytes, says: str) -> None:
    assert says in refusal(request(entry("x", "BYTES", [2], len(raw))), raw)


def test_bool_byte_over_one_is_refused() -> None:
    assert "byte 0 or 1" in refusal(request(entry("x", "BOOL", [2], 2)), b"\x01\x02")


def test_data_and_binary_size_together_are_refused() -> None:
    both = {**entry("x", "INT64", [1], 8), "data": [1]}
    assert "both data and" in refusal(request(both), b"\x00" * 8)


def test_enormous_shape_allocates_nothing() -> None:
    huge = [2**31 - 1] * 4
    assert "cannot hold" in refusal(request(entry("x", "BYTES", huge, 8)), b"\x00" * 8)
    assert "takes" in refusal(request(entry("x", "FP64", huge, 8)), b"\x00" * 8)
