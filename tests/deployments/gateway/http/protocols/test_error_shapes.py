from __future__ import annotations

import json
from typing import Any

import pytest

from deployments.contract import errors
from deployments.gateway.http.protocols import error_shapes
from deployments.gateway.http.protocols.error_shapes import (
    anthropic_error,
    oip_error,
    openai_error,
)


def test_open_inference_error_is_one_string() -> None:
    assert json.loads(oip_error(errors.BadRequest('say "x"')).body) == {"error": 'say "x"'}


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (errors.BadRequest("m"), "invalid_request_error", "invalid_request"),
        (errors.Unauthorized("m"), "authentication_error", "invalid_api_key"),
        (errors.Forbidden("m"), "permission_error", "forbidden"),
        (errors.NotFound("m"), "invalid_request_error", "not_found"),
        (errors.NotFound("m", param="model"), "invalid_request_error", "model_not_found"),
        (errors.BodyTooLarge("m"), "invalid_request_error", "body_too_large"),
        (errors.OverOwnLimit("m"), "rate_limit_error", "rate_limit_exceeded"),
        (errors.Overloaded("m"), "server_error", "overloaded"),
        (errors.Expired("m"), "server_error", "deadline_exceeded"),
        (errors.HeadraceError("m"), "server_error", "internal_error"),
    ],
)
def test_openai_error_has_its_type_and_code(
    error: errors.HeadraceError, kind: str, code: str
) -> None:
    assert json.loads(openai_error(error).body) == {
        "error": {"message": "m", "type": kind, "param": error.param, "code": code}
    }


def test_a_key_that_a_caller_put_at_a_wrong_place_is_not_repeated() -> None:
    key = "hr_Zk3vQ8s-1yXbT0aWm4LrN7cJ5dGf2hUe9iOoKpRtYxB"
    error = errors.NotFound(f"no model is called {key!r}", param=key)
    written = [oip_error(error), openai_error(error), anthropic_error(error)]
    engines = json.dumps({"error": {"message": error.message}}).encode()
    for body in [
        *(each.body for each in written),
        error_shapes.of_engine("messages", 404, engines, ""),
    ]:
        assert key[3:] not in body.decode()
        assert "no model is called 'hr_…'" in body.decode()


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (errors.BadRequest("m"), 400, "invalid_request_error"),
        (errors.Unauthorized("m"), 401, "authentication_error"),
        (errors.Forbidden("m"), 403, "permission_error"),
        (errors.NotFound("m"), 404, "not_found_error"),
        (errors.BodyTooLarge("m"), 413, "request_too_large"),
        (errors.RowQuarantined("m"), 422, "invalid_request_error"),
        (errors.OverOwnLimit("m"), 429, "rate_limit_error"),
        (errors.HeadraceError("m"), 500, "api_error"),
        (errors.NotReady("m"), 503, "api_error"),
        (errors.ReplicaLost("m"), 503, "api_error"),
        (errors.Overloaded("m"), 529, "overloaded_error"),
        (errors.Expired("m"), 504, "timeout_error"),
    ],
)
def test_an_anthropic_error_has_its_type_by_its_status(
    error: errors.HeadraceError, status: int, kind: str
) -> None:
    error.request_id = "r"
    written = anthropic_error(error)
    assert written.status == status
    assert json.loads(written.body) == {
        "type": "error", "error": {"type": kind, "message": "m"}, "request_id": "r"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/v1/messages", anthropic_error), ("/v1/messages/count_tokens", anthropic_error),
        ("/v1/messages/x", anthropic_error), ("/v1/messagesx", openai_error),
        ("/v1/responses", openai_error), ("/tokenize", openai_error),
        ("/detokenize", openai_error), ("/v1", openai_error), ("/v1x", oip_error),
        ("/v1/models/m:predict", oip_error), ("/v2", oip_error),
    ],
)  # fmt: skip
def test_each_path_has_the_shape_of_its_api(path: str, shape: object) -> None:
    assert error_shapes.of_path(path) is shape


def test_an_engines_refusal_is_told_in_the_shape_of_the_endpoint() -> None:
    body = b'{"error": {"message": "m", "type": "BadRequestError", "param": "a", "code": 400}}'
    for endpoint in ("chat", "completions", "responses", "tokenize"):
        assert error_shapes.of_engine(endpoint, 400, body, "r") == body
    told = json.loads(error_shapes.of_engine("count_tokens", 404, body, "r"))
    assert told["error"] == {"type": "not_found_error", "message": "m"}
    assert told["request_id"] == "r"
    odd = json.loads(error_shapes.of_engine("messages", 400, b"[]", "r"))
    assert odd["error"]["type"] == "invalid_request_error"


PAID = error_shapes.Paid(12, 4, 3)
SAID = "gone (12 tokens of the prompt and 3 of the answer are charged)"


def page_of(event: bytes) -> tuple[bytes, Any]:
    """Of the one event: its name and its page."""
    assert event.endswith(b"\n\n")
    name, data = event.rstrip(b"\n").rsplit(b"data: ", 1)
    return name.strip(), json.loads(data)


def test_an_event_that_ends_a_stream_has_the_form_of_its_api_and_says_what_is_paid() -> None:
    error = errors.ReplicaLost("gone")
    for endpoint in ("chat", "completions"):
        name, page = page_of(error_shapes.event(endpoint, error, PAID))
        assert (name, page) == (b"", {"error": {
            "message": SAID, "type": "server_error", "param": None, "code": "replica_lost",
            "usage": {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15},
        }})  # fmt: skip
    name, page = page_of(error_shapes.event("messages", error, PAID))
    assert (name, page["type"]) == (b"event: error", "error")
    usage = {"input_tokens": 12, "output_tokens": 3}
    assert page["error"] == {"type": "api_error", "message": SAID, "usage": usage}


def test_a_response_that_fails_is_the_one_that_began() -> None:
    error = errors.ReplicaLost("gone")
    begun = {"id": "resp_1", "object": "response", "created_at": 5, "model": "m", "error": None,
             "instructions": "be\n\nbrief", "status": "in_progress", "usage": None}  # fmt: skip
    first = b"event: response.created\ndata: " + json.dumps({"response": begun}).encode() + b"\n\n"
    sent = b'data: {"sequence_number":7}\n\nevent: a\ndata: {"sequence_number":8}\n\n'
    name, page = page_of(error_shapes.event("responses", error, PAID, first + sent, sent))
    assert name == b"event: response.failed"
    assert (page["type"], page["sequence_number"]) == ("response.failed", 9)
    usage = {
        "input_tokens": 12, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 15,
    }  # fmt: skip
    failure = {"code": "server_error", "message": SAID}
    failed = {**begun, "status": "failed", "error": failure, "usage": usage}
    assert {**page["response"], **failed} == page["response"]


@pytest.mark.parametrize("first", [b"", b"event: x\ndata: {", b'data: {"response": 3}\n\n'])
def test_a_response_of_which_no_beginning_is_known_fails_in_the_same_shape(first: bytes) -> None:
    error = errors.OverOwnLimit("enough")
    _, page = page_of(error_shapes.event("responses", error, PAID, first, first))
    assert page["response"]["status"] == "failed"
    assert page["response"]["error"]["code"] == "rate_limit_exceeded"
    assert page["response"]["object"] == "response"
    assert page["sequence_number"] == 0


def test_what_looks_like_a_key_is_not_told_at_the_end_of_a_stream() -> None:
    error = errors.Unauthorized("the key sk-abcdefghijklmnopqrstuvwxyz0123456789 has ended")
    for endpoint in ("chat", "completions", "messages", "responses"):
        assert b"sk-abcdef" not in error_shapes.event(endpoint, error, PAID)
