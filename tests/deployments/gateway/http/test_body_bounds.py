"""Bodies that no model could take are refused before they are read or inflated, and say why."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from in_process import Answer, Stand, ask, standing

from deployments.contract.description import Generating, ModelDescription
from deployments.contract.errors import BodyTooLarge
from deployments.gateway.http.body import UNBOUNDED, bound_of, widest

MODEL = {
    "runtime": "synthetic",
    "options": {"base_ms": 0},
    "lengths": {"max": 64},
    "queue": {"max_rows": 16},
}
INFER, PREDICT = "/v2/models/device/infer", "/v1/models/device:predict"
ZIPPED = (b"content-encoding", b"gzip")
MANY = b"[" + b"1," * 2_000_000 + b"1]"


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    async with standing({"device": MODEL}, tmp_path) as stand:
        yield stand
        assert stand.app._pipeline._services.limits.room.held_bytes == 0


def said(answer: Answer) -> str:
    return str(json.loads(answer.body)["error"])


async def test_a_small_gzip_of_many_numbers_is_refused_while_it_is_measured(stand: Stand) -> None:
    for path, body in ((INFER, b'{"inputs":%s}' % MANY), (PREDICT, b'{"instances":[%s]}' % MANY)):
        zipped = gzip.compress(body)
        assert len(zipped) < 10_000
        answer = await ask(stand.app, "POST", path, [ZIPPED], zipped)
        assert answer.status == 413
        assert "any request of 16 rows of 64, which 'device' takes (queue.max_rows" in said(answer)


async def test_a_declared_length_that_the_model_could_not_take_is_refused_unread(
    stand: Stand,
) -> None:
    length = [(b"content-length", b"2000000")]
    answer = await ask(stand.app, "POST", INFER, length, [b"{", None])
    assert (answer.status, answer.header(b"connection")) == (413, b"close")
    assert "16 rows of 64" in said(answer)


async def test_a_body_without_a_length_ends_where_the_model_could_not_take_more(
    stand: Stand,
) -> None:
    answer = await ask(stand.app, "POST", INFER, (), [b" " * 300_000, b" " * 300_000, None])
    assert answer.status == 413


async def test_the_largest_request_there_is_passes(stand: Stand) -> None:
    data = b",".join([b"-9223372036854775808"] * (16 * 64))
    body = b'{"inputs":[{"name":"ids","datatype":"INT64","shape":[16,64],"data":[%s]}]}' % data
    for headers, sent in (([], body), ([ZIPPED], gzip.compress(body + b" " * 100_000))):
        assert (await ask(stand.app, "POST", INFER, headers, sent)).status == 200


def test_a_model_says_how_many_numbers_a_request_may_have(
    encoder: Callable[..., ModelDescription],
) -> None:
    d = encoder()
    rows, bound = d.scheduling.core.max_queue_rows, bound_of(d, numbers=True)
    per_row = d.max_length * len(d.inputs)
    assert rows * per_row <= bound.numbers < rows * per_row + 10_000
    assert bound.size_bytes > 24 * bound.numbers
    with pytest.raises(BodyTooLarge, match=f"{rows} rows of {d.max_length}"):
        bound.check_numbers(int(bound.numbers) + 1)
    bound.check_numbers(int(bound.numbers))
    bound.check_bytes(int(bound.size_bytes))


def test_where_a_shape_says_nothing_there_is_no_bound(
    encoder: Callable[..., ModelDescription],
) -> None:
    d = encoder()
    texts = replace(d.inputs[0], datatype="BYTES")
    assert bound_of(replace(d, inputs=(texts,)), numbers=True).numbers == inf
    loose = replace(d.inputs[0], shape=(-1, -1, -1))
    assert bound_of(replace(d, inputs=(loose,)), numbers=True).size_bytes == inf
    assert bound_of(replace(d, truncate=True), numbers=False) is UNBOUNDED


def test_texts_may_be_what_the_widest_model_takes(
    encoder: Callable[..., ModelDescription],
) -> None:
    small = encoder()
    large = replace(small, max_length=10 * small.max_length)
    generates = replace(small, generating=Generating(64, 1024, 4, 16))
    most = bound_of(large, numbers=False).size_bytes
    assert most > bound_of(small, numbers=False).size_bytes
    assert widest([small, large, small], numbers=False).size_bytes == most
    assert bound_of(generates, numbers=False).size_bytes == (4 << 20) + 64 * 1024
    assert widest([], numbers=False) is UNBOUNDED
