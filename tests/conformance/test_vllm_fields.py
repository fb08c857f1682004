"""The engine's fields and the gateway's tables of them agree, so that a new field is noticed."""

from __future__ import annotations

import pytest

from deployments.gateway.http.protocols.generation_fields import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    COUNT_TOKENS_FIELDS,
    DETOKENIZE_FIELDS,
    MAX_LISTED,
    MESSAGES_FIELDS,
    OF_THE_RENDERER,
    RESPONSES_FIELDS,
    TOKENIZE_CHAT_FIELDS,
    TOKENIZE_FIELDS,
)
from deployments.gateway.http.protocols.json_body import Use
from runtimes import catalog
from runtimes.vllm import engine_args, names

MISSING = catalog.available("vllm", "generate")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
]
# Of OpenAI, or of the other endpoint.
NOT_THE_ENGINES = {"best_of", "prompt", "messages"}


def test_every_field_of_the_engine_has_a_class() -> None:
    from vllm.entrypoints.anthropic.protocol import (
        AnthropicCountTokensRequest,
        AnthropicMessagesRequest,
    )
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.entrypoints.serve.tokenize.protocol import (
        DetokenizeRequest,
        TokenizeChatRequest,
        TokenizeCompletionRequest,
    )

    for engine, table in (
        (ChatCompletionRequest.model_fields, CHAT_FIELDS),
        (CompletionRequest.model_fields, COMPLETION_FIELDS),
        (AnthropicMessagesRequest.model_fields, MESSAGES_FIELDS),
        (AnthropicCountTokensRequest.model_fields, COUNT_TOKENS_FIELDS),
        (ResponsesRequest.model_fields, RESPONSES_FIELDS),
        (TokenizeCompletionRequest.model_fields, TOKENIZE_FIELDS),
        (TokenizeChatRequest.model_fields, TOKENIZE_CHAT_FIELDS),
        (DetokenizeRequest.model_fields, DETOKENIZE_FIELDS),
    ):
        assert engine.keys() - table.keys() == set()
        more = table.keys() - engine.keys() - NOT_THE_ENGINES
        others = [n for n in more if table[n].use not in (Use.IGNORED, Use.REFUSED)]
        assert others == []
        taken = [n for n in engine if n in table and table[n].use is Use.IGNORED]
        assert taken == []


def test_what_the_renderer_reads_of_a_templates_arguments_is_refused() -> None:
    from vllm.renderers.hf import _get_hf_base_chat_template_params

    assert set(_get_hf_base_chat_template_params()) - OF_THE_RENDERER - {"self"} == set()


def test_bounds_are_the_engines_own_where_it_has_some() -> None:
    import vllm.envs as envs
    from vllm.config import ModelConfig
    from vllm.sampling_params import MAX_LOGPROB_TOKEN_IDS

    assert CHAT_FIELDS["stop"].max_items == envs.VLLM_MAX_STOP_STRINGS
    assert CHAT_FIELDS["bad_words"].max_items == envs.VLLM_MAX_NUM_BAD_WORDS
    assert CHAT_FIELDS["logprob_token_ids"].max_items == MAX_LOGPROB_TOKEN_IDS
    assert ModelConfig.max_logprobs == MAX_LISTED


def test_every_argument_of_the_engine_has_a_class() -> None:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser())
    known = {action.dest for action in parser._actions}
    assert known ^ (engine_args.MAY_BE_SET.keys() | engine_args.OWNED.keys()) == set()


def test_names_are_those_that_the_engine_registers() -> None:
    from typing import get_args

    from vllm.config.cache import CacheDType
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    for where, registered in (
        (names.TOOL_PARSERS, ToolParserManager.list_registered()),
        (names.REASONING_PARSERS, ReasoningParserManager.list_registered()),
        (names.QUANTISATIONS, QUANTIZATION_METHODS),
        (names.CACHE_TYPES, get_args(CacheDType)),
    ):
        assert set(names.known(where)) == set(registered) == set(names.RECORDED[where].split())
