"""Headrace beside vLLM's own server, which serves the same model from the same options: each body
is sent to both, and statuses, fields, events and texts are compared.

`python tests/conformance/beside_vllm.py` prints what differs and is not meant (`MEANT`).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx

sys.path[:0] = [str(Path(__file__).parents[1] / "deployments"), str(Path(__file__).parents[2])]

from in_process import Stand, ask  # noqa: E402 - its folder is put on the path above

from deployments.control.supervisor import ports  # noqa: E402
from deployments.replica import backend_env  # noqa: E402
from examples import make_llm  # noqa: E402
from runtimes import options  # noqa: E402
from runtimes.types import RuntimeSettings  # noqa: E402
from runtimes.vllm.runtime import VLLMOptions, arguments  # noqa: E402
from tests.hostile.fuzz_generation import CONTEXT, OPTIONS, standing  # noqa: E402

_STARTS_S = 600.0
_ENDS_S = 20.0
_BETWEEN_S = 0.5
Fields = dict[str, Any]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
COUNT, TOKENIZE, DETOKENIZE = "/v1/messages/count_tokens", "/tokenize", "/detokenize"
CUT = 0
"""As a status: the connection ended within the answer."""
ADDED = {".store", ".response.store"}
"""Fields that Headrace's answers have besides: a response says that it is not kept."""

USER = [{"role": "user", "content": "the wheel turns"}]
TURNS = [*USER, {"role": "assistant", "content": "slowly"}, {"role": "user", "content": "why"}]
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
LOOSE = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
PARAMETERS = {"type": "object", "properties": {"by": {"enum": ["a", "b"]}}, "required": ["by"]}
TOOL = {"type": "function", "function": {"name": "turn", "parameters": PARAMETERS}}
FLAT = {"type": "function", "name": "turn", "parameters": PARAMETERS}
OWN = {"name": "turn", "input_schema": PARAMETERS}
GONE = ...
"""Of a field: it is left out."""
BASE: dict[str, Fields] = {
    CHAT: {"messages": USER, "max_tokens": 6, "temperature": 0},
    COMPLETIONS: {"prompt": "the wheel turns", "max_tokens": 6, "temperature": 0},
    MESSAGES: {"messages": USER, "max_tokens": 6, "temperature": 0},
    RESPONSES: {"input": "the wheel turns", "max_output_tokens": 6, "temperature": 0},
    COUNT: {"messages": USER},
    TOKENIZE: {"prompt": "the wheel turns"},
    DETOKENIZE: {"tokens": [5, 6, 7]},
}
_EVERYWHERE: list[Fields] = [
    {}, {"model": "nobody"}, {"model": ""}, {"model": 5}, {"model": GONE}, {"unknown": {"a": 1}},
]  # fmt: skip
_SAMPLED: list[Fields] = [
    {"temperature": 0.5, "seed": 3}, {"temperature": -1}, {"temperature": "warm"}, {"top_p": 0.5},
    {"top_p": 0}, {"top_p": 2}, {"top_k": 3}, {"top_k": -5}, {"top_k": 1.5}, {"stream": "x"},
    {"temperature": None, "top_p": None, "seed": 1, "top_k": 1},
]  # fmt: skip
_OPENAI: list[Fields] = [
    {"seed": 7}, {"seed": "a"}, {"stop": ["e"]}, {"stop": 5}, {"frequency_penalty": 1.0},
    {"frequency_penalty": 5}, {"presence_penalty": -3}, {"logit_bias": {"5": 1.0}},
    {"logit_bias": {"99999999": 1}}, {"logit_bias": {"a": 1}}, {"user": "u"}, {"user": 5},
]  # fmt: skip
TABLE: dict[str, list[Fields]] = {
    CHAT: [
        *_EVERYWHERE, *_SAMPLED, *_OPENAI, {"messages": TURNS}, {"messages": []},
        {"messages": GONE}, {"messages": "a"}, {"messages": [{"role": "user"}]},
        {"messages": [{"content": "a"}]}, {"messages": [{"role": "odd", "content": "a"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "nothing"}]}]},
        {"messages": [{"role": "user", "content": "a " * 600}]}, {"max_tokens": 0},
        {"max_tokens": -1}, {"max_tokens": 1000}, {"max_tokens": "6"}, {"max_completion_tokens": 3},
        {"n": 2, "temperature": 0.5, "seed": 1}, {"n": 0}, {"n": 200}, {"logprobs": True},
        {"logprobs": True, "top_logprobs": 2}, {"top_logprobs": 30, "logprobs": True},
        {"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "turn"}}},
        {"tools": [{}]}, {"tools": "a"}, {"tool_choice": "required"},
        {"response_format": {"type": "json_object"}}, {"response_format": {"type": "odd"}},
        {"response_format": {"type": "json_schema",
                             "json_schema": {"name": "a", "schema": SCHEMA}}},
        {"response_format": {"type": "json_schema",
                             "json_schema": {"name": "a", "schema": LOOSE}}},
        {"structured_outputs": {"choice": ["a", "b"]}}, {"structured_outputs": {"regex": "("}},
        {"stream_options": {"include_usage": True}}, {"ignore_eos": True}, {"min_tokens": 9},
    ],
    COMPLETIONS: [
        *_EVERYWHERE, *_SAMPLED, *_OPENAI, {"prompt": [5, 6, 7]}, {"prompt": ["a", "b"]},
        {"prompt": [[5, 6], [7]]}, {"prompt": []}, {"prompt": ""}, {"prompt": GONE},
        {"prompt": None}, {"prompt": 5}, {"prompt": [99_999_999]}, {"prompt": [-1]},
        {"prompt": "a " * 600}, {"max_tokens": 0}, {"max_tokens": -1}, {"max_tokens": 1000},
        {"max_tokens": GONE}, {"n": 2, "temperature": 0.5, "seed": 1}, {"n": 0}, {"n": 200},
        {"echo": True}, {"echo": "x"}, {"logprobs": 2}, {"logprobs": 30}, {"logprobs": -1},
        {"prompt_logprobs": 1}, {"suffix": "a"}, {"best_of": 2}, {"ignore_eos": True},
        {"response_format": {"type": "json_object"}}, {"structured_outputs": {"regex": "[ab]{3}"}},
        {"structured_outputs": {"regex": "a(?=b)"}}, {"truncate_prompt_tokens": 2},
        {"stream_options": {"include_usage": True}}, {"stop_token_ids": [5]},
    ],
    MESSAGES: [
        *_EVERYWHERE, *_SAMPLED, {"messages": TURNS}, {"messages": []}, {"messages": GONE},
        {"messages": "a"}, {"messages": [{"role": "user"}]}, {"messages": [{"content": "a"}]},
        {"messages": [{"role": "odd", "content": "a"}]}, {"system": "be brief"}, {"system": 5},
        {"system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "document"}]}]},
        {"messages": [{"role": "user", "content": [{"text": "a"}]}]},
        {"messages": [{"role": "user", "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png",
                                         "data": "AA"}}]}]},
        {"messages": [*USER, {"role": "assistant", "content": [
            {"type": "tool_use", "id": "1", "name": "turn", "input": {"by": "a"}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": "done"}]}]},
        {"messages": [{"role": "user", "content": "a " * 600}]}, {"messages": [*USER, {
            "role": "assistant", "content": [{"type": "thinking", "thinking": "hm",
                                              "signature": "s"}]}, *USER]},
        {"max_tokens": 0}, {"max_tokens": -1}, {"max_tokens": 1000}, {"max_tokens": "6"},
        {"max_tokens": GONE}, {"stop_sequences": ["e"]}, {"stop_sequences": "e"},
        {"metadata": {"user_id": "u"}}, {"metadata": "u"}, {"tools": [OWN]}, {"tools": [{}]},
        {"tools": [{"name": "turn"}]}, {"tools": [OWN], "tool_choice": {"type": "any"}},
        {"tools": [OWN], "tool_choice": {"type": "tool", "name": "turn"}, "max_tokens": 60},
        {"tools": [OWN], "tool_choice": {"type": "tool"}},
        {"tools": [OWN], "tool_choice": {"type": "none"}},
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {"output_config": {"format": {"type": "json_schema", "schema": LOOSE}}},
        {"thinking": {"type": "disabled"}}, {"thinking": {"type": "enabled", "budget_tokens": 5}},
        {"thinking": {"type": "adaptive"}}, {"container": "c"}, {"service_tier": "auto"},
    ],
    RESPONSES: [
        *_EVERYWHERE, *_SAMPLED, *_OPENAI, {"input": USER}, {"input": TURNS}, {"input": []},
        {"input": GONE}, {"input": 5}, {"input": [{"role": "odd", "content": "a"}]},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}]},
        {"input": [{"role": "user", "content": [{"type": "nothing"}]}]},
        {"input": [*USER, {"type": "function_call", "call_id": "1", "name": "turn",
                           "arguments": "{}"},
                   {"type": "function_call_output", "call_id": "1", "output": "done"}]},
        {"input": [{"type": "message", "role": "assistant", "id": "m", "status": "completed",
                    "content": [{"type": "output_text", "text": "a", "annotations": []}]}, *USER]},
        {"input": [{"type": "item_reference", "id": "i"}]}, {"input": "a " * 600},
        {"instructions": "be brief"}, {"instructions": 5}, {"max_output_tokens": 0},
        {"max_output_tokens": -1}, {"max_output_tokens": 1000}, {"max_output_tokens": GONE,
                                                                "stop": ["e"]},
        {"store": False}, {"store": True}, {"store": None}, {"background": True},
        {"previous_response_id": "resp_1"}, {"conversation": "c"}, {"prompt": {"id": "p"}},
        {"truncation": "auto"}, {"truncation": "odd"}, {"metadata": {"a": "b"}},
        {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
        {"include": ["odd"]}, {"top_logprobs": 30}, {"text": {"format": {"type": "text"}}},
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}},
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": LOOSE}}},
        {"text": {"format": {"type": "odd"}}}, {"tools": [FLAT]}, {"tools": [{}]},
        {"tools": [FLAT], "tool_choice": "required", "max_output_tokens": 60},
        {"tools": [FLAT], "tool_choice": {"type": "function", "name": "turn"}},
        {"tools": [{"type": "web_search"}]}, {"tool_choice": "required"},
        {"reasoning": {"effort": "low"}}, {"service_tier": "auto"}, {"ignore_eos": True},
    ],
    COUNT: [
        *_EVERYWHERE, {"messages": TURNS}, {"messages": []}, {"messages": GONE},
        {"system": "be brief"}, {"tools": [OWN]}, {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": "a " * 600}]},
    ],
    TOKENIZE: [
        *_EVERYWHERE, {"prompt": ""}, {"prompt": GONE, "messages": TURNS}, {"prompt": GONE},
        {"prompt": 5}, {"prompt": "a " * 600}, {"return_token_strs": True},
        {"add_special_tokens": False}, {"prompt": "a<|end|>b"},
    ],
    DETOKENIZE: [
        *_EVERYWHERE, {"tokens": []}, {"tokens": GONE}, {"tokens": [99_999_999]}, {"tokens": [-1]},
        {"tokens": "a"}, {"tokens": [1.5]},
    ],
}  # fmt: skip


_NAMED_BY_CALLERS = (CHAT, COMPLETIONS, RESPONSES, TOKENIZE, DETOKENIZE)
MEANT: list[tuple[tuple[str, ...], Fields, str]] = [
    # Which of many models is asked for must be said.
    (_NAMED_BY_CALLERS, {"model": ""}, "400 for 200"),
    (_NAMED_BY_CALLERS, {"model": GONE}, "400 for 200"),
    # What nothing is known of is not passed on; messages have no seed.
    ((*_NAMED_BY_CALLERS, MESSAGES, COUNT), {"unknown": {"a": 1}}, "400 for 200"),
    ((MESSAGES,), {"temperature": 0.5, "seed": 3}, "400 for 200"),
    ((MESSAGES,), {"temperature": None, "top_p": None, "seed": 1, "top_k": 1}, "400 for 200"),
    # Bounded also where nothing includes them.
    ((RESPONSES,), {"top_logprobs": 30}, "400 for 200"),
    # What the gateway counts with must be a number.
    ((CHAT, MESSAGES), {"max_tokens": "6"}, "400 for 200"),
    # A grammar would leave it out in silence.
    ((CHAT,), {"response_format": {"type": "json_schema",
                                   "json_schema": {"name": "a", "schema": LOOSE}}}, "400 for 200"),
    ((MESSAGES,), {"output_config": {"format": {"type": "json_schema", "schema": LOOSE}}},
     "400 for 200"),
    ((RESPONSES,), {"text": {"format": {"type": "json_schema", "name": "a", "schema": LOOSE}}},
     "400 for 200"),
    # Nothing is kept, and the server runs no tools: vLLM ignores all but the second.
    ((RESPONSES,), {"store": True}, "400 for 200"),
    ((RESPONSES,), {"previous_response_id": "resp_1"}, "400 for 404"),
    ((RESPONSES,), {"conversation": "c"}, "400 for 200"),
    ((RESPONSES,), {"tools": [{"type": "web_search"}]}, "400 for 200"),
    ((MESSAGES,), {"container": "c"}, "400 for 200"),
    # Special tokens that a text names stay text.
    ((TOKENIZE,), {"prompt": "a<|end|>b"}, "other texts"),
]  # fmt: skip
# vLLM begins a stream before the engine has looked at the request, and cuts the connection.
CUT_STREAMS = ((RESPONSES,), {"logit_bias": {"99999999": 1}}, "400 for 0")


class Body(NamedTuple):
    path: str
    fields: Fields  # what differs from the path's base
    stream: bool

    @property
    def name(self) -> str:
        shown = {k: "(left out)" if v is GONE else v for k, v in self.fields.items()}
        return f"{self.path} {json.dumps(shown)[:200]}{' streamed' * self.stream}"

    @property
    def raw(self) -> bytes:
        fields = {"model": "chat", **BASE[self.path], **self.fields}
        if self.stream and "stream" not in fields:
            fields["stream"] = True
        return json.dumps({k: v for k, v in fields.items() if v is not GONE}).encode()


class Said(NamedTuple):
    """`shape`: the fields of an answer, or its events' with their order."""

    status: int
    shape: Any = None
    text: str = ""


def bodies() -> Iterator[Body]:
    for path, table in TABLE.items():
        for stream in (False, True):
            if stream and path in (COUNT, TOKENIZE, DETOKENIZE):
                continue
            yield from (Body(path, fields, stream) for fields in table)


def fields_of(page: Any, at: str = "") -> set[str]:
    """Where values are."""
    if isinstance(page, dict):
        inside = [fields_of(each, f"{at}.{name}") for name, each in page.items()]
    elif isinstance(page, list):
        inside = [fields_of(each, at) for each in page]
    else:
        return {at}
    return {at}.union(*inside) - ADDED


def _texts(page: Any) -> Iterator[str]:
    """Of an answer or an event, in order."""
    if isinstance(page, dict):
        kind = page.get("type")
        if kind in ("response.created", "response.in_progress", "response.completed") or (
            kind is not None and str(kind).endswith(".done")
        ):
            return
        for name in ("text", "content", "delta", "arguments", "partial_json", "prompt"):
            if isinstance(page.get(name), str):
                yield page[name]
        for name in ("choices", "message", "delta", "content", "output", "tool_calls", "function",
                     "input", "tokens"):  # fmt: skip
            if isinstance(page.get(name), dict | list):
                yield from _texts(page[name])
    elif isinstance(page, list):
        for each in page:
            yield from [str(each)] if isinstance(each, int) else _texts(each)


def said(status: int, body: bytes) -> Said:
    if status != 200:
        return Said(status)
    if not body.startswith((b"data:", b"event:")):
        page = json.loads(body)
        return Said(status, frozenset(fields_of(page)), "".join(_texts(page)))
    kinds: list[str] = []
    found: dict[str, set[str]] = {}
    texts: dict[int, str] = {}  # by the index of the choice
    for event in body.split(b"\n\n"):
        name, data = "", event
        if event.startswith(b"event:"):
            first, _, data = event.partition(b"\n")
            name = first.removeprefix(b"event:").decode().strip()
        if not data.startswith(b"data:"):
            continue
        data = data.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            name, page = "[DONE]", None
        else:
            page = json.loads(data)
        if isinstance(page, dict) and "error" in page:
            return Said(int(page["error"].get("code") or 400))  # vLLM's refusals within a stream
        if not kinds or kinds[-1] != name:
            kinds.append(name)
        found.setdefault(name, set()).update(fields_of(page))
        choices = page.get("choices") if isinstance(page, dict) else None
        index = choices[0]["index"] if choices else 0
        texts[index] = texts.get(index, "") + "".join(_texts(page))
    shape = tuple(kinds), tuple(sorted((k, tuple(sorted(v))) for k, v in found.items()))
    return Said(status, shape, "".join(texts[index] for index in sorted(texts)))


@contextmanager
def own_server(folder: Path) -> Iterator[str]:
    """The URL of vLLM's own."""
    settings = RuntimeSettings(
        "chat", "vllm", make_llm.make(folder / "llm"), folder / "cache", task="generate",
        max_length=CONTEXT, options=OPTIONS["vllm"], threads=1,
    )  # fmt: skip
    environ = {**os.environ, "VLLM_LOGGING_LEVEL": "CRITICAL"}
    backend_env.set_engine_variables(settings, environ)
    port = ports.any_free()
    given = arguments(settings, options.parse(VLLMOptions, settings.options))
    place = ["--host", "127.0.0.1", "--port", str(port), "--disable-uvicorn-access-log"]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *given, *place]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            command, env=environ, stdout=log, stderr=log, start_new_session=True
        )
    try:
        _until_up(f"http://127.0.0.1:{port}", server, folder / "log")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        with suppress(subprocess.TimeoutExpired):
            server.wait(_ENDS_S)
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)  # and its engine, which is another process
        server.wait()


def _until_up(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _STARTS_S
    while time.monotonic() < end and server.poll() is None:
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(_BETWEEN_S)
    raise RuntimeError(f"vLLM's own server does not start: {log.read_text()[-2000:]}")


@asynccontextmanager
async def both() -> AsyncIterator[tuple[Stand, httpx.AsyncClient]]:
    with tempfile.TemporaryDirectory() as folder, own_server(Path(folder)) as url:
        async with standing("vllm") as stand, httpx.AsyncClient(base_url=url, timeout=60) as own:
            yield stand, own


async def compared(stand: Stand, own: httpx.AsyncClient, body: Body) -> tuple[Said, Said]:
    """What ours says, and what theirs."""
    kind = {"content-type": "application/json"}
    ours = await ask(stand.app, "POST", body.path, (), body.raw, pieces=True)
    try:
        theirs = await own.post(body.path, content=body.raw, headers=kind)
        other = said(theirs.status_code, theirs.content)
    except httpx.RemoteProtocolError:
        other = Said(CUT)
    return said(ours.status, ours.body), other


def meant(body: Body) -> str:
    """How the answers to it are to differ; "": not at all."""
    table = [*MEANT, CUT_STREAMS] if body.stream else MEANT
    found = (how for paths, fields, how in table if (body.path in paths) and fields == body.fields)
    return next(found, "")


def differs(one: Said, other: Said) -> str:
    """How; "": not at all."""
    if one.status != other.status:
        return f"{one.status} for {other.status}"
    if one.shape != other.shape:
        return "other fields"
    return "other texts" if one.text != other.text else ""


async def main() -> None:
    count = 0
    async with both() as (stand, own):
        for body in bodies():
            one, other = await compared(stand, own, body)
            count += 1
            how = differs(one, other)
            if how != meant(body):
                print(f"{body.name}: {how}", flush=True)
                if how.startswith("other"):
                    print(f"    {one}\n    {other}")
    print(f"{count} bodies")


if __name__ == "__main__":
    asyncio.run(main())
