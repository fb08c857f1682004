"""How each protocol writes a refusal: Open Inference's string, OpenAI's and Anthropic's objects.

The status and `Retry-After` are the error's own (`HeadraceError.status`, `.headers()`), unless the
shape has another status, and are sent by whoever sends the answer; a body holds only the public
message, without what a caller put there that looks like a key. Engines write OpenAI's object at
every path (`of_engine`). Knows nothing of causes.

Source: Open Inference Protocol, error objects; OpenAI API reference, "Error codes", "Streaming
events"; Anthropic API reference, "Errors", "Streaming messages".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

import msgspec

from deployments.contract.errors import HeadraceError, Overloaded
from deployments.gateway.http.protocols.tensors import Encoded
from yaml_document.credentials import without_keys

_BY_STATUS = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


_OWN_ACTIONS = (":predict", ":classify")  # below /v1, and not OpenAI's
_OPENAIS = ("/v1", "/rerank", "/v2/rerank", "/embed_sparse", "/tokenize", "/detokenize")
MESSAGES = "/v1/messages"  # and below: Anthropic's
_ANTHROPICS = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 504: "timeout_error",
    529: "overloaded_error",
}  # fmt: skip
_OVERLOADED = 529
_ANTHROPIC_ENDPOINTS = ("messages", "count_tokens")
_RESPONSE_CODES = {422: "invalid_prompt", 429: "rate_limit_exceeded"}  # of OpenAI's enumeration
# What a client has to find in a response; the rest is as the engine began it.
_NO_RESPONSE: dict[str, Any] = {
    "id": "", "object": "response", "created_at": 0, "model": "", "output": [], "tools": [],
    "tool_choice": "auto", "parallel_tool_calls": True, "incomplete_details": None,
}  # fmt: skip
_SEQUENCE = re.compile(rb'"sequence_number":(\d{1,18})')
_LAST_BYTES = 1 << 16  # of a piece, in which its last event's number is looked for


class Error(msgspec.Struct):
    """Open Inference's."""

    error: str


class OpenAIErrorDetail(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str


class OpenAIError(msgspec.Struct):
    error: OpenAIErrorDetail


class AnthropicErrorDetail(msgspec.Struct):
    type: str
    message: str


class AnthropicError(msgspec.Struct):
    error: AnthropicErrorDetail
    type: Literal["error"] = "error"
    request_id: str = ""


class _EnginesDetail(msgspec.Struct):
    message: str = "the engine refused the request"


class _EnginesError(msgspec.Struct):
    error: _EnginesDetail


class _Created(msgspec.Struct):
    """The first event of a response that streams."""

    response: dict[str, Any]


_created = msgspec.json.Decoder(_Created)
_engines = msgspec.json.Decoder(_EnginesError)


def of_path(path: str) -> Callable[[HeadraceError], Encoded]:
    """The shape of errors on this path, whether or not it is one of the API's: Anthropic's for
    messages, else OpenAI's below `/v1`, for reranking, sparse vectors and tokens, else Open
    Inference's, also for `:predict` and `:classify`."""
    if is_anthropics(path):
        return anthropic_error
    if path in _OPENAIS:
        return openai_error
    if not path.startswith("/v1/"):
        return oip_error
    return oip_error if unquote(path).endswith(_OWN_ACTIONS) else openai_error


def oip_error(error: HeadraceError) -> Encoded:
    """`{"error": message}`; also the shape of `:predict` and of the health endpoints."""
    return Encoded(msgspec.json.encode(Error(without_keys(error.message))))


def openai_error(error: HeadraceError) -> Encoded:
    """`{"error": {"message", "type", "param", "code"}}`."""
    return Encoded(msgspec.json.encode(OpenAIError(_openai_detail(error))))


def _openai_detail(error: HeadraceError) -> OpenAIErrorDetail:
    message, kind = without_keys(error.message), openai_type(error.status)
    param = None if error.param is None else without_keys(error.param)
    return OpenAIErrorDetail(message, kind, param, _code(error))


def is_anthropics(path: str) -> bool:
    return path.startswith(MESSAGES) and path[len(MESSAGES) :][:1] in ("", "/")


def anthropic_error(error: HeadraceError) -> Encoded:
    """`{"type": "error", "error": {"type", "message"}, "request_id"}`. What is overloaded has a
    status of its own, so that clients tell it from a model that is not ready."""
    status = _OVERLOADED if isinstance(error, Overloaded) else error.status
    body = _anthropic(status, error.message, error.request_id)
    return Encoded(body, status=status)


def _anthropic(status: int, message: str, request_id: str) -> bytes:
    kind = "api_error" if status >= 500 else "invalid_request_error"
    detail = AnthropicErrorDetail(_ANTHROPICS.get(status, kind), without_keys(message))
    return msgspec.json.encode(AnthropicError(detail, request_id=request_id))


def of_endpoint(endpoint: str) -> Callable[[HeadraceError], Encoded]:
    """The shape of errors at an endpoint that generates, or counts tokens."""
    return anthropic_error if endpoint in _ANTHROPIC_ENDPOINTS else openai_error


def of_engine(endpoint: str, status: int, body: bytes, request_id: str) -> bytes:
    """An engine's own refusal, which has OpenAI's shape, in that of the endpoint."""
    if endpoint not in _ANTHROPIC_ENDPOINTS:
        return body
    try:
        message = _engines.decode(body).error.message
    except msgspec.DecodeError:
        message = _EnginesDetail().message
    return _anthropic(status, message, request_id)


class Paid(NamedTuple):
    """Tokens of an answer that ends early: all are charged. `cached`: of `prompt`."""

    prompt: int
    cached: int
    answer: int


def event(
    endpoint: str, error: HeadraceError, paid: Paid, first: bytes = b"", last: bytes = b""
) -> bytes:
    """How an answer ends that has begun to stream and cannot go on: with the API's own error, which
    says what is paid. `first` and `last`: pieces that were sent."""
    said = (
        f"{error.message} ({paid.prompt} tokens of the prompt and {paid.answer} of the answer are "
        "charged)"
    )
    message = without_keys(said)
    if endpoint == "messages":
        page = msgspec.json.decode(anthropic_error(error).body)
        usage = {"input_tokens": paid.prompt, "output_tokens": paid.answer}
        page["error"] |= {"message": message, "usage": usage}
        return b"event: error\ndata: " + msgspec.json.encode(page) + b"\n\n"
    if endpoint == "responses":
        failed = _failed_response(first, error, message, paid)
        page = {"type": "response.failed", "response": failed, "sequence_number": _next(last)}
        return b"event: response.failed\ndata: " + msgspec.json.encode(page) + b"\n\n"
    usage = {
        "prompt_tokens": paid.prompt, "completion_tokens": paid.answer,
        "total_tokens": paid.prompt + paid.answer,
    }  # fmt: skip
    detail = msgspec.to_builtins(_openai_detail(error)) | {"message": message, "usage": usage}
    return b"data: " + msgspec.json.encode({"error": detail}) + b"\n\n"


def _next(sent: bytes) -> int:
    """The number of the event behind this piece of a response."""
    number = 0
    for found in _SEQUENCE.finditer(sent[-_LAST_BYTES:]):
        number = 1 + int(found[1])
    return number


def _failed_response(
    first: bytes, error: HeadraceError, message: str, paid: Paid
) -> dict[str, Any]:
    """The response as its first event described it, failed."""
    made: dict[str, Any] = dict(_NO_RESPONSE)
    begun = first.partition(b"\n\n")[0].partition(b"\ndata: ")[2]
    with suppress(msgspec.DecodeError):
        made |= _created.decode(begun).response
    usage = {
        "input_tokens": paid.prompt, "input_tokens_details": {"cached_tokens": paid.cached},
        "output_tokens": paid.answer, "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": paid.prompt + paid.answer,
    }  # fmt: skip
    code = _RESPONSE_CODES.get(error.status, "server_error")
    failure = {"status": "failed", "error": {"code": code, "message": message}, "usage": usage}
    return made | failure


def openai_type(status: int) -> str:
    """OpenAI's error type for an HTTP status."""
    if status >= 500:
        return "server_error"
    return _BY_STATUS.get(status, "invalid_request_error")


def _code(error: HeadraceError) -> str:
    if error.status == 404 and error.param == "model":
        return "model_not_found"
    return error.code
