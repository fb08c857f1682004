"""Does the client's parser tell answers as RFC 9112 frames them, however the bytes arrive?"""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.client.http1 import InvalidResponse, ResponseParser, Target, render

COUNTED = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;ext=1\r\nlo\r\n0\r\n\r\n"
)
EMPTY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"


def parsed(data: bytes, cuts: list[int] | None = None):
    parser = ResponseParser()
    edges = [0, *sorted(cut % len(data) for cut in cuts or []), len(data)]
    answers = [parser.feed(data[a:b]) for a, b in pairwise(edges) if a < b]
    assert all(answer is None for answer in answers[:-1])
    return answers[-1]


@pytest.mark.parametrize(
    ("data", "status", "body"),
    [
        (COUNTED, 200, b"hello"),
        (CHUNKED, 503, b"hello"),
        (EMPTY, 200, b""),
        (NO_CONTENT, 204, b""),
    ],
)
@given(cuts=st.lists(st.integers(1, 10_000), max_size=6))
def test_answer_is_the_same_in_any_pieces(data, status, body, cuts):
    answer = parsed(data, cuts)
    assert (answer.status, answer.body, answer.keep_alive) == (status, body, True)


def test_a_parser_is_reused_for_the_next_answer():
    parser = ResponseParser()
    for data in (COUNTED, CHUNKED, COUNTED[:30], COUNTED[30:], EMPTY):
        answer = parser.feed(data)
    assert answer is not None
    assert answer.body == b""


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\nConnection: close\r\n", b"HTTP/1.0 200 OK\r\n"]
)
def test_connection_that_ends_is_not_kept(head):
    answer = parsed(head + b"Content-Length: 1\r\n\r\nx")
    assert not answer.keep_alive


def test_body_without_a_length_ends_with_the_connection():
    parser = ResponseParser()
    assert parser.feed(b"HTTP/1.1 200 OK\r\n\r\npart") is None
    assert parser.feed(b"ial") is None
    answer = parser.end()
    assert answer is not None
    assert (answer.body, answer.keep_alive) == (b"partial", False)


def test_counted_body_cut_off_is_no_answer():
    parser = ResponseParser()
    assert parser.feed(COUNTED[:-1]) is None
    assert parser.started
    assert parser.end() is None


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        COUNTED + b"!",
        EMPTY + EMPTY,
        b"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000,
    ],
)
def test_what_is_no_answer_is_refused(data):
    with pytest.raises(InvalidResponse):
        ResponseParser().feed(data)


def test_rendered_request_counts_its_body():
    target = Target.parse("http://localhost:8000/v2/models/m/infer?x=1")
    request = render(target, b"{}", headers={"X-Tenant": "acme"})
    assert request.startswith(b"POST /v2/models/m/infer?x=1 HTTP/1.1\r\nhost: localhost:8000\r\n")
    assert b"\r\ncontent-length: 2\r\n" in request
    assert request.endswith(b"x-tenant: acme\r\n\r\n{}")


@pytest.mark.parametrize("url", ["ftp://a/b", "localhost:80/x", "http:///x"])
def test_url_that_is_not_of_http_is_refused(url):
    with pytest.raises(ValueError, match="not of the form"):
        Target.parse(url)


@pytest.mark.parametrize(
    ("status", "value", "seconds"),
    [("503", "7", 7.0), ("429", "0", 0.0), ("503", "Fri, 31 Dec 1999 23:59:59 GMT", 0.0),
     ("200", "7", 0.0)],
)  # fmt: skip
def test_refusal_says_when_to_come_again(status, value, seconds):
    answer = parsed(
        f"HTTP/1.1 {status} X\r\nRetry-After: {value}\r\nContent-Length: 0\r\n\r\n".encode()
    )
    assert answer.retry_after_s == seconds


def test_refusal_that_says_nothing_is_zero():
    assert parsed(CHUNKED).retry_after_s == 0.0
