"""Repeated headers, foreign Hosts and foreign pages, as one request's headers have them."""

from __future__ import annotations

import pytest
from uvicorn._types import HTTPScope

from deployments.contract.errors import BadRequest, Forbidden
from deployments.gateway.http.exchange import Exchange
from deployments.gateway.http.request_head import HeadChecks

INFER = "/v2/models/device/infer"


def checked(
    method: str = "POST",
    path: str = INFER,
    *,
    allowed: tuple[str, ...] = (),
    open_to_all: bool = True,
    **headers: str,
) -> None:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    check(HeadChecks(allowed, lambda: open_to_all), raw, method, path)


def check(
    checks: HeadChecks, raw: list[tuple[bytes, bytes]], method: str = "POST", path: str = INFER
) -> None:
    scope: HTTPScope = {  # type: ignore[typeddict-item]
        "type": "http", "method": method, "raw_path": path.encode(), "headers": raw,
    }  # fmt: skip
    checks.check(Exchange(scope, None, None), raw)  # type: ignore[arg-type]


OURS = (
    "127.0.0.1:8000", "127.0.0.1", "10.1.2.3:80", "[::1]:8000", "localhost:8000", "LOCALHOST",
    "app.localhost", "gateway", "headrace:8000", "headrace.serving.svc", "a.b.svc.cluster.local:80",
    "ip-10-0-0-7.eu-west-1.compute.internal", "localhost.", "box.local:8000", "box.lan",
)  # fmt: skip


@pytest.mark.parametrize("host", OURS)
def test_names_that_no_page_can_point_here_are_taken(host):
    for path in (INFER, "/metrics", "/admin/status"):
        checked(host=host, path=path)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.nip.io", "1.2.3.4.5", "svc.evil.org"]
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("path", [INFER, "/v1/models", "/metrics", "/admin/status", "/docs"])
def test_a_name_that_points_here_only_because_somebody_made_it_is_refused(host, method, path):
    with pytest.raises(Forbidden, match=r"gateway\.allowed_hosts"):
        checked(method, path, host=host)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"])
def test_health_is_told_to_whoever_asks_by_whatever_name(path):
    checked("GET", path, host="models.example.org")


@pytest.mark.parametrize(
    ("allowed", "host"),
    [
        (("llm.example.org",), "llm.example.org:443"),
        (("llm.example.org",), "LLM.example.org"),
        (("*.example.org",), "a.b.example.org"),
        (("*",), "evil.example"),
    ],
)
def test_names_that_the_settings_list_are_taken(allowed, host):
    checked(allowed=allowed, host=host)


@pytest.mark.parametrize("host", ["example.org", "llm.example.org.evil.example", "aexample.org"])
def test_a_listed_name_is_no_other(host):
    with pytest.raises(Forbidden):
        checked(allowed=("*.example.org", "llm.example.org"), host=host)


@pytest.mark.parametrize("host", ["a/b?c", "a b", "a@b", "", "[::1", "x:y", "a,b", "a:123456"])
def test_a_host_that_is_none_is_malformed(host):
    with pytest.raises(BadRequest, match="Host header"):
        checked(host=host)


@pytest.mark.parametrize("host", ["evil.example", "a/b?c"])
def test_where_keys_are_needed_any_host_will_do(host):
    checked(host=host, open_to_all=False, authorization="Bearer hr_1")


FOREIGN = [
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": "http://localhost:3000"},
    {"origin": "http://localhost:8000.evil.example"},
    {"origin": "localhost:8000"},
    {"sec_fetch_site": "cross-site"},
    {"sec_fetch_site": "same-site"},
]


@pytest.mark.parametrize("said", FOREIGN)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_a_page_of_another_origin_runs_and_changes_nothing(said, method):
    with pytest.raises(Forbidden, match="cross-origin request refused"):
        checked(method, host="localhost:8000", **said)


@pytest.mark.parametrize("said", FOREIGN)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
@pytest.mark.parametrize("open_to_all", [True, False])
def test_a_page_of_another_origin_gets_nothing_of_the_operators(said, method, open_to_all):
    with pytest.raises(Forbidden, match="cross-origin request refused"):
        checked(method, "/admin/status", host="localhost:8000", open_to_all=open_to_all, **said)


@pytest.mark.parametrize("said", FOREIGN)
def test_a_foreign_page_may_look_since_it_cannot_read(said):
    checked("GET", "/v1/models", host="localhost:8000", **said)


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"origin": "http://localhost:8000"},
        {"origin": "http://localhost:8000", "sec_fetch_site": "same-origin"},
        {"sec_fetch_site": "none"},
        {"origin": "https://app.example.org", "sec_fetch_site": "cross-site"},
    ],
)
def test_own_and_listed_pages_may_ask(said):
    checked(host="localhost:8000", allowed=("app.example.org",), **said)


@pytest.mark.parametrize(
    "name", ["authorization", "x-tenant", "host", "content-encoding", "x-timeout-ms", "origin"]
)
@pytest.mark.parametrize("open_to_all", [True, False])
def test_what_says_who_or_how_stands_there_once(name, open_to_all):
    twice = [(name.encode(), b"localhost"), (b"x-more", b"1"), (name.encode(), b"localhost")]
    with pytest.raises(BadRequest, match=f"duplicate header {name}"):
        check(HeadChecks((), lambda: open_to_all), twice, "GET", "/v1/models")


def test_other_headers_may_stand_there_twice():
    check(HeadChecks((), lambda: True), [(b"x-more", b"1")] * 2)


def test_keys_that_come_later_end_the_check():
    needed = False
    checks = HeadChecks((), lambda: not needed)
    with pytest.raises(Forbidden):
        check(checks, [(b"host", b"evil.example")])
    needed = True
    check(checks, [(b"host", b"evil.example")])
