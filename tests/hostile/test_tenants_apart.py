"""What one tenant learns of another, or uses of its: nothing, through HAProxy and at a gateway.

A model of somebody else's and one that is not there are answered alike, byte for byte but for the
name. Nothing in a body or a header chooses another model, tenant, cache or salt than the path, the
key and the checked name do. Source: vLLM CVE-2025-46570; OpenAI, 2023-03-20; LiteLLM and vLLM
guides on model access; RFC 8259 §4 (equal names).
"""

from __future__ import annotations

import gzip
import json
import re
import threading
from dataclasses import replace

import pytest
from keyed import ACME, OTHER, Keyed, bearer
from raw_http import BODY, INFER, Said, Target, head, post

CLOSE = b"connection: close\r\n"
MINE = bearer(ACME) + b"\r\n" + CLOSE
YOURS = bearer(OTHER) + b"\r\n" + CLOSE
_OWN = re.compile(
    rb'(?im)^(date|x-request-id|request-id|traceparent): [^\r\n]*\r\n|"request_id":"[^"]*"'
)

# Forbidden to acme, and absent; as long as each other.
PAIRS = [(b"theirs", b"absent"), (b"secrets", b"nothing"), (b"chat:sql", b"chat:abc")]
PATHS = [
    (b"GET", b"/v2/models/%b"), (b"GET", b"/v2/models/%b/ready"), (b"GET", b"/v1/models/%b"),
    (b"GET", b"/v2/models/%b/versions/1"), (b"GET", b"/v2/models/%b/versions/1/ready"),
    (b"HEAD", b"/v2/models/%b"), (b"POST", b"/v2/models/%b/infer"),
    (b"POST", b"/v2/models/%b/versions/1/infer"), (b"POST", b"/v1/models/%b:predict"),
    (b"POST", b"/v1/models/%b:classify"), (b"PUT", b"/v2/models/%b"), (b"GET", b"/v2/models/%b/x"),
    (b"DELETE", b"/v2/models/%b/infer"), (b"POST", b"/v2/repository/models/%b/unload"),
]  # fmt: skip
BODIES = {
    "good": (BODY, b""),
    "empty": (b"", b""),
    "malformed": (b"{", b""),
    "large": (b" " * 300_000, b""),
    "too large": (b"", b"content-length: 500000\r\n"),
    "gzip": (gzip.compress(BODY), b"content-encoding: gzip\r\n"),
    "another encoding": (BODY, b"content-encoding: br\r\n"),
    "a wrong header": (BODY, b"x-timeout-ms: soon\r\n"),
    "late": (BODY, b"x-timeout-ms: 0.001\r\n"),
}  # fmt: skip


def alike(one: Said, name: bytes, other: Said, its: bytes) -> bool:
    """But for the name, and what is each answer's own."""
    assert len(name) == len(its)
    return _OWN.sub(b"", one.data).replace(name, its) == _OWN.sub(b"", other.data)


def of(path: bytes, method: bytes, body: bytes, more: bytes) -> bytes:
    if b"content-length" in more:
        return head(MINE[:-2] + b"\r\n" + more[:-2], method=method, path=path)
    return post(body, MINE + more, path).replace(b"POST", method, 1)


@pytest.mark.parametrize(("forbidden", "absent"), PAIRS)
@pytest.mark.parametrize(("method", "path"), PATHS)
def test_anothers_model_is_as_one_that_is_not_there(
    locked: Target, method: bytes, path: bytes, forbidden: bytes, absent: bytes
) -> None:
    one, other = (
        locked.ask(post(BODY, MINE, path % name).replace(b"POST", method, 1))
        for name in (forbidden, absent)
    )
    assert one.statuses in ([404], [405]), one
    assert alike(one, forbidden, other, absent), (one, other)


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("path", [b"/v2/models/%b/infer", b"/v1/models/%b:predict"])
def test_no_body_tells_it_from_one_that_is_not_there(
    locked: Target, path: bytes, name: str
) -> None:
    one, other = (
        locked.ask(of(path % model, b"POST", *BODIES[name])) for model in (b"theirs", b"absent")
    )
    assert one.statuses, one
    assert alike(one, b"theirs", other, b"absent"), (one, other)


NAMED = {
    "embeddings": (b"/v1/embeddings", b'{"model": "%b", "input": [[1, 2]]}'),
    "completions": (b"/v1/completions", b'{"model": "%b", "prompt": "a"}'),
    "chat": (b"/v1/chat/completions", b'{"model": "%b", "messages": [{"role": "user"}]}'),
    "messages": (
        b"/v1/messages",
        b'{"model": "%b", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]}',
    ),
    "counts": (
        b"/v1/messages/count_tokens",
        b'{"model": "%b", "messages": [{"role": "user", "content": "a"}]}',
    ),
    "responses": (b"/v1/responses", b'{"model": "%b", "input": "a"}'),
    "tokens": (b"/tokenize", b'{"model": "%b", "prompt": "a"}'),
    "texts": (b"/detokenize", b'{"model": "%b", "tokens": [1]}'),
    "a stream": (b"/v1/completions", b'{"model": "%b", "prompt": "a", "stream": true}'),
    "another shape": (b"/v1/embeddings", b'{"model": "%b", "input": "a", "dimensions": 7}'),
}


@pytest.mark.parametrize(("forbidden", "absent"), PAIRS)
@pytest.mark.parametrize("name", NAMED)
def test_nor_where_the_body_names_it(
    locked: Target, name: str, forbidden: bytes, absent: bytes
) -> None:
    path, body = NAMED[name]
    one, other = (locked.ask(post(body % model, MINE, path)) for model in (forbidden, absent))
    assert one.statuses == [404], one
    assert alike(one, forbidden, other, absent), (one, other)


INSTEAD = [b'"model": "theirs"', b'"model_name": "theirs"', b'"id": "theirs"',
           b'"parameters": {"model": "theirs"}', b'"model_version": "1"']  # fmt: skip


@pytest.mark.parametrize("field", INSTEAD)
@pytest.mark.parametrize("key", ["mine", "yours"])
def test_a_body_names_no_other_model_than_the_path(
    locked: Target, keyed: Keyed, field: bytes, key: str
) -> None:
    ran = len(keyed.stand.channels["theirs"].calls)
    body = b"{" + field + b", " + BODY[1:]
    path = INFER if key == "mine" else INFER.replace(b"device", b"shared")
    said = locked.ask(post(body, MINE if key == "mine" else YOURS, path))
    assert said.statuses in ([200], [400]), said
    assert b'"model_name":"theirs"' not in said.data
    assert len(keyed.stand.channels["theirs"].calls) == ran


# The name that is checked is the one that the engine reads; all are refused to acme.
ASKED = [
    b'"model": "chat", "model": "chat:sql"', b'"model": "chat", "\\u006dodel": "chat:sql"',
    b'"model": "chat:sql "', b'"model": " chat:sql"', b'"model": "chat:sql\\u0000"',
    b'"model": "chat::sql"', b'"model": "chat:*"', b'"model": "chat:"', b'"model": "Chat"',
    b'"model": "chat/sql"', b'"model": "\xef\xbd\x83hat"', b'"model": ["chat", "chat:sql"]',
    b'"model": "chat", "lora": "sql"',
    b'"model": {"id": "chat"}', b'"model": null', b'"model": ""', b'"MODEL": "chat"',
]  # fmt: skip


@pytest.mark.parametrize("asked", ASKED)
def test_no_spelling_of_a_name_reaches_an_adapter(
    locked: Target, keyed: Keyed, asked: bytes
) -> None:
    begun = len(keyed.engines.begun)
    said = locked.ask(post(b'{"prompt": "a", %b}' % asked, MINE, b"/v1/completions"))
    if asked == b'"model": "chat:"':  # the model itself
        assert said.statuses == [200]
        return
    assert set(said.statuses) <= {400, 404}, said
    assert len(keyed.engines.begun) == begun


@pytest.mark.parametrize(
    "asked", [b'"model": "chat:sql", "model": "chat"', b'"model": "chat", "session_id": "sql"']
)
def test_the_engine_reads_the_name_that_was_checked(
    locked: Target, keyed: Keyed, asked: bytes
) -> None:
    said = locked.ask(post(b'{"prompt": "a", %b}' % asked, MINE, b"/v1/completions"))
    assert said.statuses == [200], said
    assert json.loads(keyed.engines.begun[-1].call.body)["model"] == "chat"


@pytest.mark.parametrize("beside", [b"", b"x-tenant: other\r\n", b"x-session-id: other\r\n"])
@pytest.mark.parametrize("salt", [b"", b', "cache_salt": "other"', b', "user": "other"'])
def test_prompts_are_found_by_ones_own_tenant_alone(
    locked: Target, keyed: Keyed, salt: bytes, beside: bytes
) -> None:
    body = b'{"model": "chat", "prompt": "a"%b}' % salt
    assert locked.ask(post(body, MINE + beside, b"/v1/completions")).statuses == [200]
    assert keyed.engines.begun[-1].call.salt == "acme"
    yours = body.replace(b'"chat"', b'"chat:sql"')
    assert locked.ask(post(yours, YOURS + beside, b"/v1/completions")).statuses == [200]
    assert keyed.engines.begun[-1].call.salt == "other"


BESIDE = [
    b"", b"x-tenant: acme\r\n", b"cache-control: only-if-cached\r\n", b"if-none-match: *\r\n",
    b"x-session-id: acme\r\n", b"idempotency-key: 1\r\n",
]  # fmt: skip


@pytest.mark.parametrize("beside", BESIDE)
def test_kept_answers_are_the_tenants_own(locked: Target, beside: bytes) -> None:
    path = INFER.replace(b"device", b"shared")
    # Another input for each case: the stand is everybody's.
    data = b"[%d, %d]" % (BESIDE.index(beside), len(locked.name))
    body = BODY.replace(b"[4, 5]", data)
    caches = [
        re.findall(rb"x-cache: (\w+)", locked.ask(post(body, caller, path)).data)
        for caller in (MINE, MINE, YOURS + beside, YOURS + beside)
    ]
    assert caches == [[b"miss"], [b"hit"], [b"miss"], [b"hit"]]


def test_runs_under_way_are_the_tenants_own(locked: Target) -> None:
    """Four ask for the same at once; each shares its tenant's run, none the other tenant's."""
    path = INFER.replace(b"device", b"slow")
    said: list[tuple[bytes, Said]] = []
    callers = [MINE, YOURS] * 2

    def ask(caller: bytes) -> None:
        said.append((caller, locked.ask(post(BODY, caller, path))))

    threads = [threading.Thread(target=ask, args=(caller,)) for caller in callers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(answer.statuses == [200] for _, answer in said)
    for caller in (MINE, YOURS):
        shared = [b"x-coalesced: true" in answer.data for who, answer in said if who == caller]
        assert sorted(shared) == [False, True]


@pytest.mark.parametrize("key", [ACME, OTHER])
def test_lists_name_ones_own_models_alone(locked: Target, key: str) -> None:
    allowed = {ACME: {"device", "vectors", "shared", "slow", "chat"},
               OTHER: {"theirs", "secrets", "shared", "slow", "chat", "chat:sql"}}[key]  # fmt: skip
    others = {"device", "vectors", "theirs", "secrets"} - allowed
    who = replace(locked, says=bearer(key) + b"\r\n" + CLOSE)
    pages = [(b"GET", b"/v1/models"), (b"GET", b"/openapi.json"), (b"GET", b"/readyz"),
             (b"POST", b"/v2/repository/index"), (b"GET", b"/docs"), (b"GET", b"/v2")]  # fmt: skip
    for method, path in pages:
        said = who.ask(head(b"content-length: 0", method=method, path=path), idle_s=0.3)
        assert said.statuses == [200], said
        assert not [name for name in others if b'"%b"' % name.encode() in said.data]
    listed = who.ask(head(method=b"GET", path=b"/v1/models")).data.partition(b"\r\n\r\n")[2]
    assert {each["id"] for each in json.loads(listed)["data"]} == allowed
