"""OpenAI's `/v1/completions` and `/v1/chat/completions`: what a gateway has to know of a request.

Only what routing, measuring and streaming need is read: the model, whether to stream, how many
sequences of how many tokens, and the prompt. Every other field (tools, structured output, sampling,
logprobs, stops) stands in a table that says whether it is free, counted, bounded or refused; what
may pass is the engine's: it gets the caller's own bytes, and its answer or refusal comes back as it
is. Adapters are asked for as `model:adapter`; the whole name goes to the engine.

Source: OpenAI API reference, "Create completion", "Create chat completion"; vLLM's online serving
for `truncate_prompt_tokens` and `max_completion_tokens` beside `max_tokens`.
"""

from __future__ import annotations

import re
import sys
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Annotated, Literal

import msgspec

from deployments.contract.errors import BadRequest, HeadraceError
from deployments.gateway.http.protocols import error_shapes, json_body
from deployments.gateway.http.protocols.json_body import Field, Use
from deployments.gateway.http.protocols.tensors import (
    External,
    ExternalInput,
    Fetched,
    any_of,
    documented,
)

MAX_PROMPTS = 2048
# Of a chat, with parts of their contents. The engine parses them on the event loop that also hands
# on everybody's tokens, in 10 us each, and in 250 us where they are wrong.
MAX_MESSAGES = 4096
MAX_SEQUENCES = 128  # of one prompt, as at OpenAI
# Of a field that demands a form of the answer. The engine parses it on the event loop that also
# hands on everybody's tokens, and takes half as much, as compact JSON.
MAX_FORM_BYTES = 64 << 10
_COMPLETION_TOKENS = 16  # what OpenAI's completions give where nothing is said
_MESSAGE_TOKENS = 4  # what a chat template puts around each message, and before the answer
_BYTES_PER_TOKEN = 4
_MEDIA_TOKENS = 1024  # of an image, a sound or a film: what models make of a megapixel

Endpoint = Literal["chat", "completions"]
_Many = Annotated[int, msgspec.Meta(ge=1, le=MAX_SEQUENCES)]
_Size = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Token = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Tokens = Annotated[list[_Token], msgspec.Meta(min_length=1)]


_Prompts = Annotated[list[str], msgspec.Meta(min_length=1, max_length=MAX_PROMPTS)]
_TokenLists = Annotated[list[_Tokens], msgspec.Meta(min_length=1, max_length=MAX_PROMPTS)]
_PROMPT = documented(**any_of(str, _Prompts, _Tokens, _TokenLists))
_MODEL = msgspec.Meta(min_length=1, description="A model, or `model:adapter`.")
_USER = documented("A session, where x-session-id names none.")
_CUT = msgspec.Meta(
    ge=-1, le=2**31 - 1, description="The engine cuts prompts to so many; -1: to what fits."
)
_FORM = documented("A form that the answer must have.", type=["object", "null"])
_TOOLS = documented("Left to the engine.", type=["array", "null"], items={"type": "object"})


class ContentPart(msgspec.Struct, gc=False):
    text: str | None = None


# Templates put both between the characters of a special token's name. OpenAI's patterns.
_ROLE = msgspec.Meta(pattern="^[A-Za-z0-9_-]{1,64}$")
_NAME = msgspec.Meta(pattern=r"^[^\s<|\\/>]{1,64}$")


class Message(msgspec.Struct, gc=False):
    role: Annotated[str, _ROLE]
    name: Annotated[str, _NAME] | None = None
    content: str | list[ContentPart] | None = None
    tool_calls: Annotated[msgspec.Raw, _TOOLS] = msgspec.field(default_factory=msgspec.Raw)


class _Generation(msgspec.Struct, gc=False):
    model: Annotated[str, _MODEL]
    stream: bool | None = None
    n: _Many | None = None
    max_tokens: _Size | None = None
    user: Annotated[str | None, _USER] = None
    truncate_prompt_tokens: Annotated[int, _CUT] | None = None
    response_format: Annotated[msgspec.Raw, _FORM] = msgspec.field(default_factory=msgspec.Raw)
    structured_outputs: Annotated[msgspec.Raw, _FORM] = msgspec.field(default_factory=msgspec.Raw)


class CompletionRequest(_Generation, gc=False):
    prompt: Annotated[msgspec.Raw, _PROMPT] = msgspec.field(default_factory=msgspec.Raw)
    best_of: _Many | None = None


class ChatRequest(_Generation, gc=False):
    messages: Annotated[list[Message], documented(minItems=1)] = msgspec.field(default_factory=list)
    max_completion_tokens: _Size | None = None
    tools: Annotated[msgspec.Raw, _TOOLS] = msgspec.field(default_factory=msgspec.Raw)


@dataclass(frozen=True, slots=True)
class GenerationCall:
    """`model`: the served one that is asked for; `adapter`: of that, "" for none. `texts` or
    `tokens` (exactly one is set): the prompts. `extra_tokens`: what a template may add to the
    first, about: around messages, of media, and of fields that may come into a prompt. `sequences`:
    of all prompts together. `max_tokens`: of each sequence, None where the request does not say.
    `truncate_tokens`: the engine is to cut each prompt to so many. `logprobs`: how many the answer
    has of each output token; `prompt_logprobs`: of each of the prompt's, for each sequence.
    `external`: images, sounds and films that parts name by URL; `media`: the `data:` URLs of those
    that are here, by URL. `interval`: tokens of a streamed piece."""

    endpoint: Endpoint
    model: str
    body: bytes
    streams: bool
    texts: list[str] | None
    tokens: list[list[int]] | None
    sequences: int
    max_tokens: int | None
    user: str = ""
    extra_tokens: int = 0
    truncate_tokens: int | None = None
    adapter: str = ""
    logprobs: int = 0
    prompt_logprobs: int = 0
    external: External = ()
    media: Mapping[str, str] = field(default_factory=dict)
    interval: int = 1

    @property
    def param(self) -> str:
        return "messages" if self.endpoint == "chat" else "prompt"


_completions = msgspec.json.Decoder(CompletionRequest)
_chats = msgspec.json.Decoder(ChatRequest)
_text = msgspec.json.Decoder(str)
_texts = msgspec.json.Decoder(list[str])
_token_list = msgspec.json.Decoder(_Tokens)
_token_lists = msgspec.json.Decoder(list[_Tokens])
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_MAX_TEMPLATE_BYTES = 64 << 10  # of a template's arguments
MAX_LISTED = 20  # log-probabilities of a token: as at OpenAI, and vLLM's own `max_logprobs`
_MAX_INTERVAL = 64  # tokens of a streamed piece
_MAX_BEAMS = MAX_LISTED // 2  # the engine draws twice as many tokens for each
_MAX_WORDS_BYTES = 8 << 10
_MAX_PATTERN = 256  # tokens, and repetitions, that the engine compares behind each token
_read = Field(Use.READ, sys.maxsize)
_free, _ignored = Field(Use.FREE), Field(Use.IGNORED, 64 << 10, max_depth=16)
_listed_here = Field(Use.BOUNDED, maximum=MAX_LISTED)


def _refused(why: str) -> Field:
    return Field(Use.REFUSED, why=why)


_removed = _refused("the engine would ignore it; use structured_outputs")
# Of both endpoints. What of a request neither stands here nor below is refused by its name.
_SHARED: Mapping[str, Field] = {
    **dict.fromkeys(
        ("model", "stream", "n", "max_tokens", "truncate_prompt_tokens", "logprobs", "echo",
         "response_format", "structured_outputs"), _read
    ),
    "user": Field(Use.READ, 4096),
    **dict.fromkeys(
        ("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty",
         "repetition_penalty", "length_penalty", "seed", "stream_options", "ignore_eos",
         "min_tokens", "include_stop_str_in_output", "skip_special_tokens", "watermarking",
         "spaces_between_special_tokens", "add_special_tokens", "truncation_side", "cache_salt",
         "priority", "request_id", "session_id", "thinking_token_budget", "return_token_ids",
         "return_tokens_as_token_ids", "return_token_offsets", "routed_experts_prompt_start",
         "mm_payload", "return_mm_kwargs"), _free
    ),
    # With each batch that changes the engine walks through every entry of every request.
    "logit_bias": Field(Use.BOUNDED, 32 << 10, max_items=1024),
    # Looked for behind each token. vLLM itself takes four stops and 128 bad words.
    "stop": Field(Use.BOUNDED, _MAX_WORDS_BYTES, max_items=4),
    "bad_words": Field(Use.BOUNDED, _MAX_WORDS_BYTES, max_items=128),
    "stop_token_ids": Field(Use.BOUNDED, 16 << 10, max_items=1024),
    "allowed_token_ids": Field(Use.BOUNDED, 256 << 10, max_items=16_384),
    # How large pieces of the answer may be.
    "prompt_logprobs": _listed_here,
    "logprob_token_ids": Field(Use.BOUNDED, 2048, max_items=128),
    "stream_interval": Field(Use.BOUNDED, maximum=_MAX_INTERVAL),
    "use_beam_search": Field(Use.BOUNDED),  # `_check_beams`
    "repetition_detection": Field(Use.BOUNDED),  # `_checked`
    **dict.fromkeys(("metadata", "store", "service_tier", "safety_identifier",
                     "prompt_cache_key", "prompt_cache_retention"), _ignored),
    "kv_transfer_params": _refused("where the cache of a prompt lies is not a caller's to say"),
    "ec_transfer_params": _refused("where the cache of media lies is not a caller's to say"),
    "vllm_xargs": _refused("the engine runs no extensions that would read it"),
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
    "tools": Field(Use.READ, sys.maxsize, max_items=128, max_depth=64),  # counted with the texts
    "top_logprobs": _listed_here,
    "tool_choice": Field(Use.BOUNDED, 64 << 10, max_depth=16),
    **dict.fromkeys(
        ("parallel_tool_calls", "reasoning_effort", "include_reasoning", "add_generation_prompt",
         "continue_final_message", "return_prompt_text"), _free
    ),
    "documents": Field(Use.COUNTED, sys.maxsize, max_items=MAX_MESSAGES, max_depth=4),
    "chat_template_kwargs": Field(Use.COUNTED, _MAX_TEMPLATE_BYTES, max_depth=16),
    **dict.fromkeys(("verbosity", "modalities", "audio", "function_call", "functions", "moderation",
                     "prompt_cache_options", "web_search_options"), _ignored),
    "prediction": Field(Use.IGNORED, 1 << 20, max_depth=16),
    "chat_template": _refused("a template is a program; the model's is set by its options"),
    "mm_processor_kwargs": _refused("it sets what an image or a film costs"),
    "media_io_kwargs": _refused("it sets what an image or a film costs"),
}  # fmt: skip
# What the renderer reads of a template's arguments itself: `max_length` with `padding` would make
# prompts of any size, and `tools` such as nobody has counted.
OF_THE_RENDERER = frozenset(
    {"conversation", "messages", "tools", "documents", "chat_template", "add_generation_prompt",
     "continue_final_message", "tokenize", "sanitize_control_tokens", "padding", "truncation",
     "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask",
     "tokenizer_kwargs"}
)  # fmt: skip
_NO_WORK = frozenset(
    {"stream", "stream_options", "user", "seed", "priority", "request_id", "session_id",
     "cache_salt"}
) | {name for name, each in CHAT_FIELDS.items() if each.use is Use.IGNORED}  # fmt: skip
_COUNTED_APART = frozenset({"role", "content", "tool_calls", "type", "text"})
_MEDIA = frozenset(
    {"image_url", "input_image", "image_pil", "image_embeds", "input_audio", "audio_url",
     "audio_embeds", "video_url", "video_embeds", "prompt_embeds", "file"}
)  # fmt: skip
_EMBEDS = frozenset({"image_embeds", "audio_embeds", "video_embeds", "prompt_embeds"})
_FETCHED = frozenset({"image_url", "audio_url", "video_url"})


class _Media(msgspec.Struct):
    url: str | None = None


_media = msgspec.json.Decoder(str | _Media | None)
_objects = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_START = re.compile(rb"\s*(?P<outer>\[?)\s*(?P<inner>.?)", re.DOTALL)


def decode_completion(body: bytes) -> GenerationCall:
    """Raises `BadRequest`, which names the parameter at fault."""
    request = json_body.read(_completions, body)
    _check_forms(request)
    if not _given(request.prompt):
        raise BadRequest("prompt is missing.", param="prompt")
    try:
        texts, tokens = _prompts(request.prompt)
    except json_body.DECODE_ERRORS as error:
        refusal = json_body.element(error, "The body", "prompt")
        raise BadRequest(refusal.message, param="prompt") from None
    each = max(request.n or 1, request.best_of or 1)
    most = _COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens
    model, _, adapter = request.model.partition(":")
    given = _checked(body, COMPLETION_FIELDS)
    _check_beams(given, each)
    wanted = given.get("logprobs")
    logprobs = 0 if wanted is None or not _given(wanted) else 1 + _listed(given, wanted)
    return GenerationCall(
        "completions", model, body, bool(request.stream), texts, tokens,
        each * len(texts or tokens or ()), most, request.user or "", 0,
        _truncated(request), adapter, logprobs, _prompt_logprobs(given, logprobs),
        interval=_interval(given),
    )  # fmt: skip


def decode_chat(body: bytes) -> GenerationCall:
    """Raises `BadRequest`, which names the parameter at fault."""
    request = json_body.read(_chats, body)
    _check_forms(request)
    if not request.messages:
        raise BadRequest("messages must hold at least one message.", param="messages")
    _check_messages(request.messages)
    most = request.max_completion_tokens
    extra = _MESSAGE_TOKENS * (len(request.messages) + 1)
    given = _checked(body, CHAT_FIELDS)
    _check_beams(given, request.n or 1)
    _check_arguments(given.get("chat_template_kwargs"))
    beside, external, media = _beside_texts(given["messages"])
    extra += _unread_tokens(given) + beside
    top = given.get("top_logprobs")
    logprobs = 1 + _listed(given, top) if _is_true(given.get("logprobs")) else 0
    model, _, adapter = request.model.partition(":")
    return GenerationCall(
        "chat", model, body, bool(request.stream), [_conversation(request)], None, request.n or 1,
        request.max_tokens if most is None else most, request.user or "", extra,
        _truncated(request), adapter, logprobs,
        _prompt_logprobs(given, 1 + json_body.count_of(top)), external, media, _interval(given),
    )  # fmt: skip


def _checked(body: bytes, table: Mapping[str, Field]) -> dict[str, msgspec.Raw]:
    """The body's fields. Raises BadRequest."""
    given = json_body.read(_fields, body)
    json_body.check_fields(given, table)
    patterns = given.get("repetition_detection")
    if patterns is not None and _given(patterns) and _is_object(patterns):
        for name, size in json_body.read(_fields, bytes(patterns)).items():
            if json_body.count_of(size) > _MAX_PATTERN:
                raise BadRequest(
                    f"repetition_detection.{name} may be {_MAX_PATTERN} at most.",
                    param="repetition_detection",
                )
    return given


def _check_beams(given: Mapping[str, msgspec.Raw], sequences: int) -> None:
    if sequences > _MAX_BEAMS and _is_true(given.get("use_beam_search")):
        raise BadRequest(f"n may be {_MAX_BEAMS} at most with use_beam_search.", param="n")


def _check_arguments(raw: msgspec.Raw | None) -> None:
    """Of a template."""
    if raw is None or not _is_object(raw):
        return
    taken = OF_THE_RENDERER & json_body.read(_fields, bytes(raw)).keys()
    if taken:
        raise BadRequest(
            f"chat_template_kwargs may not have '{min(taken)}', which is no argument of a template",
            param="chat_template_kwargs",
        )


def _check_messages(messages: Sequence[Message]) -> None:
    parts = sum(len(each.content) for each in messages if isinstance(each.content, list))
    if len(messages) + parts > MAX_MESSAGES:
        raise BadRequest(
            f"messages has {len(messages)} messages, with {parts} parts; it may have "
            f"{MAX_MESSAGES} of both together.",
            param="messages",
        )


def _check_forms(request: _Generation) -> None:
    for name in ("response_format", "structured_outputs"):
        size = len(memoryview(getattr(request, name)))
        if size > MAX_FORM_BYTES:
            raise BadRequest(f"{name} has {size} bytes; it may have {MAX_FORM_BYTES}.", param=name)


def _unread_tokens(given: Mapping[str, msgspec.Raw]) -> int:
    """Of fields that may come into a chat's prompt besides its texts."""
    names = [name for name in given if CHAT_FIELDS[name].use is Use.COUNTED]
    return sum(len(given[name]) for name in names if _given(given[name])) // _BYTES_PER_TOKEN


def _beside_texts(messages: msgspec.Raw) -> tuple[int, External, dict[str, str]]:
    """Tokens of what messages hold besides the texts that `_conversation` reads, about: media, and
    what a template may use (a name, earlier reasoning, a message's own tools). And the media that
    are to be fetched, with where they will be put."""
    size = media = 0
    external: list[ExternalInput] = []
    found: dict[str, str] = {}
    every = json_body.read(_objects, bytes(messages))
    for at, message in enumerate(every):
        parts = _parts_of(message)
        for index, part in enumerate((message, *parts), -1):
            named = part.keys() - _COUNTED_APART
            media += not named.isdisjoint(_MEDIA)
            if refused := named & _EMBEDS:
                raise BadRequest(
                    f"messages[{at}]: {min(refused)} is not accepted: the engine would unpickle it",
                    param="messages",
                )
            size += sum(len(part[name]) for name in named - _MEDIA if _given(part[name]))
            for name in named & _FETCHED:
                url = _url_of(part[name])
                if url and index >= 0:
                    label = f"messages[{at}].content[{index}].{name}"
                    external.append(ExternalInput(label, url, partial(_keep, found, url)))
    return size // _BYTES_PER_TOKEN + media * _MEDIA_TOKENS, external, found


def _parts_of(message: Mapping[str, msgspec.Raw]) -> list[dict[str, msgspec.Raw]]:
    content = message.get("content")
    if content is None or not json_body.is_array(content):
        return []
    return json_body.read(_objects, bytes(content))


def _url_of(raw: msgspec.Raw) -> str:
    """The URL of an image or the like that is to be fetched; "": it is here, or there is none. The
    engine takes `{"url": …}` and the URL itself."""
    try:
        media = _media.decode(raw)
    except json_body.DECODE_ERRORS:
        return ""  # the engine says what is wrong with it
    url = media if isinstance(media, str) else media.url if media else None
    return url if url and url[:5].lower() != "data:" else ""


def _keep(found: dict[str, str], url: str, fetched: Fetched) -> None:
    found[url] = f"data:{fetched.media_type};base64,{b64encode(fetched.content).decode()}"


def with_media(call: GenerationCall) -> GenerationCall:
    """The same request with what was fetched in place of its URLs, so that the engine fetches
    nothing; all other parts stay byte for byte."""
    given = json_body.read(_fields, call.body)
    messages = json_body.read(_objects, bytes(given["messages"]))
    for message in messages:
        parts = _parts_of(message)
        changed = False
        for part in parts:
            for name in part.keys() & _FETCHED:
                here = call.media.get(_url_of(part[name]))
                if here is not None:
                    part[name] = _replaced(part[name], here)
                    changed = True
        if changed:
            message["content"] = msgspec.Raw(msgspec.json.encode(parts))
    given["messages"] = msgspec.Raw(msgspec.json.encode(messages))
    return replace(call, body=msgspec.json.encode(given), external=())


def _replaced(raw: msgspec.Raw, url: str) -> msgspec.Raw:
    if not _is_object(raw):
        return msgspec.Raw(msgspec.json.encode(url))
    fields = _fields.decode(raw)
    fields["url"] = msgspec.Raw(msgspec.json.encode(url))
    return msgspec.Raw(msgspec.json.encode(fields))


def _is_object(raw: msgspec.Raw) -> bool:
    return bytes(memoryview(raw)[:64]).lstrip().startswith(b"{")


def _is_true(raw: msgspec.Raw | None) -> bool:
    """Whether the engine may take it for true: it also takes 1, 1.0, "on" and "yes"."""
    return raw is not None and _given(raw) and bytes(raw) not in (b"false", b"0")


def _listed(given: Mapping[str, msgspec.Raw], wanted: msgspec.Raw | None) -> int:
    """Log-probabilities of a token besides its own: the likeliest so many, or of tokens by name."""
    named = given.get("logprob_token_ids")
    return max(json_body.count_of(wanted), 0 if named is None else bytes(named).count(b",") + 1)


def _prompt_logprobs(given: Mapping[str, msgspec.Raw], logprobs: int) -> int:
    """With `echo` a prompt has as many as the output."""
    wanted = given.get("prompt_logprobs")
    if wanted is not None and _given(wanted):
        return 1 + json_body.count_of(wanted)
    return logprobs if _is_true(given.get("echo")) else 0


def _interval(given: Mapping[str, msgspec.Raw]) -> int:
    return max(json_body.count_of(given.get("stream_interval")), 1)


def _truncated(request: _Generation) -> int | None:
    """-1 stands for the longest prompt that leaves room for the answer."""
    cut = request.truncate_prompt_tokens
    return None if cut is None or cut == 0 or cut < -1 else cut


def _prompts(raw: msgspec.Raw) -> tuple[list[str] | None, list[list[int]] | None]:
    """By the first characters, so that each form's own mistakes are named."""
    start = _START.match(memoryview(raw))
    assert start is not None  # the pattern matches anything
    if not start["outer"]:
        return [_text.decode(raw)], None
    if start["inner"] not in (b'"', b"["):
        if json_body.is_long(raw):
            return None, [[token for _, part in json_body.pieces(raw, _Token) for token in part]]
        return None, [json_body.integers(_token_list, raw)]
    # Counted first: millions of one-token lists take seconds to make, in which nothing else runs.
    count = len(json_body.rows(raw, MAX_PROMPTS))
    if not 1 <= count <= MAX_PROMPTS:
        raise BadRequest(
            f"prompt has {count} entries; it must have 1 to {MAX_PROMPTS}.", param="prompt"
        )
    if start["inner"] == b'"':
        return _texts.decode(raw), None
    return None, json_body.integers(_token_lists, raw)


def _conversation(request: ChatRequest) -> str:
    """What a template makes a prompt of: tools come first in all that are in use, then messages."""
    parts = [_text_of(request.tools)] if _given(request.tools) else []
    for message in request.messages:
        content = message.content
        if isinstance(content, str):
            parts.append(content)
        elif content is not None:
            parts += [part.text for part in content if part.text]
        if _given(message.tool_calls):
            parts.append(_text_of(message.tool_calls))
    return "\n".join(parts)


def _given(raw: msgspec.Raw) -> bool:
    return bytes(raw) not in (b"", b"null")


def _text_of(raw: msgspec.Raw) -> str:
    """For measuring alone: whether it is valid is the engine's question."""
    return bytes(raw).decode(errors="replace")


def with_fields(call: GenerationCall, fields: Mapping[str, str | int]) -> GenerationCall:
    """The same request with these fields set; all others stay byte for byte. Raises BadRequest for
    a field of which nothing is known and whose name is not UTF-8: only here is it decoded."""
    given = json_body.read(_fields, call.body)
    given |= {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in fields.items()}
    return replace(call, body=msgspec.json.encode(given))


def fingerprint(call: GenerationCall, version: str) -> bytes:
    """Equal for requests that give this version's engine the same work: prompts, media, and all
    that steers the answer, but for who asks, how it is sent, and the seed. In whichever order
    fields come; what is within them counts byte for byte. The same at every gateway. Takes about
    1 ns a byte."""
    given = json_body.read(_fields, call.body)
    parts = [version, call.endpoint]
    parts += [f"{name}\0{len(given[name])}" for name in sorted(given.keys() - _NO_WORK)]
    digest = blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=32)
    for name in sorted(given.keys() - _NO_WORK):
        digest.update(given[name])
    return digest.digest()


def error_event(error: HeadraceError) -> bytes:
    """How an answer ends that has begun to stream and cannot go on."""
    return b"data: " + error_shapes.openai_error(error).body + b"\n\n"
