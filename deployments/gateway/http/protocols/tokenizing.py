"""vLLM's `/tokenize` and `/detokenize`: what a gateway has to know of a request.

The engine answers them, by its own tokeniser and template, and runs no model for it. As
`openai_generation`, which also says what is done with a call.

Source: vLLM's `serve/tokenize/protocol.py`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from deployments.contract.errors import BadRequest
from deployments.gateway.http.protocols import json_body
from deployments.gateway.http.protocols.generation_fields import (
    DETOKENIZE_FIELDS,
    TOKENIZE_CHAT_FIELDS,
    TOKENIZE_FIELDS,
    checked,
    is_given,
)
from deployments.gateway.http.protocols.openai_generation import (
    MODEL,
    Endpoint,
    GenerationCall,
    Message,
    beside_texts,
    check_messages,
)
from deployments.gateway.http.protocols.tensors import documented

_TOKENS = documented(type="array", items={"type": "integer", "minimum": 0})


class TokenizeRequest(msgspec.Struct, gc=False):
    model: Annotated[str, MODEL]
    prompt: str | None = None
    messages: list[Message] | None = None


class DetokenizeRequest(msgspec.Struct, gc=False):
    model: Annotated[str, MODEL]
    tokens: Annotated[msgspec.Raw, _TOKENS] = msgspec.field(default_factory=msgspec.Raw)


_texts: msgspec.json.Decoder[TokenizeRequest] = msgspec.json.Decoder(TokenizeRequest)
_lists: msgspec.json.Decoder[DetokenizeRequest] = msgspec.json.Decoder(DetokenizeRequest)


def decode(body: bytes) -> GenerationCall:
    """Raises `BadRequest`, which names the parameter at fault."""
    request = json_body.read(_texts, body)
    if (request.prompt is None) == (request.messages is None):
        raise BadRequest("the body must have either prompt or messages.", param="prompt")
    if request.messages is None:
        checked(body, TOKENIZE_FIELDS)
        return _call("tokenize", request.model, body)
    check_messages(request.messages)
    given = checked(body, TOKENIZE_CHAT_FIELDS)
    return _call("tokenize", request.model, body, given["messages"])


def decode_tokens(body: bytes) -> GenerationCall:
    """Raises `BadRequest`, which names the parameter at fault."""
    request = json_body.read(_lists, body)
    if not is_given(request.tokens):
        raise BadRequest("tokens is missing.", param="tokens")
    checked(body, DETOKENIZE_FIELDS)
    return _call("detokenize", request.model, body)


def _call(
    endpoint: Endpoint, named: str, body: bytes, messages: msgspec.Raw | None = None
) -> GenerationCall:
    model, _, adapter = named.partition(":")
    _, external, media = (0, (), {}) if messages is None else beside_texts(messages)
    return GenerationCall(
        endpoint, model, body, False, [], None, 1, None, adapter=adapter, external=external,
        media=media,
    )  # fmt: skip
