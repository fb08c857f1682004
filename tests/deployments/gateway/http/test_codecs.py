"""Refusals name the parameter that the caller's protocol has."""

from __future__ import annotations

import json

import pytest

from deployments.contract.errors import BadRequest
from deployments.gateway.http.codecs import EmbeddingsCodec


@pytest.mark.parametrize(("param", "named"), [("inputs", "input"), ("model", "model"), (None,) * 2])
def test_embeddings_have_an_input_and_no_inputs(param: str | None, named: str | None) -> None:
    refusal = EmbeddingsCodec("openai", "embedding").error(BadRequest("too long", param=param))
    assert json.loads(refusal.body)["error"]["param"] == named
