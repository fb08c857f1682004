from __future__ import annotations

import gzip

import pytest

from deployments.contract.errors import BadRequest, BodyTooLarge
from deployments.gateway.http.protocols.inflate import inflate


@pytest.mark.parametrize("size", [0, 1, 2, 100])
def test_body_within_the_bound_is_inflated(size: int) -> None:
    assert inflate(gzip.compress(b"x" * size), 100) == b"x" * size


@pytest.mark.parametrize("size", [101, 1_000_000])
def test_body_over_the_bound_is_refused(size: int) -> None:
    with pytest.raises(BodyTooLarge, match="100 bytes") as caught:
        inflate(gzip.compress(b"x" * size), 100)
    assert caught.value.status == 413


def test_nothing_fits_a_bound_of_zero_but_nothing() -> None:
    assert inflate(gzip.compress(b""), 0) == b""
    with pytest.raises(BodyTooLarge):
        inflate(gzip.compress(b"x"), 0)


@pytest.mark.parametrize("cut", [0, 1, 5, 15, -1, -8])
def test_truncated_gzip_is_refused(cut: int) -> None:
    with pytest.raises(BadRequest, match="too early"):
        inflate(gzip.compress(b"hello world")[:cut], 100)


def test_what_is_no_gzip_is_refused() -> None:
    with pytest.raises(BadRequest, match="not valid gzip"):
        inflate(b'{"inputs": []}', 100)


def test_broken_checksum_is_refused() -> None:
    body = bytearray(gzip.compress(b"hello world"))
    body[-6] ^= 1
    with pytest.raises(BadRequest, match="not valid gzip"):
        inflate(bytes(body), 100)


def test_second_member_is_refused() -> None:
    with pytest.raises(BadRequest, match="one gzip member"):
        inflate(gzip.compress(b"a") * 2, 100)
