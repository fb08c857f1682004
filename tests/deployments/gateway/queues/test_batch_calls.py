"""Leases become messages, replies become rows' answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from deployments.contract import errors
from deployments.contract.channel.frames import BatchReply, RowError, to_batch
from deployments.gateway.queues.batch_queue import build_call, deliver_rows
from deployments.gateway.rows import RowColumn, Rows
from routers.api.actions import Dispatch
from runtimes.types import Batch, Ragged


def rows(*ids: list[int], outputs: tuple[str, ...] | None = None, **more: list[list[int]]) -> Rows:
    def column(values: Any) -> RowColumn:
        arrays = [np.array(value, dtype=np.int64) for value in values]
        return RowColumn("INT64", arrays, [array.shape for array in arrays])

    columns = {"ids": column(ids), **{name: column(values) for name, values in more.items()}}
    return Rows(len(ids), tuple(len(row) for row in ids), columns, outputs)


def lease(*of: tuple[int, int]) -> Dispatch:
    return Dispatch(7, "r", of, 16, 0.0)


def batch(members: list[Rows], *of: tuple[int, int]) -> Batch:
    return to_batch(build_call(lease(*of), members, 1.0))


def test_rows_of_several_callers_are_one_buffer_in_the_leases_order() -> None:
    one, two = rows([1, 2], [3]), rows([4, 5, 6])
    found = batch([one, two, one], (1, 1), (2, 0), (1, 0))
    assert found.lengths.tolist() == [1, 3, 2]
    assert found.inputs["ids"].data.tolist() == [3, 4, 5, 6, 1, 2]
    assert found.inputs["ids"].shapes == ((1,), (3,), (2,))


def test_an_optional_input_that_a_caller_left_out_is_zeros() -> None:
    found = batch([rows([1, 2]), rows([3], types=[[9]])], (1, 0), (2, 0))
    assert found.inputs["types"].data.tolist() == [0, 0, 9]
    assert found.inputs["types"].shapes == ((2,), (1,))


def test_a_row_shaped_unlike_its_length_takes_its_shape_along() -> None:
    found = batch([rows([1, 2], types=[[9]])], (1, 0))
    assert found.inputs["types"].shapes == ((1,),)


@pytest.mark.parametrize(
    ("wanted", "union"),
    [
        ([("a",), ("b", "a")], ("a", "b")),
        ([("a",), None], None),
        ([None], None),
        ([("a",)], ("a",)),
    ],
)
def test_a_batch_asks_for_what_any_of_its_members_wants(wanted: Any, union: Any) -> None:
    members = [rows([1], outputs=names) for names in wanted]
    of = [(n, 0) for n in range(len(members))]
    assert build_call(lease(*of), members, 1.0).outputs == union


def reply(values: list[float], failed: tuple[RowError, ...] = ()) -> BatchReply:
    data = np.array(values, dtype=np.float32)
    outputs = {"y": Ragged("FP32", data, ((),) * len(values))} if values else {}
    stages = (0.0, 0.0, 0.0, 0.0, 0.0)
    return BatchReply(False, outputs, failed, 0.0, 0.5, 0, stages, 0, 0, 0, 0.0, 0.0)


def test_answers_skip_the_rows_that_failed() -> None:
    failed = (RowError(0, True, "bad id"), RowError(2, False, "secret detail"))
    of = lease((1, 0), (2, 0), (3, 0), (4, 0))
    answers = deliver_rows(of, 3.0, "v", reply([1, 2], failed))
    assert [a.error is None for a in answers] == [False, True, False, True]
    assert [float(answers[at].outputs["y"][1]) for at in (1, 3)] == [1.0, 2.0]
    assert isinstance(answers[0].error, errors.BadRequest)
    assert isinstance(answers[2].error, errors.RowFailed)
    assert "secret" not in answers[2].error.message
    assert {(a.version, a.batch_size, a.bucket, a.service_s) for a in answers} == {
        ("v", 4, 16, 0.5)
    }


@pytest.mark.parametrize("values", [[1.0], [1.0, 2.0, 3.0]])
def test_a_reply_of_another_number_of_rows_is_refused_whole(values: list[float]) -> None:
    with pytest.raises(ValueError, match="2 rows"):
        deliver_rows(lease((1, 0), (1, 1)), 0.0, "v", reply(values))


@pytest.mark.parametrize("row", [-1, 2, 2**63])
def test_a_reply_in_which_a_row_failed_that_was_not_sent_is_refused_whole(row: int) -> None:
    with pytest.raises(ValueError, match="2 rows"):
        deliver_rows(lease((1, 0), (1, 1)), 0.0, "v", reply([1.0], (RowError(row, True, "x"),)))


def test_a_reply_without_outputs_is_no_answer_to_rows_that_did_not_fail() -> None:
    with pytest.raises(ValueError, match="2 rows"):
        deliver_rows(lease((1, 0), (1, 1)), 0.0, "v", replace(reply([]), outputs={}))
