from __future__ import annotations

import json
from typing import Any

import pytest

from deployments.contract.errors import BadRequest
from deployments.gateway.http.protocols import tokenizing

USER = {"role": "user", "content": "hello"}


def raw(**fields: Any) -> bytes:
    return json.dumps({"model": "m:law", **fields}).encode()


@pytest.mark.parametrize("fields", [{"prompt": ""}, {"prompt": "a"}, {"messages": [USER]}])
def test_a_text_or_a_chat_is_cut_into_tokens_by_the_engine(fields: dict[str, Any]) -> None:
    call = tokenizing.decode(raw(**fields))
    assert (call.endpoint, call.model, call.adapter) == ("tokenize", "m", "law")
    assert (call.generates, call.streams, call.body) == (False, False, raw(**fields))


def test_tokens_become_a_text() -> None:
    call = tokenizing.decode_tokens(raw(tokens=[1, 2]))
    assert (call.endpoint, call.param, call.generates) == ("detokenize", "tokens", False)


def test_images_of_a_chat_are_fetched() -> None:
    part = {"type": "image_url", "image_url": {"url": "http://x/1"}}
    call = tokenizing.decode(raw(messages=[{"role": "user", "content": [part]}]))
    assert [each.at for each in call.external] == ["http://x/1"]


@pytest.mark.parametrize(
    "fields", [{}, {"prompt": "a", "messages": [USER]}, {"prompt": [1]}, {"prompt": None},
               {"messages": [USER] * 4097}, {"model": 5, "prompt": "a"}],
)  # fmt: skip
def test_what_is_no_text_and_no_chat_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        tokenizing.decode(raw(**fields))


@pytest.mark.parametrize("fields", [{}, {"tokens": None}])
def test_no_tokens_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="tokens is missing"):
        tokenizing.decode_tokens(raw(**fields))
