"""The page at `/docs` and the files it shows itself with, all of which the gateway serves."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urljoin

import pytest
from in_process import Stand, ask, standing


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    async with standing({}, tmp_path) as stand:
        yield stand


async def test_the_page_needs_only_what_the_gateway_serves(stand: Stand) -> None:
    page = (await ask(stand.app, "GET", "/docs")).body.decode()
    assert page.startswith("<!doctype html>")
    assert "//" not in page  # no address elsewhere
    assert "validatorUrl: null" in page
    named = re.findall(r'(?:src|href)="([^"]+)"', page)
    named += re.findall(r'fetch\("([^"]+)"\)', page)
    assert len(named) == 5
    for path in named:
        assert (await ask(stand.app, "GET", f"/{path}")).status == 200, path


@pytest.mark.parametrize(
    ("name", "media", "begins"),
    [
        ("swagger-ui.css", b"text/css", b".swagger-ui"),
        ("swagger-ui-bundle.js", b"text/javascript; charset=utf-8", b"/*!"),
        ("favicon.png", b"image/png", b"\x89PNG"),
    ],
)
async def test_each_file_has_its_type_and_may_be_kept(
    stand: Stand, name: str, media: bytes, begins: bytes
) -> None:
    answer = await ask(stand.app, "GET", f"/docs/{name}")
    assert (answer.status, answer.header(b"content-type")) == (200, media)
    assert answer.header(b"cache-control") == b"max-age=86400"
    assert answer.body.startswith(begins)


@pytest.mark.parametrize(
    "path", ["/docs/", "/docs/redoc.standalone.js", "/docs/../pages.py", "/docs/nothing"]
)
async def test_nothing_else_of_the_package_is_served(stand: Stand, path: str) -> None:
    assert (await ask(stand.app, "GET", path)).status == 404


@pytest.mark.parametrize(
    ("prefix", "asked"),
    [
        (None, "https://example.com/v2"),
        (b"/", "https://example.com/v2"),
        (b"/api", "https://example.com/api/v2"),
        (b"/a/b-c.d/", "https://example.com/a/b-c.d/v2"),
        (b"//evil.example", "https://example.com/v2"),
        (b"/../x", "https://example.com/v2"),
        (b"/a?b", "https://example.com/v2"),
        (b"https://evil.example", "https://example.com/v2"),
    ],
)
async def test_the_document_leads_where_it_came_from(
    stand: Stand, prefix: bytes | None, asked: str
) -> None:
    """By scheme and host of the document's own address, and below the prefix that a proxy names."""
    headers = [] if prefix is None else [(b"x-forwarded-prefix", prefix)]
    document = json.loads((await ask(stand.app, "GET", "/openapi.json", headers)).body)
    (server,) = document["servers"]
    found = urljoin("https://example.com/anywhere/openapi.json", server["url"])
    assert found.rstrip("/") + "/v2" == asked


async def test_files_are_only_read(stand: Stand) -> None:
    assert (await ask(stand.app, "POST", "/docs/swagger-ui.css")).status == 405
    head = await ask(stand.app, "HEAD", "/docs/swagger-ui.css")
    assert (head.status, head.body) == (200, b"")


@pytest.mark.parametrize(
    ("said", "url"),
    [
        ({"host": "llm.example.org"}, "http://llm.example.org"),
        ({"host": "llm.example.org", "proto": "https"}, "https://llm.example.org"),
        ({"host": "a, b:8443", "proto": "https", "prefix": "/api"}, "https://b:8443/api"),
        ({"host": "[::1]:8000"}, "http://[::1]:8000"),
        ({"proto": "https"}, "/"),
        ({"proto": "https", "prefix": "/api"}, "/api"),
        ({"host": "a/b"}, "/"),
        ({"host": "user@evil"}, "/"),
        ({"host": "a", "proto": "javascript"}, "/"),
    ],
)
async def test_the_document_names_scheme_and_host_where_a_proxy_does(
    stand: Stand, said: dict[str, str], url: str
) -> None:
    headers = [(f"x-forwarded-{name}".encode(), value.encode()) for name, value in said.items()]
    document = json.loads((await ask(stand.app, "GET", "/openapi.json", headers)).body)
    assert document["servers"] == [{"url": url}]


async def test_what_is_not_found_names_the_path_that_was_asked_for(stand: Stand) -> None:
    answer = await ask(stand.app, "GET", "/nowhere", [(b"x-forwarded-prefix", b"/api")])
    assert b"no such path: /api/nowhere; GET /api/docs lists the API" in answer.body
