from __future__ import annotations

import json

import pytest

from deployments.contract import errors
from deployments.gateway.http.protocols.error_shapes import oip_error, openai_error


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
    for body in (oip_error(error).body, openai_error(error).body):
        assert key[3:] not in body.decode()
        assert "no model is called 'hr_…'" in body.decode()
