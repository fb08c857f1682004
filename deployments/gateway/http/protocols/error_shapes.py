"""How each protocol writes a refusal: Open Inference's one string, OpenAI's object.

The status and `Retry-After` are the error's own (`HeadraceError.status`, `.headers()`) and are sent
by whoever sends the answer; a body holds only the public message, without what a caller put there
that looks like a key. Knows nothing of causes.

Source: Open Inference Protocol, error objects; OpenAI API reference, "Error codes".
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import unquote

import msgspec

from deployments.contract.errors import HeadraceError
from deployments.gateway.http.protocols.tensors import Encoded
from yaml_document.credentials import without_keys

_BY_STATUS = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


_OWN_ACTIONS = (":predict", ":classify")  # below /v1, and not OpenAI's


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


def of_path(path: str) -> Callable[[HeadraceError], Encoded]:
    """The shape of errors on this path, whether or not it is one of the API's: OpenAI's below
    `/v1`, for reranking and for sparse vectors, else Open Inference's, also for `:predict` and
    `:classify`."""
    if path in ("/rerank", "/v2/rerank", "/embed_sparse"):
        return openai_error
    if path != "/v1" and not path.startswith("/v1/"):
        return oip_error
    return oip_error if unquote(path).endswith(_OWN_ACTIONS) else openai_error


def oip_error(error: HeadraceError) -> Encoded:
    """`{"error": message}`; also the shape of `:predict` and of the health endpoints."""
    return Encoded(msgspec.json.encode(Error(without_keys(error.message))))


def openai_error(error: HeadraceError) -> Encoded:
    """`{"error": {"message", "type", "param", "code"}}`."""
    message, kind = without_keys(error.message), openai_type(error.status)
    param = None if error.param is None else without_keys(error.param)
    detail = OpenAIErrorDetail(message, kind, param, _code(error))
    return Encoded(msgspec.json.encode(OpenAIError(detail)))


def openai_type(status: int) -> str:
    """OpenAI's error type for an HTTP status."""
    if status >= 500:
        return "server_error"
    return _BY_STATUS.get(status, "invalid_request_error")


def _code(error: HeadraceError) -> str:
    if error.status == 404 and error.param == "model":
        return "model_not_found"
    return error.code
