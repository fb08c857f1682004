"""What a gateway says of answers that HAProxy would compress."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from in_process import Stand, ask, standing

from deployments.gateway.http.exchange import MIN_BYTES, prefers_gzip, stays_as_it_is

JSON = b"application/json"


@pytest.mark.parametrize(
    ("said", "gzip"),
    [
        (b"gzip", True),
        (b"gzip, deflate, br", True),
        (b"deflate , GZIP ; q=0.3", True),
        (b"*", True),
        (b"gzip;q=1.0, identity;q=0.5, *;q=0", True),
        (b"gzip;q=0.5, identity;q=0.5", True),
        (b"gzip;q=0.5, identity", False),
        (b"gzip;q=0, *", False),
        (b"gzip;q=0.000", False),
        (b"*;q=0", False),
        (b"identity", False),
        (b"", False),
        (b"gzip;q=much", False),
        (b"gzip;q=nan", False),
    ],
)
def test_gzip_is_preferred_as_the_weights_say(said: bytes, gzip: bool) -> None:
    assert prefers_gzip(said) is gzip
    assert stays_as_it_is(said, JSON, MIN_BYTES) is not gzip


@pytest.mark.parametrize(("size", "stays"), [(0, True), (MIN_BYTES - 1, True), (MIN_BYTES, False)])
def test_short_answers_stay_as_they_are(size: int, stays: bool) -> None:
    assert stays_as_it_is(b"gzip", JSON, size) is stays


def test_nothing_is_said_of_what_is_not_compressed_anyway() -> None:
    assert not stays_as_it_is(b"gzip", b"application/octet-stream", 10)


def test_a_header_of_no_sensible_length_is_not_read() -> None:
    assert stays_as_it_is(b"gzip" + b", br" * 100, JSON, MIN_BYTES)


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    async with standing({}, tmp_path) as stand:
        yield stand


async def test_only_who_asks_and_gets_a_short_answer_is_told(stand: Stand) -> None:
    asks = [(b"accept-encoding", b"gzip")]
    for path, headers, told in (
        ("/v1/models", [], None),
        ("/v1/models", asks, b"no-transform"),
        ("/openapi.json", asks, None),
        ("/docs/favicon.png", asks, b"max-age=86400"),
    ):
        answer = await ask(stand.app, "GET", path, headers)
        assert (answer.status, answer.header(b"cache-control")) == (200, told), path
