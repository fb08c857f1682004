"""Ways past the key: paths, headers, trailers and roles, over TLS and straight at a gateway.

A request without a key of its own gets nothing but health, whatever else it says; what a caller
gets depends on the one key that it sends as `Authorization: Bearer`. No answer and no log line
holds a key. Source: Ray CVE-2025-62593, CVE-2026-27482, CVE-2025-1979; Starlette CVE-2026-48710;
vLLM CVE-2025-59425 and its guide; RFC 9110 §11.6.2; RFC 9112 §7.1.2.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from keyed import (
    ACME,
    EARLY,
    EXPIRED,
    MODELS,
    OPERATOR,
    OTHER,
    REVOKED,
    SECRETS,
    UNKNOWN,
    Keyed,
    bearer,
)
from raw_http import BODY, INFER, Said, Target, chunked, head, post

from deployments.gateway.tenancy.tenants import hash_key

CLOSE = b"connection: close"
REFUSED = {400, 401, 403, 404, 405}
_HEALTH = b'\r\n\r\n{"live":true}'
_ECHO = re.compile(rb"no such path: .*; GET|\"[^ ]* accepts|Host [^ ]* is")
PAGES = [
    b"/v1/models", b"/v2/models/device", b"/v2/models/device/ready", b"/openapi.json", b"/docs",
    b"/v2", b"/metrics", b"/admin/status", b"/admin/keys",
]  # fmt: skip


def tells_nothing(said: Said) -> bool:
    """No model, no figure and no key, but the path that was asked for."""
    body = _ECHO.sub(b"", said.data.partition(b"\r\n\r\n")[2])
    names = [name.encode() for name in MODELS] + [b"headrace_", b"openapi"]
    secrets = [secret.encode() for secret in SECRETS]
    return not any(each in body for each in names) and not any(
        each in said.data for each in secrets
    )


def spelled(path: bytes) -> list[bytes]:
    """The path as some reader or other may take it."""
    first, rest = path[1:2], path[2:]
    return [
        path, b"/%%%02x%b" % (first[0], rest), b"/%%25%02x%b" % (first[0], rest), b"/" + path,
        b"/." + path, b"/%2e" + path, b"/healthz/.." + path, b"/healthz/%2e%2e" + path,
        b"/healthz%2f.." + path, b"/healthz/..;" + path, b"/healthz;" + path, path + b"/",
        path + b";a=b", path + b"%20", path + b"%00", path + b"%23", path + b"?a=b",
        path + b".json", path.upper(), path.title(), b"\\" + path[1:],
        path.replace(b"/", b"\\"), b"/-" + path,
        b"http://localhost" + path, b"HTTP://LOCALHOST" + path, b"http://evil.example" + path,
        b"http://localhost:80/healthz/.." + path, b"http://localhost@evil.example" + path,
        b"/healthz#" + path, path + b"%0d%0aauthorization:%20Bearer%20" + OPERATOR.encode()[:9],
    ]  # fmt: skip


@pytest.mark.parametrize("path", PAGES)
def test_no_spelling_of_a_path_opens_it_without_a_key(locked: Target, path: bytes) -> None:
    for each in spelled(path):
        said = locked.ask(head(CLOSE, method=b"GET", path=each))
        assert set(said.statuses) <= REFUSED or said.data.endswith(_HEALTH), (each, said)
        assert said.statuses or said.closed, each
        assert tells_nothing(said), (each, said)


REWRITES = [
    b"x-original-url: %b", b"x-rewrite-url: %b", b"x-forwarded-path: %b", b"x-forwarded-uri: %b",
    b"x-original-uri: %b", b"x-forwarded-prefix: %b", b"x-script-name: %b", b"referer: %b",
]  # fmt: skip


@pytest.mark.parametrize("rewrite", REWRITES)
def test_no_header_writes_the_path_anew(locked: Target, rewrite: bytes) -> None:
    """Neither is a page taken for health, nor health for a page."""
    said = locked.ask(head(CLOSE, rewrite % b"/healthz", method=b"GET", path=b"/metrics"))
    assert said.statuses == [401]
    said = locked.ask(head(CLOSE, rewrite % b"/metrics", method=b"GET", path=b"/healthz"))
    assert said.statuses == [200]
    assert tells_nothing(said)


@pytest.mark.parametrize(
    "name",
    [b"x-http-method-override", b"x-http-method", b"x-method-override", b"x-forwarded-method"],
)
def test_no_header_writes_the_method_anew(locked: Target, name: bytes) -> None:
    wrong = head(CLOSE, name + b": GET", b"content-length: 0", path=b"/v1/models")
    for key, expected in ((b"", 405), (bearer(ACME), 405)):
        said = locked.ask(
            wrong.replace(b"\r\n\r\n", b"\r\n" + key + b"\r\n\r\n" if key else b"\r\n\r\n")
        )
        assert said.statuses == [expected]
    freezes = head(CLOSE, name + b": PUT", bearer(ACME), method=b"GET", path=b"/admin/controllers")
    assert set(locked.ask(freezes).statuses) <= {403, 405}


A, B = ACME.encode(), OTHER.encode()
NO_KEYS = {
    "none": [],
    "a tenant's name": [b"x-tenant: acme"],
    "another scheme": [b"authorization: Basic " + A],
    "no scheme": [b"authorization: " + A],
    "no key": [b"authorization: Bearer"],
    "a blank key": [b"authorization: Bearer  "],
    "a tab for the space": [b"authorization: Bearer\t" + A],
    "a list": [b"authorization: Bearer %b, Bearer %b" % (A, B)],
    "a list of one": [b"authorization: Bearer %b," % A],
    "schemes in a list": [b"authorization: Basic x, Bearer " + A],
    "a parameter": [b"authorization: Bearer %b; a=b" % A],
    "two keys in one": [b"authorization: Bearer %b %b" % (A, B)],
    "quoted": [b'authorization: Bearer "%b"' % A],
    "encoded": [b"authorization: Bearer " + A.replace(b"_", b"%5f")],
    "its hash": [b"authorization: Bearer " + hash_key(ACME).encode()],
    "its hash's digits": [b"authorization: Bearer " + hash_key(ACME)[7:].encode()],
    "in capitals": [b"authorization: Bearer " + A.upper()],
    "less its end": [b"authorization: Bearer " + A[:-1]],
    "longer by one": [b"authorization: Bearer " + A + b"A"],
    "a NUL behind it": [b"authorization: Bearer " + A + b"\x00"],
    "not ASCII": [b"authorization: Bearer " + A + b"\xc3\xa9"],
    "another alphabet": ["authorization: Bearer hr_асме".encode()],
    "ten thousand bytes": [b"authorization: Bearer " + b"A" * 10_000],
    "a hundred thousand bytes": [b"authorization: Bearer " + b"A" * 100_000],
    "twice the same": [bearer(ACME), bearer(ACME)],
    "twice, the first good": [bearer(ACME), bearer(UNKNOWN)],
    "twice, the last good": [bearer(UNKNOWN), bearer(ACME)],
    "twice, in two cases": [bearer(ACME), b"Authorization: Bearer " + B],
    "folded": [b"authorization: Bearer\r\n " + UNKNOWN.encode()],
    "of a proxy": [b"proxy-authorization: Bearer " + A],
    "another name": [b"api-key: " + A, b"x-authorization: Bearer " + A, b"x-goog-api-key: " + A],
    "a scheme where there is none": [b"x-api-key: Bearer " + A],
    "two keys in two headers": [bearer(ACME), b"x-api-key: " + B],
    "twice Anthropic's": [b"x-api-key: " + A, b"x-api-key: " + A],
    "a list of Anthropic's": [b"x-api-key: %b, %b" % (A, B)],
    "a cookie": [b"cookie: authorization=Bearer%20" + A, b"cookie: key=" + A],
    "an underscore": [b"authorization_: Bearer " + A],
    "a space before the colon": [b"authorization : Bearer " + A],
    "forwarded": [b"x-forwarded-authorization: Bearer " + A, b"x-forwarded-user: acme"],
    "a certificate's name": [b"x-ssl-client-cn: acme", b"x-client-cert: acme"],
}  # fmt: skip


@pytest.mark.parametrize("name", NO_KEYS)
def test_what_is_no_key_lets_nobody_in(locked: Target, name: str) -> None:
    for request in (
        head(*NO_KEYS[name], CLOSE, method=b"GET", path=b"/v1/models"),
        head(*NO_KEYS[name], CLOSE, b"content-length: %d" % len(BODY)) + BODY,
    ):
        said = locked.ask(request)
        assert set(said.statuses) <= {400, 401, 403, 431}, said
        assert tells_nothing(said), said


@pytest.mark.parametrize(
    "line",
    [
        bearer(ACME) + b"   \t",
        b"Authorization:bearer " + A,
        b"AUTHORIZATION:  BEARER   " + A,
        b"X-API-Key: " + A,
        bearer(ACME) + b"\r\nx-api-key: " + A,
    ],
    ids=["blanks behind", "another case", "blanks before", "Anthropic's", "both"],
)
@pytest.mark.parametrize("other", [b"x-tenant: other", b"x-tenant: default", b"from: other"])
def test_a_key_is_one_tenants_whatever_stands_beside_it(
    locked: Target, line: bytes, other: bytes
) -> None:
    said = locked.ask(head(line, other, CLOSE, method=b"GET", path=b"/v1/models"))
    assert said.statuses == [200]
    assert b'"device"' in said.data
    assert b"theirs" not in said.data


QUERIES = [b"key=%b", b"api_key=%b", b"authorization=Bearer%%20%b", b"access_token=%b", b"token=%b"]


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("path", [b"/v1/models", b"/metrics", INFER, b"/nowhere", b"/admin/keys"])
def test_a_key_in_a_query_is_none_and_stands_nowhere(
    locked: Target, query: bytes, path: bytes
) -> None:
    """The fixture looks through the logs."""
    target = b"%b?%b" % (path, query % OPERATOR.encode())
    for method in (b"GET", b"POST"):
        said = locked.ask(head(CLOSE, b"content-length: 0", method=method, path=target))
        assert set(said.statuses) <= REFUSED, said
        assert tells_nothing(said), said
    user = b"http://acme:%b@localhost%b" % (A, path)
    said = locked.ask(head(CLOSE, method=b"GET", path=user))
    assert set(said.statuses) <= REFUSED, said
    assert tells_nothing(said), said


@pytest.mark.parametrize("path", [b"/%b", b"/v2/models/%b/infer", b"/v1/models/%b", b"/admin/%b"])
def test_a_key_in_a_path_is_told_to_its_sender_alone(locked: Target, path: bytes) -> None:
    for key in (ACME, UNKNOWN):
        for says in (b"x-a: b", bearer(ACME), bearer(key + "A")):
            lines = (says, CLOSE, b"content-length: 0")
            for method in (b"GET", b"POST"):
                said = locked.ask(head(*lines, method=method, path=path % key.encode()))
                assert set(said.statuses) <= REFUSED, said


def test_the_metrics_name_no_key_whatever_it_was_sent_as(keyed: Keyed) -> None:
    for name in (b"x-tenant", b"x-request-id", b"x-session-id", b"traceparent", b"user-agent"):
        lines = (bearer(ACME), name + b": " + OTHER.encode(), CLOSE)
        keyed.gateway.ask(head(*lines, b"content-length: %d" % len(BODY)) + BODY)
    body = b'{"model": "%b", "input": "%b"}' % (A, B)
    said = keyed.gateway.ask(
        post(body, bearer(ACME) + b"\r\n" + CLOSE + b"\r\n", b"/v1/embeddings")
    )
    assert said.statuses == [404]
    page = keyed.gateway.ask(head(bearer(OPERATOR), CLOSE, method=b"GET", path=b"/metrics"))
    assert page.statuses == [200]
    assert b"headrace_requests" in page.data
    assert not any(secret.encode() in page.data for secret in SECRETS)


def same(said: Said) -> bytes:
    """Without what is each answer's own."""
    own = rb"(?im)^(date|x-request-id|traceparent|server): [^\r\n]*\r\n"
    return re.sub(own, b"", said.data)


def test_keys_that_open_nothing_are_answered_alike(locked: Target) -> None:
    request = head(b"%b", CLOSE, b"content-length: %d" % len(BODY)) + BODY
    answers = [
        locked.ask(request.replace(b"%b", bearer(key)))
        for key in (UNKNOWN, REVOKED, EXPIRED, EARLY)
    ]
    assert {each.statuses[0] for each in answers} == {401}
    assert len({same(each) for each in answers}) == 1


FORGED = [bearer(OTHER), b"x-tenant: other", b"Authorization: Bearer " + OPERATOR.encode()]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("key", [b"", bearer(ACME), bearer(UNKNOWN)], ids=["no", "own", "unknown"])
def test_a_key_behind_the_body_opens_nothing(locked: Target, key: bytes, together: bool) -> None:
    lines = [b"transfer-encoding: chunked", b"trailer: authorization, x-tenant", CLOSE]
    request = head(*([key] if key else []), *lines)
    body = chunked(BODY, trailers=FORGED)
    said = locked.ask(request + body) if together else locked.ask_slowly(request, body)
    assert said.statuses == ([200] if key == bearer(ACME) else [401]), said
    for _, headers in locked.arrived:
        keys = [value for name, value in headers if name == b"authorization"]
        assert keys == ([key.partition(b": ")[2]] if key else [])
        assert b"x-tenant" not in dict(headers)


@pytest.mark.parametrize("key", [bearer(ACME), bearer(OPERATOR)], ids=["tenant", "operator"])
def test_who_names_its_key_hop_by_hop_is_still_who_it_is(locked: Target, key: bytes) -> None:
    """A reader that drops what `Connection` names would make somebody else of it."""
    named = b"connection: close, authorization, x-forwarded-for, host"
    lines = (key, named, b"x-tenant: other", b"content-length: %d" % len(BODY))
    said = locked.ask(head(*lines) + BODY)
    assert said.statuses == ([200] if key == bearer(ACME) else [403]), said
    if locked.name == "edge":
        ((_, headers),) = locked.arrived
        assert dict(headers)[b"x-forwarded-for"] == b"127.0.0.1"


CHAT = b'{"model": "%b", "messages": [{"role": "user", "content": "a"}], "max_tokens": 4%b}'
RUNS = {
    "infer": (INFER, BODY),
    "a version": (b"/v2/models/device/versions/1/infer", BODY),
    "predict": (b"/v1/models/device:predict", b'{"instances": [[1, 2]]}'),
    "classify": (b"/v1/models/device:classify", b'{"inputs": "a"}'),
    "embeddings": (b"/v1/embeddings", b'{"model": "vectors", "input": [[1, 2]]}'),
    "completions": (b"/v1/completions", b'{"model": "chat", "prompt": "a"}'),
    "chat": (b"/v1/chat/completions", CHAT % (b"chat", b"")),
    "a stream": (b"/v1/chat/completions", CHAT % (b"chat", b', "stream": true')),
}


@pytest.mark.parametrize("name", RUNS)
def test_an_operators_key_runs_nothing(locked: Target, keyed: Keyed, name: str) -> None:
    path, body = RUNS[name]
    begun = len(keyed.engines.begun)
    for beside in (b"", b"x-tenant: acme\r\n", b"x-priority: interactive\r\n"):
        said = locked.ask(post(body, bearer(OPERATOR) + b"\r\n" + CLOSE + b"\r\n" + beside, path))
        assert said.statuses == [403], said
        assert b"runs no model" in said.data
    assert len(keyed.engines.begun) == begun


ADMIN = [
    (b"GET", b"/admin/keys"),
    (b"PUT", b"/admin/controllers"),
    (b"POST", b"/admin/keys/revoke"),
]


@pytest.mark.parametrize(("method", "path"), ADMIN)
def test_an_operators_page_wants_its_key_and_at_haproxy_its_certificate(
    keyed: Keyed, method: bytes, path: bytes
) -> None:
    certified = replace(keyed.edge, tls=keyed.trusting(certified=True))
    body = b"nonsense"
    for key, expected in ((b"x-a: b", 401), (bearer(ACME), 403), (bearer(OPERATOR), 0)):
        request = head(key, CLOSE, b"content-length: 8", method=method, path=path) + body
        assert keyed.edge.ask(request).statuses == [403]
        passed = 200 if method == b"GET" else 400
        for where in (certified, keyed.gateway):
            assert where.ask(request).statuses == [expected or passed]
    for each in spelled(path):
        said = keyed.edge.ask(head(bearer(OPERATOR), CLOSE, method=b"GET", path=each))
        assert 200 not in said.statuses, (each, said)
