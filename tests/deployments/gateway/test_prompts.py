"""How long a prompt is, what may come of it, and which prompts begin alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from deployments.contract.description import Generating, ModelDescription
from deployments.contract.errors import BadRequest, ContextTooLong
from deployments.gateway.http.protocols.openai_generation import GenerationCall
from deployments.gateway.prompts import prompt_of, pseudo_ids
from routers.api.requests import Generation

Describe = Callable[..., ModelDescription]
CALL = GenerationCall("completions", "m", b"{}", True, None, [[1]], 1, 8)


@pytest.fixture
def d(description: Describe) -> ModelDescription:
    shape = Generating(context_tokens=64, cache_tokens=256, max_sequences=4, block_tokens=4)
    return description(task="generate", generating=shape, max_length=64)


def generation(d: ModelDescription, ids: list[Any], **changes: Any) -> Generation:
    return prompt_of(replace(CALL, **changes), ids, d).generation


def test_a_prompt_is_as_long_as_its_tokens(d: ModelDescription) -> None:
    prompt = prompt_of(CALL, [list(range(10))], d)
    assert (prompt.tokens, prompt.generation.max_tokens, prompt.streams) == (10, 8, True)


def test_a_chats_template_is_an_allowance_that_refuses_nothing(d: ModelDescription) -> None:
    chat = replace(CALL, endpoint="chat", extra_tokens=12)
    assert prompt_of(chat, [list(range(10))], d).tokens == 22
    assert prompt_of(chat, [list(range(56))], d).tokens == 64


@pytest.mark.parametrize(("tokens", "fits"), [(56, True), (57, False)])
def test_what_cannot_fit_into_the_context_is_refused(
    d: ModelDescription, tokens: int, fits: bool
) -> None:
    if fits:
        prompt_of(CALL, [list(range(tokens))], d)
        return
    with pytest.raises(ContextTooLong, match=r"requested 65 tokens \(57 in the prompt, 8 in the"):
        prompt_of(CALL, [list(range(tokens))], d)


def test_an_output_that_is_not_bounded_is_what_the_context_leaves(d: ModelDescription) -> None:
    assert generation(d, [[1] * 10], max_tokens=None).max_tokens == 54
    assert generation(d, [[1] * 64], max_tokens=None).max_tokens == 1
    bounded = replace(d, scheduling=replace(d.scheduling, max_output_tokens=20))
    assert generation(bounded, [[1] * 10], max_tokens=None).max_tokens == 20


def test_many_sequences_are_no_more_than_a_cache_holds(d: ModelDescription) -> None:
    assert generation(d, [[1] * 10], sequences=3) == Generation(24, 3, (*_blocks(d, [1] * 10),))
    assert generation(d, [[1] * 10], sequences=100).max_tokens == 246


def test_several_prompts_are_one_row_that_is_no_longer_than_the_model_takes(
    d: ModelDescription,
) -> None:
    assert prompt_of(replace(CALL, sequences=2), [[1] * 20, [2] * 30], d).tokens == 50
    assert prompt_of(replace(CALL, sequences=2), [[1] * 40, [2] * 40], d).tokens == 64


def test_a_prompt_that_the_engine_cuts_is_counted_so(d: ModelDescription) -> None:
    prompt = prompt_of(replace(CALL, truncate_tokens=16), [list(range(100))], d)
    assert (prompt.tokens, prompt.generation.blocks) == (16, ())


def test_an_empty_prompt_is_one_token_long(d: ModelDescription) -> None:
    assert prompt_of(CALL, [[]], d).tokens == 1


def _blocks(d: ModelDescription, ids: Any, **changes: Any) -> tuple[int, ...]:
    return generation(d, [ids], **changes).blocks


def test_prompts_share_the_blocks_with_which_both_begin(d: ModelDescription) -> None:
    one, other = _blocks(d, [*range(8), 1, 1, 1, 1]), _blocks(d, [*range(8), 2, 2, 2, 2])
    assert one[:2] == other[:2]
    assert one[2] != other[2]
    assert _blocks(d, np.arange(8)) == one[:2]


def test_an_adapter_shares_blocks_with_itself_alone(d: ModelDescription) -> None:
    plain, sql = _blocks(d, [*range(8)]), _blocks(d, [*range(8)], adapter="sql")
    assert not set(plain) & set(sql)
    assert sql == _blocks(d, [*range(8)], adapter="sql")
    assert not set(sql) & set(_blocks(d, [*range(8)], adapter="law"))
    assert d.generating is not None
    changed = replace(d.generating, adapters=("sql",), adapter_digests=("2",))
    assert not set(sql) & set(_blocks(replace(d, generating=changed), [*range(8)], adapter="sql"))


@pytest.mark.parametrize("shared", [False, True])
def test_tenants_share_blocks_only_where_the_model_says_so(
    d: ModelDescription, shared: bool
) -> None:
    assert d.generating is not None
    d = replace(d, generating=replace(d.generating, shared_prefixes=shared))
    one, other = (prompt_of(CALL, [[*range(8)]], d, tenant) for tenant in ("acme", "batch"))
    assert (one.generation.blocks == other.generation.blocks) == shared
    assert (one.salt, other.salt) == (("", "") if shared else ("acme", "batch"))


def test_without_a_tokeniser_four_bytes_are_a_token() -> None:
    found = pseudo_ids(["", "a", "abcd", "abcde", "é" * 4, "\ud800"])
    assert [len(each) for each in found] == [0, 1, 1, 2, 2, 1]
    assert found[2][0] == found[3][0]


def test_a_responses_last_events_have_all_of_it(d: ModelDescription) -> None:
    call = replace(CALL, sequences=128, logprobs=64, streams=True, max_tokens=20)
    assert prompt_of(call, [[1]], d).streams
    with pytest.raises(BadRequest, match="Set max_output_tokens, ask"):
        prompt_of(replace(call, endpoint="responses"), [[1]], d)


@pytest.mark.parametrize(("interval", "fits"), [(8, True), (9, False)])
def test_a_streamed_piece_has_so_many_log_probabilities(
    d: ModelDescription, interval: int, fits: bool
) -> None:
    """128 sequences of 64 log-probabilities a token."""
    call = replace(CALL, sequences=128, logprobs=64, streams=True, interval=interval, max_tokens=20)
    if fits:
        assert prompt_of(call, [[1]], d).streams
    else:
        with pytest.raises(BadRequest, match="may come in one piece"):
            prompt_of(call, [[1]], d)
