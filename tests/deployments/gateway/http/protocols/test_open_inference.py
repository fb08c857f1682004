"""Open Inference requests and answers in JSON."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from deployments.contract.errors import BadRequest
from deployments.gateway.http.protocols import open_inference
from deployments.gateway.http.protocols.tensors import (
    DTYPES,
    MAX_RANK,
    InferCall,
    RequestedOutput,
    Tensor,
)

JSON_TYPES = sorted(set(DTYPES) - {"FP16", "BF16", "BYTES"})


def body(**changes: Any) -> bytes:
    tensor = {"name": "x", "shape": [1, 3], "datatype": "INT64", "data": [1, 2, 3]}
    return json.dumps({"inputs": [{**tensor, **changes}]}).encode()


def refusal(raw: bytes) -> str:
    with pytest.raises(BadRequest) as caught:
        open_inference.decode(raw)
    return caught.value.message


def answer(*tensors: Tensor) -> tuple[str, str, list[Tensor]]:
    return "m", "1", list(tensors)


def finite(datatype: str) -> st.SearchStrategy[np.ndarray[Any, Any]]:
    shapes = hnp.array_shapes(min_dims=1, max_dims=4, max_side=4)
    return hnp.arrays(
        DTYPES[datatype],
        shapes,
        elements={"allow_nan": False, "allow_infinity": False}
        if DTYPES[datatype].kind == "f"
        else None,
    )


def test_specifications_example_is_read() -> None:
    call = open_inference.decode(
        b'{"id": "42", "inputs": ['
        b'{"name": "input0", "shape": [2, 2], "datatype": "UINT32", "data": [1, 2, 3, 4]},'
        b'{"name": "input1", "shape": [1], "datatype": "BOOL", "data": [true]}],'
        b'"outputs": [{"name": "output0"}]}'
    )
    assert call.id == "42"
    assert [t.name for t in call.tensors] == ["input0", "input1"]
    assert call.tensors[0].data.tolist() == [[1, 2], [3, 4]]
    assert call.tensors[0].data.dtype == np.uint32
    assert call.tensors[1].data.tolist() == [True]
    assert call.outputs == [RequestedOutput("output0", False)]


def test_specifications_answer_is_written() -> None:
    data = np.array([[1.0, 1.1], [2.0, 2.1], [3.0, 3.1]], dtype=np.float32)
    encoded = open_inference.encode(
        InferCall([], id="42"), *answer(Tensor("output0", "FP32", data))
    )
    assert encoded.body == (
        b'{"model_name":"m","model_version":"1","id":"42","outputs":[{"name":"output0",'
        b'"shape":[3,2],"datatype":"FP32","data":[1.0,1.1,2.0,2.1,3.0,3.1]}]}'
    )
    assert encoded.content_type == b"application/json"
    assert encoded.headers == []


@settings(max_examples=60, deadline=None)
@given(data=st.data(), datatype=st.sampled_from(JSON_TYPES), nested=st.booleans())
def test_every_json_type_survives_the_way_out_and_back(
    data: st.DataObject, datatype: str, nested: bool
) -> None:
    array = data.draw(finite(datatype))
    written = json.loads(
        open_inference.encode(InferCall([]), *answer(Tensor("x", datatype, array))).body
    )["outputs"][0]
    values = array.tolist() if nested else written["data"]
    back = open_inference.decode(body(**{**written, "data": values})).tensors[0]
    assert back.data.dtype == array.dtype
    assert back.data.shape == array.shape
    np.testing.assert_array_equal(back.data, array)


@settings(max_examples=30, deadline=None)
@given(texts=st.lists(st.text(), min_size=1, max_size=6), nested=st.booleans())
def test_texts_survive_the_way_out_and_back(texts: list[str], nested: bool) -> None:
    array = np.empty((1, len(texts)), dtype=object)
    array[0, :] = [text.encode() for text in texts]
    written = json.loads(
        open_inference.encode(InferCall([]), *answer(Tensor("x", "BYTES", array))).body
    )["outputs"][0]
    assert written["data"] == texts
    values = [texts] if nested else texts
    back = open_inference.decode(
        body(datatype="BYTES", shape=[1, len(texts)], data=values)
    ).tensors[0]
    assert back.data.tolist() == array.tolist()


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_halves_are_refused_in_json_and_written_exactly(datatype: str) -> None:
    assert "no JSON form" in refusal(body(datatype=datatype, data=[1.0, 2.0, 3.0]))
    array = np.array([0.1, 1.5], dtype=DTYPES[datatype])
    written = open_inference.encode(InferCall([]), *answer(Tensor("h", datatype, array)))
    values = json.loads(written.body)["outputs"][0]["data"]
    assert np.array(values, dtype=DTYPES[datatype]).tobytes() == array.tobytes()


def test_fp32_is_written_short() -> None:
    array = np.array([0.1, np.float32(1) / 3], dtype=np.float32)
    encoded = open_inference.encode(InferCall([]), *answer(Tensor("y", "FP32", array)))
    assert b'"data":[0.1,0.33333334]' in encoded.body


def test_infinite_answers_are_null_in_json() -> None:
    array = np.array([np.nan, np.inf], dtype=np.float32)
    encoded = open_inference.encode(InferCall([]), *answer(Tensor("y", "FP32", array)))
    assert b'"data":[null,null]' in encoded.body


@pytest.mark.parametrize("data", ["[1,[2,3]]", "[[1,2],[3]]", "[[1,2,3],[4,5,6]]", "[[[1,2,3]]]"])
def test_data_nested_unlike_its_shape_is_refused(data: str) -> None:
    assert "'x'" in refusal(body(data=0).replace(b'"data": 0', b'"data": ' + data.encode()))


@pytest.mark.parametrize(
    ("datatype", "value", "says"),
    [
        ("INT64", 1.5, "data[1]: expected int, got float"),
        ("INT64", True, "expected int, got bool"),
        ("INT64", "1", "expected int, got str"),
        ("INT64", None, "expected int, got null"),
        ("INT64", 2**63, "out of INT64's range"),
        ("UINT8", 256, "256 is out of UINT8's range 0 to 255"),
        ("UINT64", -1, "-1 is out of UINT64's range"),
        ("INT8", -129, "out of INT8's range"),
        ("FP32", 1e39, "out of FP32's range"),
        ("FP32", True, "expected float, got bool"),
        ("BOOL", 1, "expected bool, got int"),
        ("BYTES", 1, "expected str, got int"),
    ],
)
def test_element_of_the_wrong_kind_is_refused_by_name(datatype: str, value: Any, says: str) -> None:
    good: dict[str, Any] = {"BOOL": True, "BYTES": "a", "FP32": 1.5}
    first = good.get(datatype, 1)
    message = refusal(body(datatype=datatype, shape=[2], data=[first, value]))
    assert "'x'" in message
    assert says in message
    nested = refusal(body(datatype=datatype, shape=[1, 2], data=[[first, value]]))
    assert "'x'" in nested


@pytest.mark.parametrize(
    ("datatype", "value"), [("UINT8", 255), ("INT8", -128), ("UINT64", 2**64 - 1), ("FP32", 3e38)]
)
def test_element_at_the_edge_of_its_range_is_taken(datatype: str, value: Any) -> None:
    array = open_inference.decode(body(datatype=datatype, shape=[1], data=[value])).tensors[0].data
    assert array[0] == DTYPES[datatype].type(value)


@pytest.mark.parametrize(
    "shape",
    [[], [0], [1, -3], [3, 0], [2**31, 2**31], [2**63, 2, 3], [1] * (MAX_RANK + 1), [1.5], [True]],
)
def test_impossible_shape_is_refused_by_name(shape: list[Any]) -> None:
    assert "'x'" in refusal(body(shape=shape))


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_element_count_must_equal_the_shape(count: int) -> None:
    assert "has 3 elements" in refusal(body(data=[1] * count))


def test_enormous_shape_allocates_nothing() -> None:
    assert "elements, data has 3" in refusal(body(shape=[2**31 - 1] * 8))


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "empty"),
        (b"{", "truncated"),
        (b"[]", "expected object, got array"),
        (b'{"inputs": []}', "inputs: expected array of length >= 1"),
        (b'{"inputs": null}', "inputs: expected array"),
        (b"{}", "missing required field inputs"),
        (b'{"inputs": [{"name": "x"}]}', "'x': object missing required field shape"),
        (b'{"id": "a", }', "byte 12"),
        (b'{"inputs": [{"name": "\xff"}]}', "UTF-8 (byte 22)"),
        (b'{"id": NaN}', "NaN and Infinity are no JSON numbers (byte 7)"),
        (b'{"id": -Infinity}', "NaN and Infinity"),
        (b'{"surplus": ' + b"[" * 100_000, "too deeply"),
    ],
)
def test_broken_json_is_refused_with_its_place(raw: bytes, says: str) -> None:
    assert says in refusal(raw)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"datatype": "FP8"}, "unknown datatype 'FP8'; known datatypes are BOOL"),
        ({"parameters": {"shared_memory_region": "r"}}, "shared_memory_byte_size must be"),
        ({"parameters": {"binary_data_size": 24}}, "lacks the header"),
        ({"parameters": {"binary_data_size": "24"}}, "whole number"),
        ({"parameters": []}, "expected object"),
        ({"name": 3}, "expected str, got int"),
    ],
)
def test_tensor_that_cannot_be_meant_is_refused(changes: dict[str, Any], says: str) -> None:
    assert says in refusal(body(**changes))


def test_tensor_without_data_is_refused() -> None:
    raw = b'{"inputs":[{"name":"x","shape":[1],"datatype":"INT64"}]}'
    assert "'x' has neither data nor" in refusal(raw)


def test_nan_inside_data_is_refused_with_its_place() -> None:
    assert "NaN and Infinity" in refusal(body(datatype="FP32", data=[float("nan")] * 3))


def test_text_that_is_not_utf8_inside_data_is_refused() -> None:
    raw = body(datatype="BYTES", shape=[1], data=["?"]).replace(b"?", b"\xff")
    assert "not valid UTF-8" in refusal(raw)


@pytest.mark.parametrize("key", ["inputs", "outputs"])
def test_name_that_stands_twice_is_refused(key: str) -> None:
    request = json.loads(body())
    request["outputs"] = [{"name": "y"}]
    request[key] *= 2
    assert f"more than once in {key}" in refusal(json.dumps(request).encode())


def test_unknown_keys_and_parameters_are_ignored_or_kept() -> None:
    request = json.loads(body(surplus=1))
    request |= {"surplus": [None], "parameters": {"mine": 42}}
    call = open_inference.decode(json.dumps(request).encode())
    assert call.parameters == {"mine": 42}


@pytest.mark.parametrize("default", [None, False, True])
@pytest.mark.parametrize("own", [None, False, True])
def test_output_form_overrides_the_requests(default: bool | None, own: bool | None) -> None:
    request = json.loads(body())
    request["parameters"] = {"binary_data_output": default}
    request["outputs"] = [{"name": "y", "parameters": {"binary_data": own}}, {"name": "z"}]
    call = open_inference.decode(json.dumps(request).encode())
    assert call.outputs[0].binary is bool(default if own is None else own)
    assert call.outputs[1].binary is bool(default)


@pytest.mark.parametrize(
    "parameters",
    [
        {"classification": 3},
        {"shared_memory_region": "r"},
        {"binary_data": "yes"},
        {"url": "https://a/b"},
        {"shared_memory_offset": 4},
        {"shared_memory_region": "r", "shared_memory_byte_size": 8, "binary_data": True},
    ],
)
def test_output_asked_for_in_a_form_not_offered_is_refused(parameters: dict[str, Any]) -> None:
    request = {**json.loads(body()), "outputs": [{"name": "y", "parameters": parameters}]}
    assert "'y'" in refusal(json.dumps(request).encode())


def test_bytes_that_are_no_text_cannot_be_written_as_json() -> None:
    array = np.array([b"\xff"], dtype=object)
    with pytest.raises(BadRequest, match="ask for it as binary data"):
        open_inference.encode(InferCall([]), *answer(Tensor("y", "BYTES", array)))


def test_bfloat16_table_entry_is_the_two_byte_type() -> None:
    assert DTYPES["BF16"] == np.dtype(ml_dtypes.bfloat16)
    assert DTYPES["BF16"].itemsize == 2
