"""What becomes of each field of a body that is passed on to an engine, at every way to generate?

Every field of the engine's, and every one that the clients of an API send, stands in the table of
its endpoint: free, counted, bounded, ignored or refused. What neither stands there nor is read is
refused by its name, so that no field of a new engine is passed on before its cost is known.

Source: API references of OpenAI and Anthropic; the protocols of vLLM 0.32, to which tests hold the
tables.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import msgspec

from deployments.contract.errors import BadRequest
from deployments.gateway.http.protocols import json_body
from deployments.gateway.http.protocols.json_body import Field, Use

# Of a chat, with parts of their contents. The engine parses them on the event loop that also hands
# on everybody's tokens, in 10 us each, and in 250 us where they are wrong.
MAX_MESSAGES = 4096
MAX_LISTED = 20  # log-probabilities of a token: as at OpenAI, and vLLM's own `max_logprobs`
_MAX_TEMPLATE_BYTES = 64 << 10  # of a template's arguments
_MAX_INTERVAL = 64  # tokens of a streamed piece
_MAX_BEAMS = MAX_LISTED // 2  # the engine draws twice as many tokens for each
_MAX_WORDS_BYTES = 8 << 10
_MAX_PATTERN = 256  # tokens, and repetitions, that the engine compares behind each token
_BYTES_PER_TOKEN = 4
_read = Field(Use.READ, sys.maxsize)
_free, _ignored = Field(Use.FREE), Field(Use.IGNORED, 64 << 10, max_depth=16)
_listed_here = Field(Use.BOUNDED, maximum=MAX_LISTED)
_tool_choice = Field(Use.BOUNDED, 64 << 10, max_depth=16)
_arguments = Field(Use.COUNTED, _MAX_TEMPLATE_BYTES, max_depth=16)
_user = Field(Use.READ, 4096)


def _refused(why: str) -> Field:
    return Field(Use.REFUSED, why=why)


def _tools(most: int) -> Field:
    return Field(Use.READ, sys.maxsize, max_items=most, max_depth=64)  # counted with the texts


_removed = _refused("the engine would ignore it; use structured_outputs")
_cost = _refused("it sets what an image or a film costs")
_template = _refused("a template is a program; the model's is set by its options")
# Where the engine has it, at each endpoint.
_ANYWHERE: Mapping[str, Field] = {
    **dict.fromkeys(("model", "stream"), _read),
    **dict.fromkeys(
        ("temperature", "top_p", "top_k", "watermarking", "cache_salt", "mm_payload",
         "return_mm_kwargs"), _free
    ),
    "kv_transfer_params": _refused("where the cache of a prompt lies is not a caller's to say"),
    "ec_transfer_params": _refused("where the cache of media lies is not a caller's to say"),
    "vllm_xargs": _refused("the engine runs no extensions that would read it"),
}  # fmt: skip
_OPENAIS: Mapping[str, Field] = {
    **_ANYWHERE,
    "structured_outputs": _read,
    "user": _user,
    **dict.fromkeys(
        ("min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "seed",
         "ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "priority",
         "request_id", "session_id"), _free
    ),
    # With each batch that changes the engine walks through every entry of every request.
    "logit_bias": Field(Use.BOUNDED, 32 << 10, max_items=1024),
    # Looked for behind each token. vLLM itself takes four stops and 128 bad words.
    "stop": Field(Use.BOUNDED, _MAX_WORDS_BYTES, max_items=4),
    "stop_token_ids": Field(Use.BOUNDED, 16 << 10, max_items=1024),
}  # fmt: skip
# Of chats and completions.
_SHARED: Mapping[str, Field] = {
    **_OPENAIS,
    **dict.fromkeys(
        ("n", "max_tokens", "truncate_prompt_tokens", "logprobs", "echo", "response_format"), _read
    ),
    **dict.fromkeys(
        ("length_penalty", "stream_options", "min_tokens", "spaces_between_special_tokens",
         "add_special_tokens", "truncation_side", "thinking_token_budget", "return_token_ids",
         "return_tokens_as_token_ids", "return_token_offsets", "routed_experts_prompt_start"), _free
    ),
    "bad_words": Field(Use.BOUNDED, _MAX_WORDS_BYTES, max_items=128),
    "allowed_token_ids": Field(Use.BOUNDED, 256 << 10, max_items=16_384),
    # How large pieces of the answer may be.
    "prompt_logprobs": _listed_here,
    "logprob_token_ids": Field(Use.BOUNDED, 2048, max_items=128),
    "stream_interval": Field(Use.BOUNDED, maximum=_MAX_INTERVAL),
    "use_beam_search": Field(Use.BOUNDED),  # `check_beams`
    "repetition_detection": Field(Use.BOUNDED),  # `_check_patterns`
    **dict.fromkeys(("metadata", "store", "service_tier", "safety_identifier",
                     "prompt_cache_key", "prompt_cache_retention"), _ignored),
    "logits_processors": _refused("it names code to run"),
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar",
                     "guided_decoding_backend", "guided_whitespace_pattern"), _removed),
}  # fmt: skip
COMPLETION_FIELDS: Mapping[str, Field] = {
    **_SHARED,
    "prompt": _read,
    "best_of": _read,
    "logprobs": Field(Use.READ, maximum=MAX_LISTED),
    "max_completion_tokens": _refused("completions have max_tokens"),
    "suffix": _refused("the engine writes what comes behind a prompt alone"),
    "prompt_embeds": _refused("the engine would unpickle it; send text or token ids"),
}
CHAT_FIELDS: Mapping[str, Field] = {
    **_SHARED,
    "messages": _read,
    "max_completion_tokens": _read,
    "tools": _tools(128),
    "top_logprobs": _listed_here,
    "tool_choice": _tool_choice,
    **dict.fromkeys(
        ("parallel_tool_calls", "reasoning_effort", "include_reasoning", "add_generation_prompt",
         "continue_final_message", "return_prompt_text"), _free
    ),
    "documents": Field(Use.COUNTED, sys.maxsize, max_items=MAX_MESSAGES, max_depth=4),
    "chat_template_kwargs": _arguments,
    **dict.fromkeys(("verbosity", "modalities", "audio", "function_call", "functions", "moderation",
                     "prompt_cache_options", "web_search_options"), _ignored),
    "prediction": Field(Use.IGNORED, 1 << 20, max_depth=16),
    "chat_template": _template,
    "mm_processor_kwargs": _cost,
    "media_io_kwargs": _cost,
}  # fmt: skip
_KEPT = _refused("nothing is kept here; send what it stands for")
RESPONSES_FIELDS: Mapping[str, Field] = {
    **_OPENAIS,
    **dict.fromkeys(
        ("input", "instructions", "max_output_tokens", "store", "background", "truncation", "text"),
        _read,
    ),
    "include": Field(Use.READ),
    "tools": _tools(128),
    "top_logprobs": _listed_here,
    "tool_choice": _tool_choice,
    **dict.fromkeys(
        ("parallel_tool_calls", "max_tool_calls", "reasoning", "include_reasoning", "service_tier",
         "prompt_cache_key", "enable_response_messages"), _free
    ),
    "metadata": Field(Use.BOUNDED, 16 << 10, max_items=16),  # the answer says it again
    "chat_template_kwargs": _arguments,
    **dict.fromkeys(
        ("access_programs", "background_options", "context_management", "image", "moderation",
         "prompt_cache_options", "prompt_cache_retention", "safety_identifier", "stream_options"),
        _ignored,
    ),
    **dict.fromkeys(("previous_response_id", "conversation", "prompt"), _KEPT),
    "previous_input_messages": _refused("send earlier messages in input"),
    "mm_processor_kwargs": _cost,
    "media_io_kwargs": _cost,
}  # fmt: skip
MESSAGES_FIELDS: Mapping[str, Field] = {
    **_ANYWHERE,
    **dict.fromkeys(("messages", "system", "max_tokens", "output_config"), _read),
    "metadata": _user,
    "tools": _tools(1024),  # agents give all that they have
    "tool_choice": _tool_choice,
    "thinking": _free,
    "stop_sequences": Field(Use.BOUNDED, _MAX_WORDS_BYTES, max_items=4),
    "chat_template_kwargs": _arguments,
    **dict.fromkeys(
        ("betas", "billing_policy", "cache_control", "context_management", "diagnostics",
         "fallback_credit_token", "fallbacks", "inference_geo", "service_tier", "speed",
         "user_profile_id", "workspace_id"), _ignored
    ),
    "compaction": _refused("the engine writes no summaries; ask for one in messages"),
    "container": _refused("no container is kept here"),
    "mcp_servers": _refused("this server calls no others; give their tools in tools"),
    "thread": _KEPT,
}  # fmt: skip
_OF_A_COUNT = frozenset(
    {"model", "messages", "system", "tools", "tool_choice", "thinking", "output_config",
     "chat_template_kwargs"}
)  # fmt: skip
# A message can be counted as it will be sent: the engine ignores what makes no prompt.
COUNT_TOKENS_FIELDS: Mapping[str, Field] = {
    name: each if name in _OF_A_COUNT or each.use is Use.REFUSED else _ignored
    for name, each in MESSAGES_FIELDS.items()
} | {"compaction": _ignored}
_TOKENS: Mapping[str, Field] = {
    "model": _read,
    **dict.fromkeys(("add_special_tokens", "return_token_strs"), _free),
}
TOKENIZE_FIELDS: Mapping[str, Field] = {**_TOKENS, "prompt": _read, "messages": _read}
TOKENIZE_CHAT_FIELDS: Mapping[str, Field] = {
    **TOKENIZE_FIELDS,
    **{name: CHAT_FIELDS[name] for name in
       ("tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs",
        "chat_template", "mm_processor_kwargs", "media_io_kwargs")},
}  # fmt: skip
DETOKENIZE_FIELDS: Mapping[str, Field] = {"model": _read, "tokens": _read}
# What the renderer reads of a template's arguments itself: `max_length` with `padding` would make
# prompts of any size, and `tools` such as nobody has counted.
OF_THE_RENDERER = frozenset(
    {"conversation", "messages", "tools", "documents", "chat_template", "add_generation_prompt",
     "continue_final_message", "tokenize", "sanitize_control_tokens", "padding", "truncation",
     "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask",
     "tokenizer_kwargs"}
)  # fmt: skip
_SAME_WORK = frozenset(
    {"stream", "stream_options", "user", "seed", "priority", "request_id", "session_id",
     "cache_salt", "metadata", "store"}
)  # fmt: skip
# Fields whose values change nothing of what the engine does, by endpoint.
NO_WORK: Mapping[str, frozenset[str]] = {
    endpoint: _SAME_WORK | {name for name, each in table.items() if each.use is Use.IGNORED}
    for endpoint, table in (
        ("chat", CHAT_FIELDS), ("completions", COMPLETION_FIELDS), ("messages", MESSAGES_FIELDS),
        ("responses", RESPONSES_FIELDS), ("count_tokens", COUNT_TOKENS_FIELDS),
        ("tokenize", TOKENIZE_CHAT_FIELDS), ("detokenize", DETOKENIZE_FIELDS),
    )
}  # fmt: skip
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def checked(body: bytes, table: Mapping[str, Field]) -> dict[str, msgspec.Raw]:
    """The body's fields. Raises BadRequest."""
    given = json_body.read(_fields, body)
    json_body.check_fields(given, table)
    _check_patterns(given.get("repetition_detection"))
    _check_arguments(given.get("chat_template_kwargs"))
    return given


def check_beams(given: Mapping[str, msgspec.Raw], sequences: int) -> None:
    """Raises BadRequest."""
    if sequences > _MAX_BEAMS and is_true(given.get("use_beam_search")):
        raise BadRequest(f"n may be {_MAX_BEAMS} at most with use_beam_search.", param="n")


def _check_patterns(raw: msgspec.Raw | None) -> None:
    """Of `repetition_detection`."""
    if raw is None or not is_object(raw):
        return
    for name, size in json_body.read(_fields, bytes(raw)).items():
        if json_body.count_of(size) > _MAX_PATTERN:
            raise BadRequest(
                f"repetition_detection.{name} may be {_MAX_PATTERN} at most.",
                param="repetition_detection",
            )


def _check_arguments(raw: msgspec.Raw | None) -> None:
    """Of a template."""
    if raw is None or not is_object(raw):
        return
    taken = OF_THE_RENDERER & json_body.read(_fields, bytes(raw)).keys()
    if taken:
        raise BadRequest(
            f"chat_template_kwargs may not have '{min(taken)}', which is no argument of a template",
            param="chat_template_kwargs",
        )


def unread_tokens(given: Mapping[str, msgspec.Raw], table: Mapping[str, Field]) -> int:
    """Of fields that may come into a prompt besides its texts, about."""
    names = [name for name in given if table[name].use is Use.COUNTED]
    return sum(len(given[name]) for name in names if is_given(given[name])) // _BYTES_PER_TOKEN


def is_given(raw: msgspec.Raw) -> bool:
    return bytes(raw) not in (b"", b"null")


def is_object(raw: msgspec.Raw) -> bool:
    return bytes(memoryview(raw)[:64]).lstrip().startswith(b"{")


def is_true(raw: msgspec.Raw | None) -> bool:
    """Whether the engine may take it for true: it also takes 1, 1.0, "on" and "yes"."""
    return raw is not None and is_given(raw) and bytes(raw) not in (b"false", b"0")
