"""Tensors become rows with their lengths, and rows' outputs become tensors again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.contract.description import ModelDescription
from deployments.contract.errors import BadRequest, RowFailed
from deployments.gateway.http.protocols.tensors import InferCall, RequestedOutput, Tensor
from deployments.gateway.http.row_conversion import RowsOut, from_rows, from_tokens, join, split
from deployments.gateway.rows import Rows
from runtimes.types import TensorSpec

Describe = Callable[..., ModelDescription]


def call(outputs: tuple[str, ...] = (), **inputs: Any) -> InferCall:
    """INT64 tensors by name."""
    tensors = [Tensor(name, "INT64", np.array(v, dtype=np.int64)) for name, v in inputs.items()]
    return InferCall(tensors, outputs=[RequestedOutput(name) for name in outputs])


def refusal(request: InferCall, d: ModelDescription) -> str:
    with pytest.raises(BadRequest) as caught:
        split(request, d)
    return caught.value.message


def values(rows: Rows, name: str) -> list[list[int]]:
    return [row.tolist() for row in rows.inputs[name].rows]


def test_one_row_goes_through_without_a_copy(description: Describe) -> None:
    request = call(ids=[[1, 2, 3]])
    rows = split(request, description())
    assert rows.count == 1
    assert rows.lengths == (3,)
    assert rows.outputs is None
    assert rows.inputs["ids"].shapes == [(3,)]
    assert np.shares_memory(rows.inputs["ids"].rows[0], request.tensors[0].data)


def test_rows_without_a_mask_keep_their_full_length(description: Describe) -> None:
    rows = split(call(ids=[[1, 2], [3, 0]]), description())
    assert rows.lengths == (2, 2)
    assert values(rows, "ids") == [[1, 2], [3, 0]]


def test_mask_cuts_every_input_of_that_length_and_is_dropped(encoder: Describe) -> None:
    rows = split(
        call(ids=[[1, 2, 9], [3, 9, 9]], mask=[[1, 1, 0], [1, 0, 0]], types=[[0, 1, 0], [1, 0, 0]]),
        encoder(),
    )
    assert rows.lengths == (2, 1)
    assert set(rows.inputs) == {"ids", "types"}
    assert values(rows, "ids") == [[1, 2], [3]]
    assert values(rows, "types") == [[0, 1], [1]]
    assert rows.inputs["types"].shapes == [(2,), (1,)]


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        ([[0, 1, 1]], "ones and then zeros"),
        ([[1, 0, 1]], "ones and then zeros"),
        ([[2, 1, 0]], "ones and then zeros"),
        ([[0, 0, 0]], "no tokens"),
        ([[1, 1]], "as long as 'ids'"),
        ([[1, 1, 0], [1, 1, 0]], "2 rows"),
    ],
)
def test_mask_that_is_no_prefix_is_refused(encoder: Describe, mask: Any, says: str) -> None:
    message = refusal(call(ids=[[1, 2, 3]], mask=mask), encoder())
    assert "'mask'" in message
    assert says in message


def test_full_mask_cuts_nothing(encoder: Describe) -> None:
    rows = split(call(ids=[[1, 2]], mask=[[1, 1]]), encoder())
    assert rows.lengths == (2,)
    assert values(rows, "ids") == [[1, 2]]


@pytest.mark.parametrize("length", [1, 2, 7, 8])
def test_row_up_to_the_limit_is_taken(description: Describe, length: int) -> None:
    assert split(call(ids=[[1] * length]), description()).lengths == (length,)


def test_row_over_the_limit_is_refused_by_number(description: Describe) -> None:
    message = refusal(call(ids=[[1] * 9]), description())
    assert "Row 0 is 9 long" in message
    assert "at most 8" in message


def test_row_over_the_limit_is_cut_where_the_model_truncates(description: Describe) -> None:
    rows = split(call(ids=[list(range(9))]), description(truncate=True))
    assert rows.lengths == (8,)
    assert values(rows, "ids") == [list(range(8))]


def test_padding_behind_a_mask_does_not_count_towards_the_limit(encoder: Describe) -> None:
    rows = split(call(ids=[[1] * 20], mask=[[1] * 8 + [0] * 12]), encoder())
    assert rows.lengths == (8,)


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"idz": [[1]]}, "Unknown input 'idz'; 'encoder' takes ids, mask, types"),
        ({"types": [[1]]}, "also needs the input ids"),
        ({"ids": [1]}, "[-1, -1]"),
        ({"ids": [[[1]]]}, "shape [1, 1, 1]"),
        ({"ids": [[1]], "types": [[1], [1]]}, "'types' has 2 rows, 'ids' has 1"),
    ],
)
def test_inputs_unlike_the_models_are_refused(encoder: Describe, inputs: Any, says: str) -> None:
    assert says in refusal(call(**inputs), encoder())


def test_datatype_unlike_the_models_is_refused(description: Describe) -> None:
    request = InferCall([Tensor("ids", "INT32", np.ones((1, 2), dtype=np.int32))])
    assert "'ids' is INT32; 'device' takes INT64" in refusal(request, description())


def test_fixed_axis_must_fit(description: Describe) -> None:
    d = description(inputs=(TensorSpec("ids", "INT64", (-1, 3)),), lengths_input=None)
    assert "[-1, 3]" in refusal(call(ids=[[1, 2]]), d)
    rows = split(call(ids=[[1, 2, 3], [4, 5, 6]]), d)
    assert rows.lengths == (1, 1)


def test_scalar_rows_have_no_axes(description: Describe) -> None:
    d = description(inputs=(TensorSpec("ids", "INT64", (-1,)),), lengths_input=None)
    rows = split(call(ids=[7, 8]), d)
    assert rows.inputs["ids"].shapes == [(), ()]
    assert values(rows, "ids") == [[7], [8]]


def test_length_is_read_on_its_axis(description: Describe) -> None:
    d = description(
        inputs=(TensorSpec("ids", "INT64", (-1, 2, -1)),), lengths_axis=2, truncate=True
    )
    rows = split(call(ids=[[list(range(9)), list(range(9))]]), d)
    assert rows.lengths == (8,)
    assert rows.inputs["ids"].shapes == [(2, 8)]
    assert values(rows, "ids") == [[*range(8), *range(8)]]


def test_wanted_outputs_are_kept_and_unknown_ones_refused(encoder: Describe) -> None:
    assert split(call(("pooled",), ids=[[1]]), encoder()).outputs == ("pooled",)
    assert "Unknown output 'x'; 'encoder' has hidden, pooled" in refusal(
        call(("x",), ids=[[1]]), encoder()
    )


def test_token_lists_become_rows_of_their_own_length(encoder: Describe) -> None:
    rows = from_tokens([[1, 2, 3], np.array([4], dtype=np.int32)], encoder())
    assert rows.lengths == (3, 1)
    assert values(rows, "ids") == [[1, 2, 3], [4]]
    assert rows.inputs["ids"].rows[1].dtype == np.int64


@pytest.mark.parametrize("tokens", [[[]], [[2**70]], [[1] * 9]])
def test_token_lists_that_cannot_be_rows_are_refused(encoder: Describe, tokens: Any) -> None:
    with pytest.raises(BadRequest):
        from_tokens(tokens, encoder())


def test_token_lists_are_refused_by_a_model_without_lengths(description: Describe) -> None:
    with pytest.raises(BadRequest, match="takes no token lists"):
        from_tokens([[1]], description(lengths_input=None))


def test_ragged_rows_are_cut_by_ragged_masks(encoder: Describe) -> None:
    ids = [np.arange(3), np.arange(2)]
    masks = [np.array([1, 0, 0]), np.array([1, 1])]
    rows = from_rows({"ids": ids, "mask": masks}, encoder())
    assert rows.lengths == (1, 2)
    assert values(rows, "ids") == [[0], [0, 1]]


def test_ragged_row_of_the_wrong_rank_is_refused_by_number(description: Describe) -> None:
    with pytest.raises(BadRequest, match="'ids', row 1 has shape"):
        from_rows({"ids": [np.arange(2), np.ones((1, 1), dtype=np.int64)]}, description())


@settings(max_examples=50, deadline=None)
@given(lengths=st.lists(st.integers(1, 8), min_size=1, max_size=6), extra=st.integers(0, 3))
def test_padded_and_masked_rows_equal_the_rows_sent_ragged(
    encoder: Describe, lengths: list[int], extra: int
) -> None:
    longest = max(lengths) + extra
    ids = np.full((len(lengths), longest), 99)
    mask = np.zeros((len(lengths), longest), dtype=np.int64)
    for row, length in enumerate(lengths):
        ids[row, :length] = np.arange(length) + row
        mask[row, :length] = 1
    dense = split(call(ids=ids, mask=mask), encoder())
    ragged = from_tokens([np.arange(n) + row for row, n in enumerate(lengths)], encoder())
    assert dense.lengths == ragged.lengths == tuple(lengths)
    assert values(dense, "ids") == values(ragged, "ids")


def joined(request: InferCall, d: ModelDescription, **outputs: list[Any]) -> list[Tensor]:
    given: RowsOut = {
        name: ("FP32", [np.asarray(row, dtype=np.float32) for row in rows])
        for name, rows in outputs.items()
    }
    return [output.dense() for output in join(request, split(request, d), given, d)]


def test_one_row_is_a_batch_of_one(description: Describe) -> None:
    (tensor,) = joined(call(ids=[[1, 2]]), description(), sum=[3.0])
    assert (tensor.name, tensor.datatype) == ("sum", "FP32")
    assert tensor.data.tolist() == [3.0]
    assert tensor.data.shape == (1,)


def test_equal_rows_are_stacked_in_order(description: Describe) -> None:
    (tensor,) = joined(call(ids=[[1], [2]]), description(), sum=[1.0, 2.0])
    assert tensor.data.tolist() == [1.0, 2.0]


def test_cut_rows_are_padded_to_the_callers_own_length(encoder: Describe) -> None:
    request = call(ids=[[1, 2, 0, 0], [3, 0, 0, 0]], mask=[[1, 1, 0, 0], [1, 0, 0, 0]])
    hidden, pooled = joined(
        request, encoder(), hidden=[np.ones((2, 2)), np.ones((1, 2))], pooled=[[1, 2], [3, 4]]
    )
    assert hidden.data.shape == (2, 4, 2)
    assert hidden.data[:, :, 0].tolist() == [[1, 1, 0, 0], [1, 0, 0, 0]]
    assert pooled.data.tolist() == [[1, 2], [3, 4]]


def test_one_cut_row_is_padded_too(encoder: Describe) -> None:
    request = call(("hidden",), ids=[[1, 0, 0]], mask=[[1, 0, 0]])
    (hidden,) = joined(request, encoder(), hidden=[np.ones((1, 2))])
    assert hidden.data[0, :, 0].tolist() == [1, 0, 0]


def test_truncated_row_is_padded_to_what_was_sent(encoder: Describe) -> None:
    request = call(("hidden",), ids=[[1] * 10])
    (hidden,) = joined(request, encoder(truncate=True), hidden=[np.ones((8, 2))])
    assert hidden.data.shape == (1, 10, 2)
    assert hidden.data[0, 8:].any() == np.False_


def test_ragged_output_of_another_axis_is_padded_to_its_longest_row(description: Describe) -> None:
    d = description(outputs=(TensorSpec("sum", "FP32", (-1, -1)),))
    (tensor,) = joined(call(ids=[[1, 2, 3], [4, 5, 6]]), d, sum=[[1.0], [2.0, 3.0]])
    assert tensor.data.tolist() == [[1.0, 0.0], [2.0, 3.0]]


def test_ragged_byte_strings_are_padded_with_empty_ones(description: Describe) -> None:
    d = description(outputs=(TensorSpec("sum", "BYTES", (-1, -1)),))
    request = call(ids=[[1], [2]])
    rows = [np.array([b"a"], dtype=object), np.array([b"b", b"c"], dtype=object)]
    (output,) = join(request, split(request, d), {"sum": ("BYTES", rows)}, d)
    tensor = output.dense()
    assert tensor.data.tolist() == [[b"a", b""], [b"b", b"c"]]


def test_only_wanted_outputs_come_in_the_order_asked_for(encoder: Describe) -> None:
    request = call(("pooled", "hidden"), ids=[[1]])
    tensors = joined(request, encoder(), hidden=[np.ones((1, 2))], pooled=[[1, 2]], more=[1.0])
    assert [tensor.name for tensor in tensors] == ["pooled", "hidden"]


@pytest.mark.parametrize("rows", [{}, {"sum": [1.0, [2.0]]}])
def test_model_that_breaks_its_word_fails_the_request_alone(
    description: Describe, rows: Any
) -> None:
    with pytest.raises(RowFailed):
        joined(call(ids=[[1], [2]]), description(), **rows)
