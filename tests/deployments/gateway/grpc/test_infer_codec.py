"""ModelInfer's messages as calls: what is read without protobuf is what protobuf reads."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deployments.contract.description import ModelDescription
from deployments.contract.errors import BadRequest
from deployments.gateway.grpc import infer_codec
from deployments.gateway.grpc.exchange import GrpcExchange
from deployments.gateway.grpc.infer_codec import (
    GrpcInferCodec,
    call_of,
    id_of,
    varint,
    without_raw,
)
from deployments.gateway.grpc.messages import ModelInferRequest, ModelInferResponse
from deployments.gateway.http.protocols.tensors import Fetched, InferCall
from deployments.gateway.rows import RowAnswer, Rows
from runtimes.types import DTYPES, TensorSpec


def request(**more: Any) -> Any:
    return ModelInferRequest(model_name="m", **more)


def with_input(datatype: str = "INT64", shape: tuple[int, ...] = (1, 2), **contents: Any) -> Any:
    made = request()
    entry = made.inputs.add(name="ids", datatype=datatype)
    entry.shape.extend(shape)
    for name, values in contents.items():
        getattr(entry.contents, name).extend(values)
    return made


@given(
    raw=st.lists(st.binary(max_size=300), max_size=5),
    names=st.lists(st.text(max_size=20), max_size=5),
    version=st.text(max_size=5),
)
def test_raw_contents_are_found_without_protobuf(
    raw: list[bytes], names: list[str], version: str
) -> None:
    made = request(model_version=version, raw_input_contents=raw)
    for name in names:
        made.inputs.add(name=name, datatype="INT8")
    rest, views = without_raw(memoryview(made.SerializeToString()))
    assert [bytes(view) for view in views] == raw
    found = ModelInferRequest.FromString(rest)
    made.ClearField("raw_input_contents")
    assert found == made


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(data: bytes) -> None:
    try:
        rest, views = without_raw(memoryview(data))
        found = ModelInferRequest.FromString(rest)
        call_of(found, views or found.raw_input_contents)
    except (DecodeError, BadRequest):
        pass


@given(st.integers(0, 2**40))
def test_lengths_are_written_as_protobuf_reads_them(value: int) -> None:
    assert infer_codec._varint(memoryview(varint(value)), 0) == (value, len(varint(value)))


def test_a_long_message_keeps_its_raw_contents_where_they_are() -> None:
    made = with_input("FP32", (1, 50_000))
    made.raw_input_contents.append(np.arange(50_000, dtype=np.float32).tobytes())
    body = made.SerializeToString()
    call = decoded(body)
    data = call.tensors[0].data
    assert np.shares_memory(data, np.frombuffer(body, np.uint8)) or not data.flags.owndata
    assert data.shape == (1, 50_000)
    assert data[0, 49_999] == 49_999


def decoded(body: bytes) -> Any:
    exchange = GrpcExchange(
        {"method": "POST", "raw_path": b"/", "headers": []},
        SimpleNamespace,  # type: ignore[arg-type]
        SimpleNamespace,  # type: ignore[arg-type]
        None,
        1 << 20,
    )
    return GrpcInferCodec(lambda name: None).decode(body, exchange, None)


@pytest.mark.parametrize(
    ("datatype", "values"),
    [
        ("BOOL", [True, False]), ("INT8", [-128, 127]), ("INT16", [-(2**15), 1]),
        ("INT32", [-(2**31), 1]), ("INT64", [-(2**63), 1]), ("UINT8", [0, 255]),
        ("UINT16", [0, 65_535]), ("UINT32", [0, 2**32 - 1]), ("UINT64", [0, 2**64 - 1]),
        ("FP32", [0.5, -1.5]), ("FP64", [0.1, 1e300]), ("BYTES", [b"", b"\xff"]),
    ],
)  # fmt: skip
def test_typed_contents_are_read_in_their_datatype(datatype: str, values: list[Any]) -> None:
    made = with_input(datatype, (1, 2), **{infer_codec._CONTENTS[datatype]: values})
    data = call_of(made, ()).tensors[0].data
    assert data.shape == (1, 2)
    assert data.dtype == DTYPES[datatype]
    assert data.reshape(-1).tolist() == values


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (ModelInferRequest(), "model_name is missing"),
        (request(), "0 inputs"),
        (with_input(), "neither contents nor raw"),
        (with_input(int_contents=[1, 2]), "stand in int64_contents; int_contents came"),
        (with_input(int64_contents=[1]), "2 elements, int64_contents has 1"),
        (with_input("INT8", int_contents=[1, 128]), "out of INT8's range"),
        (with_input("UINT8", uint_contents=[256, 0]), "out of UINT8's range"),
        (with_input("FP16", fp32_contents=[1, 1]), "FP16 has no typed contents"),
        (with_input("FLOAT", fp32_contents=[1, 1]), "unknown datatype 'FLOAT'"),
        (with_input("INT64", (0, 2), int64_contents=[]), "every axis"),
        (with_input("INT64", (-1, 2), int64_contents=[1, 2]), "every axis"),
        (with_input("INT64", (2**31, 2**31, 2), int64_contents=[1, 2]), "every axis"),
    ],
)
def test_what_is_wrong_with_a_request_is_said(made: Any, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        call_of(made, made.raw_input_contents)


def test_raw_contents_are_all_or_nothing() -> None:
    made = with_input(int64_contents=[1, 2])
    with pytest.raises(BadRequest, match="beside the request's raw_input_contents"):
        call_of(made, [bytes(16)])
    bare = with_input()
    with pytest.raises(BadRequest, match="2 entries for 1 inputs"):
        call_of(bare, [bytes(16), bytes(16)])
    bare.inputs.add(name="more", datatype="INT64", shape=[1, 2])
    with pytest.raises(BadRequest, match="'more' has no entry"):
        call_of(bare, [bytes(16)])


@pytest.mark.parametrize("place", ["shared_memory_region", "url"])
def test_a_tensor_may_be_elsewhere(place: str) -> None:
    made = with_input()
    where = made.inputs.add(name="there", datatype="INT64", shape=[1, 2])
    where.parameters[place].string_param = "https://a/b"
    where.parameters["shared_memory_byte_size"].int64_param = 16
    call = call_of(made, [bytes(16)])
    (there,) = call.external
    there.take(Fetched(memoryview(bytes(8) + b"\1" + bytes(7))))
    assert [tensor.data.tolist() for tensor in call.tensors] == [[[0, 0]], [[0, 1]]]
    where.contents.int64_contents.append(1)
    with pytest.raises(BadRequest, match="has contents besides"):
        call_of(made, [bytes(16)])


def test_tensors_are_named_once() -> None:
    made = with_input(int64_contents=[1, 2])
    made.inputs.add().CopyFrom(made.inputs[0])
    with pytest.raises(BadRequest, match="more than once in inputs"):
        call_of(made, ())


def test_classification_is_refused() -> None:
    made = with_input(int64_contents=[1, 2])
    made.outputs.add(name="x").parameters["classification"].int64_param = 2
    with pytest.raises(BadRequest, match="classification is not supported"):
        call_of(made, ())


def test_a_message_may_not_be_long_but_for_its_raw_contents() -> None:
    made = with_input("INT64", (1, 3_000_000), int64_contents=[1 << 40] * 3_000_000)
    with pytest.raises(BadRequest, match="send large tensors as raw_input_contents"):
        decoded(made.SerializeToString())
    many = request(raw_input_contents=[b""] * 40_000).SerializeToString()
    with pytest.raises(BadRequest, match="more than 512 fields"):
        decoded(many)


@pytest.mark.parametrize("where", ["", "inputs", "outputs"])
def test_maps_are_counted_before_protobuf_reads_them(where: str) -> None:
    made = with_input(int64_contents=[1, 2])
    made.outputs.add(name="sum")
    holder = getattr(made, where)[0] if where else made
    for number in range(513):
        holder.parameters[str(number)].bool_param = True
    with pytest.raises(BadRequest, match="more than 512 fields"):
        decoded(made.SerializeToString())


@pytest.mark.parametrize("where", ["model", "input", "output"])
def test_names_are_short(where: str) -> None:
    made = with_input(int64_contents=[1, 2])
    name = "\u00e9" * 257
    if where == "model":
        made.model_name = name
    elif where == "input":
        made.inputs[0].name = name
    else:
        made.outputs.add(name=name)
    with pytest.raises(BadRequest, match="a name has more than 256 characters"):
        decoded(made.SerializeToString())


def test_an_id_is_found_in_what_is_not_read() -> None:
    made = with_input(int64_contents=[1, 2])
    assert id_of(made.SerializeToString()) == ""
    made.id = "\u00e9" * 300
    assert id_of(made.SerializeToString()) == "\u00e9" * 128
    assert id_of(b"\xff\xff") == ""


def test_many_typed_contents_are_read_in_slices() -> None:
    made = with_input("UINT8", (1, 200_000), uint_contents=list(range(200)) * 1000)
    assert decoded(made.SerializeToString()).tensors[0].data.tolist() == [list(range(200)) * 1000]


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("datatype", ["FP32", "INT64", "BYTES", "BF16"])
def test_a_large_answer_in_pieces_is_the_answer(
    description: Callable[..., ModelDescription], raw: bool, datatype: str
) -> None:
    d = description(outputs=(TensorSpec("out", datatype, (-1, 3)),))
    arrays = [_values(datatype, row) for row in range(5)]
    answers = tuple(RowAnswer({"out": (datatype, array)}) for array in arrays)
    rows = Rows(5, (1,) * 5, {})
    call = InferCall([], "id", binary_outputs=raw)
    codec = GrpcInferCodec(lambda name: None)
    whole = codec.encode(replace(call, binary_outputs=True), rows, answers, d).body
    large = codec.pieces(call, rows, answers, d)
    made = b"".join(large.parts)
    assert large.size == len(made)
    found = ModelInferResponse.FromString(made)
    assert found == ModelInferResponse.FromString(whole)
    assert list(found.outputs[0].shape) == [5, 3]
    assert found.raw_output_contents  # typed ones would be in memory at once


def _values(datatype: str, row: int) -> Any:
    if datatype == "BYTES":
        found = np.empty(3, dtype=object)
        found[:] = [b"a" * row, b"", b"\xff"]
        return found
    return (np.arange(3) + row).astype(DTYPES[datatype])
