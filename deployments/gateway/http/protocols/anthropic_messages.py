"""Anthropic's `/v1/messages` and `/v1/messages/count_tokens`: what a gateway has to know of one.

As `openai_generation`, which also says what is done with a call: the engine gets the caller's own
bytes, in Anthropic's form. What would need something that is kept between requests (files,
containers), or that the server itself runs (its tools, servers of the model context protocol), is
refused by name.

Source: Anthropic API reference, "Messages", "Count tokens"; vLLM's `anthropic/protocol.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from deployments.contract.errors import BadRequest
from deployments.gateway.http.protocols import json_body
from deployments.gateway.http.protocols.generation_fields import (
    COUNT_TOKENS_FIELDS,
    MESSAGES_FIELDS,
    checked,
    is_given,
    unread_tokens,
)
from deployments.gateway.http.protocols.openai_generation import (
    MESSAGE_TOKENS,
    MODEL,
    USER,
    Beside,
    Endpoint,
    GenerationCall,
    check_form,
    text_of,
)
from deployments.gateway.http.protocols.tensors import documented

_FORM = documented("A form that the answer must have, and the effort.", type=["object", "null"])
_LEFT = documented("Left to the engine.")


class ResultPart(msgspec.Struct, gc=False):
    """Of what a tool has answered."""

    type: str | None = None
    text: str | None = None


class Block(msgspec.Struct, gc=False):
    """`content`: of a tool's result; `input`: of a tool's call."""

    type: str
    text: str | None = None
    content: str | list[ResultPart] | None = None
    input: Annotated[msgspec.Raw, _LEFT] = msgspec.field(default_factory=msgspec.Raw)


class AnthropicMessage(msgspec.Struct, gc=False):
    role: str
    content: str | list[Block]


class AnthropicTool(msgspec.Struct, gc=False):
    name: str
    type: str | None = None


class AnthropicMetadata(msgspec.Struct, gc=False):
    user_id: Annotated[str | None, USER] = None


class CountTokensRequest(msgspec.Struct, gc=False):
    model: Annotated[str, MODEL]
    messages: Annotated[list[AnthropicMessage], documented(minItems=1)] = msgspec.field(
        default_factory=list
    )
    system: str | list[Block] | None = None
    tools: list[AnthropicTool] | None = None
    output_config: Annotated[msgspec.Raw, _FORM] = msgspec.field(default_factory=msgspec.Raw)


class MessagesRequest(CountTokensRequest, gc=False):
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    stream: bool | None = None
    metadata: AnthropicMetadata | None = None


_requests: msgspec.json.Decoder[MessagesRequest] = msgspec.json.Decoder(MessagesRequest)
_APART = frozenset(
    {"role", "content", "type", "text", "input", "cache_control", "citations", "is_error", "data",
     "signature"}
)  # fmt: skip
_OWN_TOOLS = (None, "custom")


def decode(body: bytes) -> GenerationCall:
    """Raises `BadRequest`, which names the parameter at fault."""
    return _decoded(body, "messages")


def decode_count(body: bytes) -> GenerationCall:
    """Raises `BadRequest`, which names the parameter at fault."""
    return _decoded(body, "count_tokens")


def _decoded(body: bytes, endpoint: Endpoint) -> GenerationCall:
    request = json_body.read(_requests, body)
    counts = endpoint == "count_tokens"
    table = COUNT_TOKENS_FIELDS if counts else MESSAGES_FIELDS
    given = checked(body, table)
    check_form("output_config", request.output_config)
    if not request.messages:
        raise BadRequest("messages must hold at least one message.", param="messages")
    if request.max_tokens is None and not counts:
        raise BadRequest("max_tokens is missing.", param="max_tokens")
    for at, tool in enumerate(request.tools or ()):
        if tool.type not in _OWN_TOOLS:
            raise BadRequest(
                f"tools[{at}] is of type {tool.type!r}, which this server does not run; must be "
                "'custom', with an input_schema.",
                param="tools",
            )
    beside, system = Beside(_APART), Beside(_APART)  # media of a system are not read
    beside.take(given["messages"], "messages")
    system.take(given.get("system", msgspec.Raw()), "system")
    extra = MESSAGE_TOKENS * (len(request.messages) + 2) + beside.tokens + system.tokens
    extra += unread_tokens(given, table)
    model, _, adapter = request.model.partition(":")
    texts = [] if counts else ["\n".join(_texts(request, given))]
    user = request.metadata.user_id if request.metadata else None
    return GenerationCall(
        endpoint, model, body, bool(request.stream) and not counts, texts, None, 1,
        None if counts else request.max_tokens, user or "", extra, None, adapter,
        external=beside.external, media=beside.media,
    )  # fmt: skip


def _texts(request: MessagesRequest, given: dict[str, msgspec.Raw]) -> Iterator[str]:
    """What a template makes a prompt of, in its order."""
    if request.tools:
        yield text_of(given["tools"])
    if request.system:
        yield from _of_content(request.system)
    for message in request.messages:
        yield from _of_content(message.content)


def _of_content(content: str | list[Any] | None) -> Iterator[str]:
    if isinstance(content, str):
        yield content
        return
    for part in content or ():
        if part.text:
            yield part.text
        if isinstance(part, Block):
            if is_given(part.input):
                yield text_of(part.input)
            yield from _of_content(part.content)
