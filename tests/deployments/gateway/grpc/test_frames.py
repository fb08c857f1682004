"""What stands around gRPC's messages, at its edges."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import replace
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.contract import errors
from deployments.gateway.grpc import frames
from deployments.gateway.http.body import small_body


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("size", [0, 1, 2**32 - 1])
def test_a_prefix_reads_back(size: int, compressed: bool) -> None:
    assert frames.read_prefix(frames.prefix(size, compressed=compressed)) == (compressed, size)


def test_a_prefix_that_is_neither_plain_nor_compressed_is_refused() -> None:
    with pytest.raises(errors.BadRequest, match="begins with 2"):
        frames.read_prefix(b"\x02\0\0\0\0")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"1H", 3600),
        (b"2M", 120),
        (b"3S", 3),
        (b"10100m", 10.1),
        (b"5u", 5e-6),
        (b"99999999n", 0.1),
    ],
)
def test_a_timeout_has_digits_and_a_unit(value: bytes, seconds: float) -> None:
    assert frames.timeout_s(value) == pytest.approx(seconds)


@pytest.mark.parametrize("value", [b"", b"1", b"m", b"123456789m", b"-1m", b"1.5S", b"1s", b"1 m"])
def test_any_other_timeout_is_refused(value: bytes) -> None:
    with pytest.raises(errors.BadRequest, match="grpc-timeout"):
        frames.timeout_s(value)


@pytest.mark.parametrize(
    ("error", "code", "pushback"),
    [
        (errors.BadRequest("x"), b"3", b"-1"),
        (errors.Unauthorized("x"), b"16", b"-1"),
        (errors.Forbidden("x"), b"7", b"-1"),
        (errors.NotFound("x"), b"5", b"-1"),
        (errors.MethodNotAllowed("x"), b"12", b"-1"),
        (errors.BodyTimeout("x"), b"4", b"-1"),
        (errors.BodyTooLarge("x"), b"8", b"-1"),
        (errors.UnsupportedMedia("x"), b"12", b"-1"),
        (errors.RowQuarantined("x"), b"9", b"-1"),
        (errors.OverOwnLimit("x", retry_after_s=0.25), b"8", b"250"),
        (errors.CallerLeft("x"), b"1", b"-1"),
        (errors.OutputNotFinite("x"), b"13", b"-1"),
        (errors.Overloaded("x", retry_after_s=1.0), b"14", b"1000"),
        (errors.NotReady("x", retry_after_s=1e9), b"14", b"86400000"),
        (errors.RowFailed("x"), b"14", b"-1"),
        (errors.Expired("x"), b"4", b"-1"),
    ],
)
def test_each_error_has_its_status_and_says_when_to_come_again(
    error: errors.HeadraceError, code: bytes, pushback: bytes
) -> None:
    said = dict(frames.status(error))
    assert (said[b"grpc-status"], said[b"grpc-retry-pushback-ms"]) == (code, pushback)


def test_every_public_error_has_a_status_of_its_own() -> None:
    def below(kind: type[errors.HeadraceError]) -> set[type[errors.HeadraceError]]:
        return {kind}.union(*(below(each) for each in kind.__subclasses__()))

    known = below(errors.HeadraceError) - {errors.BadText, errors.TooManyTokens}
    own = {kind for kind in known if kind.__module__.startswith("deployments.")}
    assert all(frames.code(kind("x")) != 2 for kind in own if kind.__init__ in _PLAIN)


_PLAIN = (errors.HeadraceError.__init__, errors.Unauthorized.__init__)


@given(st.text())
def test_a_message_travels_as_percent_encoded_text(message: str) -> None:
    sent = frames.text(message)
    assert len(sent) <= 2048
    assert all(0x20 <= byte < 0x7F for byte in sent)
    whole = message.encode("utf-8", "replace")
    assert whole.startswith(unquote_to_bytes(sent)) or unquote_to_bytes(sent) == whole


@pytest.mark.parametrize(
    ("encoding", "pack"), [(b"gzip", gzip.compress), (b"deflate", zlib.compress)]
)
def test_a_short_message_is_inflated_up_to_its_bound(encoding: bytes, pack: object) -> None:
    compressed = pack(b"x" * 100)  # type: ignore[operator]
    limits = [replace(small_body("it may be"), max_inflated_bytes=most) for most in (99, 100)]
    assert frames.inflated(compressed, encoding, limits[1]) == b"x" * 100
    with pytest.raises(errors.BodyTooLarge):
        frames.inflated(compressed, encoding, limits[0])
    with pytest.raises(errors.BadRequest):
        frames.inflated(b"\0" + compressed, encoding, limits[1])
