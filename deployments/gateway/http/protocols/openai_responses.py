"""OpenAI's `/v1/responses`: what a gateway has to know of a request.

As `openai_generation`, which also says what is done with a call: the engine gets the caller's own
bytes. Nothing is kept between requests, so what would need that (`store`, `previous_response_id`,
`background`, conversations, references to items and files) is refused by name, and so are tools
that the server itself would run. A request that says nothing of `store` is sent on with false.

Source: OpenAI API reference, "Create a model response"; vLLM's `openai/responses/protocol.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from deployments.contract.errors import BadRequest
from deployments.gateway.http.protocols import json_body
from deployments.gateway.http.protocols.generation_fields import (
    RESPONSES_FIELDS,
    checked,
    is_given,
    unread_tokens,
)
from deployments.gateway.http.protocols.openai_generation import (
    FORM,
    MESSAGE_TOKENS,
    MODEL,
    USER,
    Beside,
    GenerationCall,
    Size,
    check_form,
    text_of,
)
from deployments.gateway.http.protocols.tensors import documented

_OUTPUT = documented("A text, or its parts.", type=["string", "array", "null"])
_STORE = documented("Nothing is kept here: must be false.", const=False)
_TOP = documented("Of each output token.", type=["integer", "null"], minimum=0)


class ResponsePart(msgspec.Struct, gc=False):
    text: str | None = None
    refusal: str | None = None


class ResponseItem(msgspec.Struct, gc=False):
    """A message, a call of a function, or what that has answered."""

    type: str | None = None
    role: str | None = None
    content: str | list[ResponsePart] | None = None
    arguments: str | None = None
    input: str | None = None
    output: Annotated[msgspec.Raw, _OUTPUT] = msgspec.field(default_factory=msgspec.Raw)


class ResponseTool(msgspec.Struct, gc=False):
    type: str
    name: str | None = None


class ResponsesRequest(msgspec.Struct, gc=False):
    model: Annotated[str, MODEL]
    input: str | list[ResponseItem] | None = None
    instructions: str | None = None
    max_output_tokens: Size | None = None
    stream: bool | None = None
    store: Annotated[bool | None, _STORE] = None
    background: Annotated[bool | None, _STORE] = None
    include: list[str] | None = None
    truncation: str | None = None
    user: Annotated[str | None, USER] = None
    tools: list[ResponseTool] | None = None
    text: Annotated[msgspec.Raw, FORM] = msgspec.field(default_factory=msgspec.Raw)
    structured_outputs: Annotated[msgspec.Raw, FORM] = msgspec.field(default_factory=msgspec.Raw)
    top_logprobs: Annotated[msgspec.Raw, _TOP] = msgspec.field(default_factory=msgspec.Raw)


_requests: msgspec.json.Decoder[ResponsesRequest] = msgspec.json.Decoder(ResponsesRequest)
_APART = frozenset(
    {"role", "content", "type", "text", "refusal", "arguments", "input", "output", "status",
     "annotations", "logprobs", "detail"}
)  # fmt: skip
_KEPT = "nothing is kept here; send what it stands for"
_OWN_TOOLS = ("function", "custom", "namespace")
_LOGPROBS = "message.output_text.logprobs"


def decode(body: bytes) -> GenerationCall:
    """Raises `BadRequest`, which names the parameter at fault."""
    request = json_body.read(_requests, body)
    given = checked(body, RESPONSES_FIELDS)
    _check_keeps_nothing(request)
    for name in ("text", "structured_outputs"):
        check_form(name, getattr(request, name))
    if request.input is None:
        raise BadRequest("input is missing.", param="input")
    beside = Beside(_APART)
    beside.take(given["input"], "input")
    items = request.input if isinstance(request.input, list) else [None]
    extra = MESSAGE_TOKENS * (len(items) + 2) + beside.tokens
    extra += unread_tokens(given, RESPONSES_FIELDS)
    model, _, adapter = request.model.partition(":")
    listed = _LOGPROBS in (request.include or ())
    logprobs = 1 + json_body.count_of(request.top_logprobs) if listed else 0
    cut = None if request.truncation in (None, "disabled") else -1
    return GenerationCall(
        "responses", model, body, bool(request.stream), ["\n".join(_texts(request, given))], None,
        1, request.max_output_tokens, request.user or "", extra, cut, adapter, logprobs,
        external=beside.external, media=beside.media,
        defaults={"store": False} if request.store is None else {},
    )  # fmt: skip


def _check_keeps_nothing(request: ResponsesRequest) -> None:
    for name in ("store", "background"):
        if getattr(request, name):
            raise BadRequest(f"{name} must be false: nothing is kept here.", param=name)
    for at, item in enumerate(request.input if isinstance(request.input, list) else ()):
        if item.type == "item_reference":
            raise BadRequest(f"input[{at}] is an item_reference: {_KEPT}.", param="input")
    for at, tool in enumerate(request.tools or ()):
        if tool.type not in _OWN_TOOLS:
            raise BadRequest(
                f"tools[{at}] is of type {tool.type!r}, which this server does not run; must be of "
                f"{', '.join(_OWN_TOOLS)}.",
                param="tools",
            )


def _texts(request: ResponsesRequest, given: dict[str, msgspec.Raw]) -> Iterator[str]:
    """What a template makes a prompt of, in its order."""
    if request.tools:
        yield text_of(given["tools"])
    if request.instructions:
        yield request.instructions
    if isinstance(request.input, str):
        yield request.input
        return
    for item in request.input or ():
        if isinstance(item.content, str):
            yield item.content
        else:
            yield from (p.text or p.refusal or "" for p in item.content or ())
        yield from (text for text in (item.arguments, item.input) if text)
        if is_given(item.output):
            yield text_of(item.output)
