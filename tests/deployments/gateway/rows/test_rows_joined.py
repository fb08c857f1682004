from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from deployments.contract.description import ModelDescription
from deployments.contract.errors import RowFailed
from deployments.gateway.http.protocols.types import InferCall, RequestedOutput, Tensor
from deployments.gateway.rows.joined import RowsOut, join
from deployments.gateway.rows.split import split
from runtimes.types import TensorSpec

Page = Callable[..., ModelDescription]


def call(outputs: tuple[str, ...] = (), **inputs: Any) -> InferCall:
    tensors = [Tensor(name, "INT64", np.array(v, dtype=np.int64)) for name, v in inputs.items()]
    return InferCall(tensors, outputs=[RequestedOutput(name) for name in outputs])


def joined(request: InferCall, d: ModelDescription, **outputs: list[Any]) -> list[Tensor]:
    given: RowsOut = {
        name: ("FP32", [np.asarray(row, dtype=np.float32) for row in rows])
        for name, rows in outputs.items()
    }
    return join(request, split(request, d), given, d)


def test_one_row_is_a_batch_of_one(page: Page) -> None:
    (tensor,) = joined(call(ids=[[1, 2]]), page(), sum=[3.0])
    assert (tensor.name, tensor.datatype) == ("sum", "FP32")
    assert tensor.data.tolist() == [3.0]
    assert tensor.data.shape == (1,)


def test_equal_rows_are_stacked_in_order(page: Page) -> None:
    (tensor,) = joined(call(ids=[[1], [2]]), page(), sum=[1.0, 2.0])
    assert tensor.data.tolist() == [1.0, 2.0]


def test_cut_rows_are_padded_to_the_callers_own_length(encoder: Page) -> None:
    request = call(ids=[[1, 2, 0, 0], [3, 0, 0, 0]], mask=[[1, 1, 0, 0], [1, 0, 0, 0]])
    hidden, pooled = joined(
        request, encoder(), hidden=[np.ones((2, 2)), np.ones((1, 2))], pooled=[[1, 2], [3, 4]]
    )
    assert hidden.data.shape == (2, 4, 2)
    assert hidden.data[:, :, 0].tolist() == [[1, 1, 0, 0], [1, 0, 0, 0]]
    assert pooled.data.tolist() == [[1, 2], [3, 4]]


def test_one_cut_row_is_padded_too(encoder: Page) -> None:
    request = call(("hidden",), ids=[[1, 0, 0]], mask=[[1, 0, 0]])
    (hidden,) = joined(request, encoder(), hidden=[np.ones((1, 2))])
    assert hidden.data[0, :, 0].tolist() == [1, 0, 0]


def test_truncated_row_is_padded_to_what_was_sent(encoder: Page) -> None:
    request = call(("hidden",), ids=[[1] * 10])
    (hidden,) = joined(request, encoder(truncate=True), hidden=[np.ones((8, 2))])
    assert hidden.data.shape == (1, 10, 2)
    assert hidden.data[0, 8:].any() == np.False_


def test_ragged_output_of_another_axis_is_padded_to_its_longest_row(page: Page) -> None:
    d = page(outputs=(TensorSpec("sum", "FP32", (-1, -1)),))
    (tensor,) = joined(call(ids=[[1, 2, 3], [4, 5, 6]]), d, sum=[[1.0], [2.0, 3.0]])
    assert tensor.data.tolist() == [[1.0, 0.0], [2.0, 3.0]]


def test_ragged_byte_strings_are_padded_with_empty_ones(page: Page) -> None:
    d = page(outputs=(TensorSpec("sum", "BYTES", (-1, -1)),))
    request = call(ids=[[1], [2]])
    rows = [np.array([b"a"], dtype=object), np.array([b"b", b"c"], dtype=object)]
    (tensor,) = join(request, split(request, d), {"sum": ("BYTES", rows)}, d)
    assert tensor.data.tolist() == [[b"a", b""], [b"b", b"c"]]


def test_only_wanted_outputs_come_in_the_order_asked_for(encoder: Page) -> None:
    request = call(("pooled", "hidden"), ids=[[1]])
    tensors = joined(request, encoder(), hidden=[np.ones((1, 2))], pooled=[[1, 2]], more=[1.0])
    assert [tensor.name for tensor in tensors] == ["pooled", "hidden"]


@pytest.mark.parametrize("rows", [{}, {"sum": [1.0, [2.0]]}])
def test_model_that_breaks_its_word_fails_the_request_alone(page: Page, rows: Any) -> None:
    with pytest.raises(RowFailed):
        joined(call(ids=[[1], [2]]), page(), **rows)
