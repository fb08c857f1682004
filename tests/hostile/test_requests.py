"""Heads, paths and bodies that cost more than they weigh, or would be taken for others.

Each is refused at once and briefly, tells nothing of the server's insides, and leaves others alone.
Source: the advisories named at each.
"""

from __future__ import annotations

import gzip
import json
import re

import pytest
from raw_http import BODY, INFER, Target, head, post

PROMPTLY_S = 2.5
_INSIDES = re.compile(rb"Traceback|0x[0-9a-f]{6}|/(?:usr|home|root|tmp|opt|work)/|\.py\b|psm_|shm")

HEADS = {
    "1 MB of a header": (b"x-large: " + b"a" * 1_000_000,),  # CVE-2025-48956
    "2,000 headers": tuple(b"x-%d: 1" % n for n in range(2000)),
    "two keys": (b"authorization: Bearer a", b"authorization: Bearer b"),
    "two tenants": (b"x-tenant: default", b"x-tenant: acme"),
    "a line in a value": (b"x-request-id: a\r\n\x1b[31mx-tenant: acme",),  # CVE-2020-7694
    "an endless content type": (b"content-type: text/plain; " + b"a=b; " * 3000,),  # CVE-2024-24762
    "ranges": (b"range: bytes=" + b"0-0," * 3000,),  # CVE-2025-62727
    "a length of 1e9": (b"content-length: 1000000000",),
    "an exponent": (b"x-timeout-ms: 1e999999999",),  # CVE-2025-11230
    "thousands of digits": (b"x-timeout-ms: " + b"9" * 9000,),
    "a binary length beyond the body": (b"inference-header-content-length: 99999999999999",),
}


@pytest.mark.parametrize("name", HEADS)
def test_heads_are_refused_at_once(target: Target, name: str):
    lines = HEADS[name]
    if not any(line.startswith(b"content-length") for line in lines):
        lines = (*lines, b"content-length: %d" % len(BODY))
    said = target.ask(head(*lines) + BODY)
    assert said.seconds < PROMPTLY_S
    assert not {500, 502, 503} & set(said.statuses), said
    assert len(said.data) < 5000
    assert not _INSIDES.search(said.data), said


HOSTS = [b"a/b?c", b"localhost, evil.example", b"evil.example", b"a b", b"[::1", b"x:y"]


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("path", [b"/v1/models", b"/admin/status", b"/metrics"])
def test_hosts_that_are_not_ours_are_refused(target: Target, host: bytes, path: bytes):
    """DNS rebinding; CVE-2026-48710, CVE-2025-62593."""
    said = target.ask(b"GET %b HTTP/1.1\r\nhost: %b\r\n\r\n" % (path, host))
    assert said.statuses in ([400], [403]), said


@pytest.mark.parametrize(
    "line", [b"origin: https://evil.example", b"origin: null", b"sec-fetch-site: cross-site"]
)
@pytest.mark.parametrize(
    ("method", "path"),
    [(b"POST", INFER), (b"PUT", b"/admin/controllers"), (b"GET", b"/admin/status")],
)
def test_a_foreign_page_runs_nothing(target: Target, line: bytes, method: bytes, path: bytes):
    lines = (line, b"content-length: %d" % len(BODY))
    assert target.ask(head(*lines, method=method, path=path) + BODY).statuses == [403]


PATHS = [
    b"/v2/models/../../etc/passwd", b"/docs/../../../etc/passwd", b"/docs/%2e%2e/%2e%2e/etc/passwd",
    b"/docs/..%2f..%2fetc%2fpasswd", b"//etc/passwd", b"/v2/models//infer", b"/docs/..\\..\\etc",
    b"/v1/models/%00", b"/v2/models/device%00/infer", b"/v2/models/$%7Bjndi:x%7D/infer",
    b"/v2/models/%0d%0a%1b[31m/infer", b"/v2/models/{{7*7}}/infer", b"/v2/models/" + b"a" * 9000,
    b"/invocations", b"/pause", b"/resume", b"/update_weights", b"/collective_rpc", b"/sleep",
    b"/v1/load_lora_adapter", b"/reset_prefix_cache", b"/internal/route", b"/api/jobs/",
    b"/nodes", b"/models", b"/management", b"/v2/repository/models/device/load", b"/server-status",
    b"/haproxy", b"/stats", b"http://localhost/admin/status", b"*", b"?", b"/;/admin/status",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", [b"GET", b"POST", b"DELETE"])
def test_only_our_own_paths_answer(target: Target, path: bytes, method: bytes):
    said = target.ask(head(b"content-length: 0", method=method, path=path))
    assert set(said.statuses) <= {400, 401, 403, 404, 405, 411, 414}, said
    assert b"root:" not in said.data
    assert b"\x1b" not in said.data
    assert b"49" not in said.data.partition(b"\r\n\r\n")[2] or b"{{7*7}}" not in path


@pytest.mark.parametrize("path", [b"/%61dmin/status", b"/adm%69n/keys", b"/%6Detrics"])
def test_a_page_has_one_spelling(target: Target, path: bytes):
    """What stands before a gateway decides by the path as it is sent."""
    assert target.ask(head(path=path, method=b"GET")).statuses == [404]


def test_no_verb_of_the_operators_works_without_a_key(target: Target):
    for method in (b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"TRACE"):
        for path in (b"/admin/status", b"/admin/controllers", b"/admin/keys"):
            body = b'{"frozen": true}'
            lines = (b"content-length: %d" % len(body), b"connection: close")
            said = target.ask(head(*lines, method=method, path=path) + body)
            assert len(said.statuses) == 1, said
            assert said.statuses[0] in {400, 401, 403, 404, 405, 501}, said


def infer(**changes: object) -> bytes:
    tensor = {"name": "ids", "datatype": "INT64", "shape": [1, 2], "data": [4, 5]}
    return json.dumps({"inputs": [tensor | changes]}).encode()


BODIES = {
    "nested lists": (b"[" * 100_000, b""),  # CVE-2024-27454
    "nested objects": (b'{"a":' * 50_000, b""),
    "an exponent": (b'{"inputs": [{"shape": [1e999999999]}]}', b""),
    "a shape of 2^63": (infer(shape=[2**63, 1]), b""),
    "a shape of 2^31 twice": (infer(shape=[2**31, 2**31]), b""),
    "a negative shape": (infer(shape=[-1, -2]), b""),
    "more dimensions than numbers": (infer(shape=[1] * 5000), b""),
    "not a number": (b'{"inputs": [{"name": "ids", "data": [NaN, Infinity]}]}', b""),
    "a lying binary size": (infer(parameters={"binary_data_size": 2**62}), b""),
    "a binary part that is not there": (BODY, b"inference-header-content-length: 5000\r\n"),
    "a pickle": (b"\x80\x04\x95cos\nsystem\n", b"content-type: application/x-pickle\r\n"),
    "a gzip bomb": (gzip.compress(bytes(5_000_000)), b"content-encoding: gzip\r\n"),
    "gzip that ends early": (gzip.compress(BODY)[:-9], b"content-encoding: gzip\r\n"),
    "gzip twice": (gzip.compress(gzip.compress(BODY)), b"content-encoding: gzip\r\n"),
    "ten gzips": (gzip.compress(b" ") * 5000, b"content-encoding: gzip\r\n"),
    "an encoding nobody has": (BODY, b"content-encoding: zstd\r\n"),
    "a multipart form": (
        b"--x\r\n" * 9000, b"content-type: multipart/form-data; boundary=x\r\n"
    ),  # CVE-2024-53981
    "surrogates": (b'{"inputs": [{"name": "\\ud800"}]}', b""),
    "invalid UTF-8": (b'{"inputs": [{"name": "\xff\xfe"}]}', b""),
    "equal keys": (b'{"inputs": [], "inputs": {}}', b""),
    "too large": (b"x" * 450_000, b""),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("path", [INFER, b"/v1/models/device:predict", b"/v1/embeddings"])
def test_bodies_are_refused_at_once(target: Target, name: str, path: bytes):
    body, more = BODIES[name]
    said = target.ask(post(body, more, path))
    assert said.seconds < PROMPTLY_S
    assert said.closed or said.statuses, said
    assert set(said.statuses) <= {400, 404, 413, 415}, said
    assert len(said.data) < 5000
    assert not _INSIDES.search(said.data), said


def test_half_a_body_costs_its_sender_alone(target: Target):
    said = target.ask(post(BODY)[:-1])
    assert said.statuses == [408], said
