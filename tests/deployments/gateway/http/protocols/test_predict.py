from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from deployments.contract.description import ModelDescription
from deployments.contract.errors import BadRequest, RowFailed
from deployments.gateway.http.protocols import predict
from deployments.gateway.rows import Rows
from runtimes.types import TensorSpec

Describe = Callable[..., ModelDescription]


def rows_of(body: Any, d: ModelDescription) -> Rows:
    return predict.rows_of(predict.decode(json.dumps(body).encode()), d)


def values(rows: Rows, name: str = "ids") -> list[Any]:
    return [row.tolist() for row in rows.inputs[name].rows]


def test_bare_instances_of_different_lengths_become_rows(description: Describe) -> None:
    rows = rows_of({"instances": [[1, 2], [3], [4, 5, 6]], "signature_name": "x"}, description())
    assert rows.lengths == (2, 1, 3)
    assert values(rows) == [[1, 2], [3], [4, 5, 6]]
    assert rows.inputs["ids"].rows[0].dtype == np.int64


def test_instances_by_name_become_rows(encoder: Describe) -> None:
    body = {"instances": [{"ids": [1, 2], "types": [0, 1]}, {"types": [0], "ids": [3]}]}
    rows = rows_of(body, encoder())
    assert values(rows) == [[1, 2], [3]]
    assert values(rows, "types") == [[0, 1], [0]]


def test_columns_by_name_and_bare_become_rows(encoder: Describe, description: Describe) -> None:
    rows = rows_of({"inputs": {"ids": [[1, 2], [3]], "types": [[0, 0], [1]]}}, encoder())
    assert values(rows, "types") == [[0, 0], [1]]
    assert values(rows_of({"inputs": [[1], [2]]}, description())) == [[1], [2]]


def test_bytes_are_text_or_base64(description: Describe) -> None:
    d = description(inputs=(TensorSpec("text", "BYTES", (-1,)),), lengths_input=None)
    body = {"instances": ["a", {"b64": "/w=="}, {"text": "c"}]}
    assert values(rows_of(body, d), "text") == [[b"a"], [b"\xff"], [b"c"]]


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "FP32", "FP64"])
def test_floats_of_any_width_are_taken(description: Describe, datatype: str) -> None:
    d = description(inputs=(TensorSpec("x", datatype, (-1, 2)),), lengths_input=None)
    assert values(rows_of({"instances": [[0.5, 1]]}, d), "x") == [[0.5, 1.0]]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "either 'instances'"),
        ({"instances": [[1]], "inputs": [[1]]}, "either 'instances'"),
        ({"instances": []}, "'instances' is empty"),
        ({"instances": 3}, "instances: expected array"),
        ({"inputs": []}, "0 rows"),
        ({"inputs": 3}, "'ids'"),
        ({"inputs": {"ids": [[1], [2]], "types": [[1]]}}, "the same number of rows"),
        ({"instances": [[1.5]]}, "expected int, got float"),
        ({"instances": [[True]]}, "expected int, got bool"),
        ({"instances": [[[1]]]}, "expected int, got array"),
        ({"instances": [3]}, "expected array, got int"),
        ({"instances": [[]]}, "row 0 is empty"),
        ({"instances": [[1] * 9]}, "at most 8"),
        ({"instances": [{"idz": [1]}]}, "Unknown input 'idz'"),
        ({"instances": [{"types": [1]}]}, "needs the input ids"),
        ({"instances": [{"ids": [1]}, {"ids": [1], "types": [1]}]}, "instances[1]"),
        ({"instances": [{"ids": [2**63]}]}, "out of INT64's range"),
    ],
)
def test_body_that_cannot_be_meant_is_refused(encoder: Describe, body: Any, says: str) -> None:
    with pytest.raises(BadRequest) as caught:
        rows_of(body, encoder())
    assert says in caught.value.message


def test_uneven_lists_inside_one_row_are_refused(description: Describe) -> None:
    d = description(inputs=(TensorSpec("ids", "INT64", (-1, -1, -1)),))
    with pytest.raises(BadRequest, match="differ in length"):
        rows_of({"instances": [[[1, 2], [3]]]}, d)


def test_bare_instances_need_a_model_of_one_input(description: Describe) -> None:
    d = description(inputs=(TensorSpec("a", "INT64", (-1, -1)), TensorSpec("b", "INT64", (-1, -1))))
    with pytest.raises(BadRequest, match="needs the inputs a, b"):
        rows_of({"instances": [[1]]}, d)


def encoded(body: Any, outputs: Any, d: ModelDescription) -> Any:
    call = predict.decode(json.dumps(body).encode())
    return json.loads(predict.encode(call, outputs, d).body)


def test_single_output_is_answered_bare_in_both_formats(description: Describe) -> None:
    out = {"sum": ("FP32", [np.array(1.5, dtype=np.float32), np.array(2, dtype=np.float32)])}
    assert encoded({"instances": [[1], [2]]}, out, description()) == {"predictions": [1.5, 2.0]}
    assert encoded({"inputs": [[1], [2]]}, out, description()) == {"outputs": [1.5, 2.0]}


def test_several_outputs_are_answered_by_name_and_stay_ragged(encoder: Describe) -> None:
    hidden = [np.ones((2, 2), dtype=np.float32), np.ones((1, 2), dtype=np.float32)]
    pooled = [np.zeros(2, dtype=np.float32), np.ones(2, dtype=np.float32)]
    out = {"hidden": ("FP32", hidden), "pooled": ("FP32", pooled)}
    by_row = encoded({"instances": [[1, 2], [3]]}, out, encoder())
    assert by_row == {
        "predictions": [
            {"hidden": [[1, 1], [1, 1]], "pooled": [0, 0]},
            {"hidden": [[1, 1]], "pooled": [1, 1]},
        ]
    }
    by_column = encoded({"inputs": [[1, 2], [3]]}, out, encoder())
    assert by_column["outputs"]["pooled"] == [[0, 0], [1, 1]]


def test_bytes_are_answered_as_text_where_they_are(description: Describe) -> None:
    d = description(outputs=(TensorSpec("label", "BYTES", (-1, -1)),))
    out = {"label": ("BYTES", [np.array([b"a", b"\xff"], dtype=object)])}
    assert encoded({"instances": [[1]]}, out, d) == {"predictions": [["a", {"b64": "/w=="}]]}


def test_model_that_leaves_an_output_out_fails_the_request_alone(description: Describe) -> None:
    with pytest.raises(RowFailed, match="no output 'sum'"):
        predict.encode(predict.decode(b'{"instances": [[1]]}'), {}, description())
