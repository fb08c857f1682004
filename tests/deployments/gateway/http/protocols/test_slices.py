"""Long arrays read in slices are what they are read whole; what is wrong with them is said."""

from __future__ import annotations

import json
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from deployments.contract.errors import BadRequest, BodyTooLarge
from deployments.gateway.http.protocols import (
    embeddings,
    json_body,
    open_inference,
    predict,
    tensors,
)
from deployments.gateway.http.protocols.tensors import from_json, row_from_json
from deployments.gateway.http.row_conversion import check_claim

FEW, MANY = 3, 40_000


def raw(values: Any, **options: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(values, **options).encode())


def infer(data: bytes, shape: list[int], more: bytes = b"") -> bytes:
    head = b'{"inputs":[{"name":"ids","datatype":"INT64","shape":%s,"data":%s}]%s}'
    return head % (json.dumps(shape).encode(), data, more)


@pytest.mark.parametrize("count", [FEW, MANY])
@pytest.mark.parametrize("indent", [None, 1])
def test_a_flat_tensor_is_read_whole(count: int, indent: int | None) -> None:
    values = list(range(count))
    array = from_json(raw(values, indent=indent), "ids", "INT32", [1, count])
    assert array.dtype == np.int32
    assert array.tolist() == [values]


@pytest.mark.parametrize("shape", [(2, 30_000), (500, 100), (3, 4, 5000), (20_000, 2, 1)])
def test_a_nested_tensor_is_read_whole(shape: tuple[int, ...]) -> None:
    wanted = (np.arange(np.prod(shape)) / 7).reshape(shape)
    array = from_json(raw(wanted.tolist()), "x", "FP64", list(shape))
    assert (array == wanted).all()


def test_a_long_row_has_the_length_of_its_list() -> None:
    row = row_from_json(raw(list(range(MANY))), "ids", "INT64", 1)
    assert row.tolist() == list(range(MANY))


@pytest.mark.parametrize(("values", "shape", "says"), [
    ([1] * MANY, [1, MANY + 1], "data has 40000"),
    ([1] * (MANY - 1) + ["x"], [MANY], r"data\[39999\]: expected int, got str"),
    ([1] * 9000 + [1.5] * (MANY - 9000), [MANY], r"data\[\d+\]: expected int, got float"),
    ([1] * (MANY - 1) + [2**40], [MANY], "out of INT32's range"),
    ([[1] * 100] * 399 + [[1] * 99, [1]], [400, 100], "data has 40000|not nested"),
    ([[1] * 101, [1] * 99] * 200, [400, 100], "not nested as a shape of"),
    ([[[1]] * 100] * 400, [400, 100], "not nested as a shape of"),
    ([" " * 100_000], [1], "expected int"),
])  # fmt: skip
def test_a_long_tensor_that_is_wrong_is_refused_by_its_element(
    values: Any, shape: list[int], says: str
) -> None:
    with pytest.raises(BadRequest, match=says):
        from_json(raw(values), "ids", "INT32", shape)


class Tape:
    """`decoded`: bytes of JSON that became numbers, from one break to the next."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.decoded = [0]
        monkeypatch.setattr(json_body.Breaks, "take", lambda _: self.decoded.append(0))
        for module in (json_body, tensors):
            monkeypatch.setattr(module, "_decoder", self._heard(module._decoder))

    def _heard(self, made: Any) -> Any:
        return lambda *of: SimpleNamespace(decode=partial(self._decode, made(*of)))

    def _decode(self, decoder: Any, data: Any) -> Any:
        self.decoded[-1] += len(memoryview(data))
        return decoder.decode(data)


@pytest.mark.parametrize("shape", [(200_000,), (400, 500), (3, 70_000), (2, 40, 2500)])
@pytest.mark.parametrize("nested", [False, True])
def test_never_more_than_a_slice_is_decoded_before_others_get_a_turn(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], nested: bool
) -> None:
    values = np.full(shape, 12345) if nested else np.full(np.prod(shape), 12345)
    data = raw(values.tolist())
    tape = Tape(monkeypatch)
    assert (from_json(data, "ids", "INT64", shape) == 12345).all()
    assert sum(tape.decoded) >= len(memoryview(data)) - 1000
    # A slice ends behind the number that reaches it; brackets are put around it.
    assert max(tape.decoded) <= json_body.SLICE_BYTES + len("[12345]")


def test_one_number_of_many_digits_is_refused() -> None:
    data = b"[" + b"1" * 300_000 + b",2]"
    with pytest.raises(BadRequest, match="a number takes more than 262144 bytes"):
        from_json(msgspec.Raw(data), "ids", "FP64", [2])


def test_rows_beyond_the_most_are_not_made() -> None:
    assert [bytes(each) for each in json_body.rows(msgspec.Raw(b'[1,null,"a"]'), 3)] == [
        b"1", b"null", b'"a"',
    ]  # fmt: skip
    assert len(json_body.rows(msgspec.Raw(b"[" + b"1," * 5000 + b"1]"), 3)) == 4
    assert len(json_body.rows(msgspec.Raw(b"[" + b"1," * 5000 + b"1]"), 5001)) == 5001


def test_a_long_request_is_what_a_short_one_is() -> None:
    outputs = b',"outputs":[{"name":"sum","parameters":{"binary_data":true}}]'
    more = outputs + b',"id":"a","parameters":{"b":1}'
    short = open_inference.decode(infer(b"[1,2]", [1, 2], more))
    long = open_inference.decode(infer(b"[1," + b" " * 70_000 + b"2]", [1, 2], more))
    assert long.tensors[0].data.tolist() == short.tensors[0].data.tolist() == [[1, 2]]
    assert (long.outputs, long.id, long.parameters) == (short.outputs, "a", {"b": 1})


@pytest.mark.parametrize(("body", "says"), [
    (infer(b"[1]", [1, 1], b',"parameters":{"a":[%s[]]}' % (b"[]," * 30_000)), "parameters takes"),
    (infer(b"[1]", [1, 1], b',"outputs":[%s{"name":"a"}]' % (b'{"name":"a"},' * 9000)), "outputs"),
    (infer(b"[1]", [1] * 40_000), "shape takes"),
    (b'{"inputs":[%s]}' % b",".join([infer(b"[1]", [1, 1])[11:-2]] * 2000), "at most length 64"),
    (b'{"inputs":[]%s}' % (b" " * 70_000), "length >= 1"),
    (infer(b'["a"]' + b" " * 70_000, [1, 1]), "expected int"),
    (infer(b"[1" + b" " * 70_000 + b"]", ["a", 1]), r"shape\[0\]: expected int"),  # type: ignore[list-item]
])  # fmt: skip
def test_of_a_long_request_only_numbers_may_be_many(body: bytes, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        open_inference.decode(body)


def test_more_numbers_than_the_model_could_take_are_refused_unread(encoder: Any) -> None:
    d = encoder()
    most = d.scheduling.core.max_queue_rows * d.max_length * len(d.inputs)
    check_claim([2, most * 2], 1000, d)
    with pytest.raises(BodyTooLarge, match=f"any request of .* '{d.name}' takes"):
        check_claim([2, most * 2], most * 8, d)


def test_a_predict_body_makes_no_more_rows_than_may_be_taken() -> None:
    body = b'{"instances":[%s[1]]}' % (b"[1]," * 40_000)
    assert len(predict.decode(body, 100).instances or ()) == 101
    assert len(predict.decode(body).instances or ()) == 40_001
    columns = predict.decode(b'{"inputs":[%s[1]]}' % (b"[1]," * 40_000))
    assert columns.instances is None


@pytest.mark.parametrize("lists", [1, 2])
def test_long_lists_of_tokens_are_read(lists: int) -> None:
    tokens = [list(range(MANY))] * lists
    body = json.dumps({"model": "m", "input": tokens if lists > 1 else tokens[0]}).encode()
    assert embeddings.decode(body).tokens == tokens


def test_a_token_that_is_none_is_named_in_a_long_list() -> None:
    body = json.dumps({"model": "m", "input": [*range(MANY), -1]}).encode()
    with pytest.raises(BadRequest, match=r"input\[40000\]: expected int >= 0"):
        embeddings.decode(body)


def test_more_tokens_than_a_request_may_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings, "MAX_TOKENS", MANY)
    body = json.dumps({"model": "m", "input": [1] * (MANY + 1)}).encode()
    with pytest.raises(BadRequest, match="40001 tokens; a request may have 40000"):
        embeddings.decode(body)
