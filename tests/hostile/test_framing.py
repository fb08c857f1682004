"""Requests that two readers may cut in two places: refused, or understood by both in one way.

What is behind the cut is a request for /smuggled, which nobody may ever see. Source: RFC 9112 §6,
§7, §11; CVE-2021-40346, CVE-2023-25725, CVE-2023-40225, CVE-2025-43859.
"""

from __future__ import annotations

import pytest
from raw_http import BODY, Target, chunked, head, post

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: localhost\r\nx-tenant: acme\r\n\r\n"
CHUNKED = b"transfer-encoding: chunked"
LENGTH = b"content-length: %d" % len(BODY)
ALL = chunked(BODY)
WITHIN = chunked(BODY + SMUGGLED)

# What is said of who frames the body, and the bytes behind the head.
FRAMED = {
    "length, then chunked": ([LENGTH, CHUNKED], ALL),
    "chunked, then length": ([CHUNKED, b"content-length: 5"], WITHIN),
    "chunked, then no length": ([CHUNKED, b"content-length: 0"], WITHIN),
    "two lengths": ([LENGTH, b"content-length: %d" % (len(BODY) + len(SMUGGLED))], BODY + SMUGGLED),
    "lengths in one": ([LENGTH + b", 5"], BODY),
    "no length": ([b"content-length:"], SMUGGLED),
    "signed": ([b"content-length: +%d" % len(BODY)], BODY),
    "negative": ([b"content-length: -1"], BODY),
    "hexadecimal": ([b"content-length: 0x53"], BODY),
    "with a space": ([b"content-length: 8 3"], BODY),
    "beyond 64 bits": ([b"content-length: 18446744073709551699"], BODY),
    "another encoding": ([b"transfer-encoding: xchunked"], ALL),
    "identity": ([b"transfer-encoding: identity", LENGTH], BODY),
    "chunked twice": ([CHUNKED, CHUNKED], ALL),
    "chunked, identity": ([b"transfer-encoding: chunked, identity"], ALL),
    "gzip, chunked": ([b"transfer-encoding: gzip, chunked"], ALL),
    "quoted": ([b'transfer-encoding: "chunked"'], ALL),
    "space before the colon": ([b"transfer-encoding : chunked"], ALL),
    "tab before the colon": ([b"content-length\t: 5"], BODY),
    "vertical tab": ([b"transfer-encoding:\x0bchunked"], ALL),
    "folded": ([b"transfer-encoding:\r\n chunked", LENGTH], ALL),
    "NUL in a name": ([b"content\x00-length: 5", LENGTH], BODY),
    "NUL in a value": ([b"x-one: a\x00b", LENGTH], BODY),
    "bare CR in a value": ([b"x-one: a\rx-tenant: acme", LENGTH], BODY),
    "no name": ([b": v", LENGTH], BODY),
    "8-bit name": ([b"x-\xe9: v", LENGTH], BODY),
    "300 bytes of name": ([b"content-length" + b"a" * 286 + b": 5", LENGTH], BODY),
}
OF_CHUNKS = {
    "bare LF after a size": b"53\n" + BODY + b"\r\n0\r\n\r\n",
    "bare LF in an extension": b"53;a\nb\r\n" + BODY + b"\r\n0\r\n\r\n",
    "bare LF after data": b"53\r\n" + BODY + b"\n0\r\n\r\n",
    "data beyond its size": b"3\r\nabcXX0\r\n\r\n",
    "no size": b"\r\n" + BODY + b"\r\n0\r\n\r\n",
    "size in 0x": b"0x53\r\n" + BODY + b"\r\n0\r\n\r\n",
    "negative size": b"-1\r\n" + BODY + b"\r\n0\r\n\r\n",
    "size with a space": b"5 3\r\n" + BODY + b"\r\n0\r\n\r\n",
    "size beyond 64 bits": b"fffffffffffffffff\r\n" + BODY + b"\r\n0\r\n\r\n",
    "size of 2^64 - 1": b"ffffffffffffffff\r\n" + BODY + b"\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("name", FRAMED)
def test_a_body_has_one_end_or_none(framed: Target, name: str):
    lines, body = FRAMED[name]
    said = framed.ask(head(*lines) + body)
    assert len(said.statuses) <= 1 or set(said.statuses) <= {200, 400}, said
    assert not {500, 502} & set(said.statuses), said
    assert said.statuses.count(200) <= 1, said


@pytest.mark.parametrize("name", OF_CHUNKS)
def test_malformed_chunks_are_no_body(framed: Target, name: str):
    said = framed.ask(head(CHUNKED) + OF_CHUNKS[name] + SMUGGLED.replace(b"/smuggled", b"/after"))
    assert 200 not in said.statuses, said
    assert 500 not in said.statuses, said


@pytest.mark.parametrize(
    "first",
    [
        b"GET /v1/mod\x00els HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /v1/models\x0bHTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"G\xe9T /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        bytes(64),
    ],
    ids=["NUL", "no space", "8-bit method", "HTTP/2", "TLS", "zeros"],
)
def test_what_is_no_http_1_is_no_request(framed: Target, first: bytes):
    said = framed.ask(first)
    assert set(said.statuses) <= {400, 404, 405, 505}, said


@pytest.mark.parametrize(
    "first",
    [
        b"GET /v1/models\r\n\r\n",
        b"GET /v1/models HTTP/0.9\r\nhost: localhost\r\n\r\n",
        b"GET /v1/models HTTP/3.0\r\nhost: localhost\r\n\r\n",
        b"GET  /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ],
    ids=["0.9", "said 0.9", "3.0", "two spaces"],
)
def test_an_odd_first_line_is_one_request_or_none(framed: Target, first: bytes):
    said = framed.ask(first)
    assert said.statuses in ([200], [400], [505]), said
    assert len(framed.arrived) <= 1


def test_nobody_changes_to_http_2(framed: Target):
    lines = (b"connection: upgrade, http2-settings", b"upgrade: h2c", b"http2-settings: AAMAAABk")
    said = framed.ask(head(*lines, method=b"GET", path=b"/v1/models"))
    assert said.statuses == [200], said


@pytest.mark.parametrize("token", [b"foo", b"h2c", b"websocket"])
@pytest.mark.parametrize("form", ["length", "chunks", "nothing"])
def test_behind_an_upgrade_comes_the_body_and_no_request(framed: Target, token: bytes, form: str):
    """More than HAProxy's buffer first, so that the gateway gets the rest by itself."""
    lines = [b"connection: upgrade", b"upgrade: " + token, b"sec-websocket-version: 13",
             b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="]  # fmt: skip
    first, then = BODY + b" " * 34_000, SMUGGLED
    if form == "length":
        lines.append(b"content-length: %d" % (len(first) + len(then)))
    elif form == "chunks":
        lines.append(CHUNKED)
        first = b"%x\r\n%b\r\n" % (len(first), first)
        then = b"%x\r\n%b\r\n0\r\n\r\n" % (len(then), then)
    else:
        first, then = b"", SMUGGLED.replace(b"/smuggled", b"/after")
    said = framed.ask_slowly(head(*lines) + first, then)
    assert 101 not in said.statuses, said
    assert said.statuses[0] == 400, said


@pytest.mark.parametrize("together", [True, False])
def test_trailers_never_say_who_calls(framed: Target, together: bool):
    forged = [b"x-tenant: acme", b"authorization: Bearer other", b"x-forwarded-for: 6.6.6.6"]
    body = chunked(BODY, trailers=forged)
    request = head(b"x-tenant: default", CHUNKED)
    said = framed.ask(request + body) if together else framed.ask(request, body)
    assert said.statuses in ([200], [400]), said
    for _, headers in framed.arrived:
        assert (b"x-tenant", b"acme") not in headers
        assert (b"authorization", b"Bearer other") not in headers
        assert (b"x-forwarded-for", b"6.6.6.6") not in headers


def test_pipelined_requests_are_answered_in_their_order(framed: Target):
    asks = [post(BODY), head(method=b"GET", path=b"/nowhere"), post(BODY)]
    assert framed.ask(b"".join(asks), idle_s=0.3).statuses == [200, 404, 200]


def test_a_chunked_body_is_a_body(framed: Target):
    assert framed.ask(head(CHUNKED) + chunked(BODY[:9], BODY[9:])).statuses == [200]
