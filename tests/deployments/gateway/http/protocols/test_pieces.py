"""A large answer in pieces is, byte for byte, what encoding it at once gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from deployments.contract.description import Classes, ModelDescription
from deployments.contract.errors import BadRequest, OutputNotFinite, RowFailed
from deployments.gateway.http import large_answers
from deployments.gateway.http.large_answers import AnswerSize, LargeAnswer
from deployments.gateway.http.protocols import (
    classify,
    embeddings,
    open_inference,
    predict,
    tensors,
)
from deployments.gateway.http.protocols.tensors import (
    ClassifyCall,
    Encoded,
    InferCall,
    RequestedOutput,
    RowTensor,
)
from deployments.gateway.rows import Rows
from runtimes.types import DTYPES, TensorSpec

Describe = Callable[..., ModelDescription]
RNG = np.random.default_rng(7)
FLOATS = [0.0, -1.5, 3e-38, 1e300, np.nan, np.inf, 0.1, 12345.678]


@pytest.fixture(params=[3, 16_384], autouse=True)
def step(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a few elements, and those that there are."""
    if request.param == 3:
        for module, name, size in [
            (large_answers, "STEP", 3), (large_answers, "TEXT_STEP", 4), (classify, "STEP", 3),
            (large_answers, "PIECE_BYTES", 8), (open_inference, "PACKED_BYTES", 8),
            (classify, "_LABELS_STEP", 2), (embeddings, "_BASE64_STEP", 6),
        ]:  # fmt: skip
            monkeypatch.setattr(module, name, size)


def whole(answer: LargeAnswer) -> Encoded:
    parts, more = [], True
    while more:
        part, more = answer.take()
        parts.append(part)
    return Encoded(b"".join(parts), answer.content_type, answer.headers)


def until_a_piece(answer: LargeAnswer) -> None:
    """A take may give nothing: it ends after some milliseconds."""
    while answer.take() == (b"", True):
        pass


def array(datatype: str, *shape: int) -> np.ndarray[Any, Any]:
    dtype = DTYPES[datatype]
    size = int(np.prod(shape))
    if datatype == "BYTES":
        values = np.empty(size, object)
        values[:] = [[b"", b"plain", "längere Wörter".encode(), b'"\\\n'][at % 4]
                     for at in range(size)]  # fmt: skip
    elif dtype.kind == "f" or datatype == "BF16":
        with np.errstate(over="ignore"):
            values = np.resize(FLOATS, size).astype(dtype)
    else:
        values = RNG.integers(0, 2 if datatype == "BOOL" else 100, size).astype(dtype)
    return values.reshape(shape)


def outputs(*given: tuple[str, str, list[tuple[int, ...]], tuple[int, ...]]) -> list[RowTensor]:
    return [
        RowTensor(name, datatype, [array(datatype, *shape) for shape in shapes], padded)
        for name, datatype, shapes, padded in given
    ]


@pytest.mark.parametrize("datatype", DTYPES)
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(
    ("shapes", "padded"),
    [([(5,)] * 3, (5,)), ([(2, 4), (1, 4)], (3, 4)), ([()] * 2, ()), ([(2, 2, 2)], (2, 2, 2))],
)
def test_tensors(
    datatype: str, binary: bool, shapes: list[tuple[int, ...]], padded: tuple[int, ...]
) -> None:
    call = InferCall([], id="7", binary_outputs=binary)
    given = outputs(("y", datatype, shapes, padded))
    at_once = open_inference.encode(call, "m", "1", [o.dense() for o in given])
    assert whole(open_inference.pieces(call, "m", "1", given)) == at_once


def test_binary_tensors_beside_others() -> None:
    asked = [RequestedOutput("a", True), RequestedOutput("b"), RequestedOutput("c", True)]
    call = InferCall([], outputs=asked)
    given = outputs(
        ("a", "BYTES", [(2,), (1,)], (2,)), ("b", "FP32", [(9,), (9,)], (9,)),
        ("c", "INT64", [(1, 2)] * 2, (1, 2)),
    )  # fmt: skip
    at_once = open_inference.encode(call, "m", "1", [o.dense() for o in given])
    assert whole(open_inference.pieces(call, "m", "1", given)) == at_once


def test_bytes_that_are_no_text_are_found_before_the_first_piece() -> None:
    rows = [array("BYTES", 9), np.array([b"\xff"], dtype=object)]
    answer = open_inference.pieces(InferCall([]), "m", "1", [RowTensor("y", "BYTES", rows, (9,))])
    parts = answer.parts
    assert next(parts) == b""  # the first row has been looked through
    with pytest.raises(BadRequest, match="not UTF-8"):
        next(parts)


@pytest.mark.parametrize("body", [{"instances": [[1]]}, {"inputs": [[1]]}], ids=["rows", "columns"])
@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("shape", [(), (2,), (7,), (2, 5)])
def test_predictions(
    body: Any, single: bool, shape: tuple[int, ...], description: Describe
) -> None:
    call = predict.decode(json.dumps(body).encode())
    specs = [TensorSpec(f"{kind}_out", kind, (-1, *[-1] * len(shape))) for kind in DTYPES]
    for spec in specs if single else [specs]:
        chosen = [spec] if isinstance(spec, TensorSpec) else spec
        d = description(outputs=tuple(chosen))
        rows = {s.name: (s.datatype, [array(s.datatype, *shape) for _ in range(3)]) for s in chosen}
        assert whole(predict.pieces(call, rows, d)) == predict.encode(call, rows, d)


def test_predictions_that_are_no_text(description: Describe) -> None:
    call = predict.decode(b'{"instances": [[1]]}')
    d = description(outputs=(TensorSpec("y", "BYTES", (-1, -1)),))
    rows = {"y": ("BYTES", [np.array([b"\xff\xfe", b"text"], dtype=object)])}
    assert whole(predict.pieces(call, rows, d)) == predict.encode(call, rows, d)
    with pytest.raises(RowFailed, match="no output 'y'"):
        predict.pieces(call, {}, d).take()


@pytest.mark.parametrize("base64", [False, True])
@pytest.mark.parametrize("width", [1, 2, 3, 8, 20_000])
@pytest.mark.parametrize("form", ["embedding", "pooling", "classification"])
def test_embeddings(base64: bool, width: int, form: Any) -> None:
    how = {"base64": base64, "labels": [f'"{n}' for n in range(width)]}
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
        vectors = RNG.standard_normal((3, width)).astype(dtype)
        at_once = embeddings.encode(vectors.astype(np.float32), 7, "m", form, **how)
        assert whole(embeddings.pieces(iter(vectors), 7, "m", form, **how)) == at_once


@pytest.mark.parametrize("most", [0, 1, 3, 2500])
@pytest.mark.parametrize("width", [1, 4, 2001])
def test_sparse_vectors(most: int, width: int) -> None:
    vectors = []
    for row in range(5):
        indices, values = RNG.permutation(width), RNG.random(width).astype(np.float32)
        indices[RNG.permutation(width)[: width * row // 4]] = -1  # of the last row all
        vectors.append((indices, values))
    at_once = embeddings.encode_sparse(vectors, most)
    assert whole(embeddings.sparse_pieces(vectors, most)) == at_once
    for (indices, values), entries in zip(vectors, json.loads(at_once.body), strict=True):
        best = sorted(zip(-values, indices, strict=True))
        best = [pair for pair in best if pair[1] >= 0][: most or None]
        found = {entry["index"]: np.float32(entry["value"]) for entry in entries}
        assert found == {index: -value for value, index in best}
        assert list(found) == sorted(found)
    with pytest.raises(OutputNotFinite):
        until_a_piece(embeddings.sparse_pieces([*vectors, (indices, values * np.nan)], most))


@pytest.mark.parametrize("top_k", [1, 2, 5, 100])
@pytest.mark.parametrize("threshold", [0.0, 0.3])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid", "identity"])
def test_labels(top_k: int, threshold: float, activation: str, description: Describe) -> None:
    labels = ("one", 'qu"ote', "ü", "four", "five")
    d = description(classes=Classes("logits", labels, 3, 1.0, threshold, False, activation))
    call = ClassifyCall(["a"] * 20, None, top_k)
    rows = list(RNG.standard_normal((20, 5)).astype(np.float32))
    rows[3] = np.zeros(5, np.float32)  # equal scores come in the labels' order
    assert whole(classify.pieces(call, rows, d)) == classify.encode(call, rows, d)


def test_scores_that_are_none_are_found_before_the_first_piece(description: Describe) -> None:
    d = description(classes=Classes("logits", ("a", "b"), 1, 1.0, 0.0, False))
    for wrong in ([0.0, np.nan], [0.0]):
        rows = [np.zeros(2, np.float32)] * 9 + [np.array(wrong, np.float32)]
        answer = classify.pieces(ClassifyCall(["a"] * 10, None), rows, d)
        with pytest.raises(RowFailed):
            until_a_piece(answer)


def rows_in_one_buffer(count: int, elements: int) -> list[np.ndarray[Any, Any]]:
    """As a replica's answer has them."""
    buffer = bytearray(RNG.standard_normal(count * elements, np.float32).tobytes())
    grid = np.frombuffer(memoryview(buffer).toreadonly(), np.float32).reshape(count, elements)
    return list(grid)


def test_rows_of_one_buffer_are_one_view_and_of_several_batches_one_each() -> None:
    one, other = rows_in_one_buffer(5, 8), rows_in_one_buffer(2, 8)
    rows = [*one, other[1], other[0], np.ones(8, np.float32), np.ones(8, np.float32), one[0]]
    ragged = [one[0], one[1][:0], one[1][:5], one[1][5:], np.zeros(0, np.float32), *rows]
    runs = list(tensors.runs(ragged))
    assert [len(run) for run in runs] == [16, 40, 8, 8, 8, 8, 8]
    assert np.array_equal(np.concatenate(runs), np.concatenate(ragged))
    assert np.shares_memory(runs[0], one[0])
    assert not runs[0].flags.writeable


def test_strided_rows_and_rows_without_axes_are_sent_as_they_are() -> None:
    grid = np.frombuffer(bytearray(range(64)), np.uint8).reshape(8, 8)
    for rows in ([grid[at, ::2] for at in range(8)], [grid[at, 3, ...] for at in range(8)]):
        tensor = RowTensor("y", "UINT8", rows, rows[0].shape)
        assert b"".join(tensor.packed(3)) == np.stack(rows).tobytes()


@pytest.mark.parametrize("elements", [4_096, 400_000])
def test_the_bytes_of_a_large_output_are_views_of_its_rows(elements: int) -> None:
    rows = rows_in_one_buffer(20, elements)
    tensor = RowTensor("y", "FP32", rows, (elements,))
    views = list(tensor.packed(1 << 20))
    assert sum(map(len, views)) == tensor.packed_bytes
    assert all(np.shares_memory(np.frombuffer(view, np.uint8), rows[0].base) for view in views)
    assert b"".join(views) == np.stack(rows).tobytes()
    assert np.shares_memory(tensor.dense().data, rows[0])


def test_a_large_binary_answer_says_its_size_and_is_not_encoded_further() -> None:
    rows = rows_in_one_buffer(3, 400_000)
    call = InferCall([], binary_outputs=True)
    given = [RowTensor("y", "FP32", rows, (400_000,)), *outputs(("z", "BYTES", [(2,)] * 3, (2,)))]
    answer = open_inference.pieces(call, "m", "1", given[:1])
    said = whole(answer).body
    assert answer.is_ready
    assert (
        len(said)
        == answer.size
        == len(open_inference.encode(call, "m", "1", [given[0].dense()]).body)
    )
    mixed = open_inference.pieces(call, "m", "1", given)
    assert len(whole(mixed).body) == mixed.size
    assert not mixed.is_ready  # BYTES are put together off the loop


def test_an_answer_may_be_as_large_as_a_body() -> None:
    rows = Rows(4, (1,) * 4, {})
    size = AnswerSize(held=100, sent=400, advice=", or ask for less", param="inputs")
    large_answers.check(size, rows, 100)
    with pytest.raises(BadRequest, match=r"of at most 99; send at most 3 such rows.*ask for less"):
        large_answers.check(size, rows, 99)
    size.held = 1
    with pytest.raises(BadRequest, match="take up to 400 bytes, of at most 396"):
        large_answers.check(size, rows, 99)
