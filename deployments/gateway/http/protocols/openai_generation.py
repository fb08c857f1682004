"""OpenAI's `/v1/completions` and `/v1/chat/completions`: what a gateway has to know of a request.

`GenerationCall`, and what is done with one, is the same for the other ways to generate.

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
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Annotated, Literal

import msgspec

from deployments.contract.errors import BadRequest
from deployments.gateway.http.protocols import generation_fields, json_body
from deployments.gateway.http.protocols.generation_fields import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    MAX_MESSAGES,
    is_given,
    is_object,
    is_true,
)
from deployments.gateway.http.protocols.tensors import (
    External,
    ExternalInput,
    Fetched,
    any_of,
    documented,
)

MAX_PROMPTS = 2048
MAX_SEQUENCES = 128  # of one prompt, as at OpenAI
# Of a field that demands a form of the answer. The engine parses it on the event loop that also
# hands on everybody's tokens, and takes half as much, as compact JSON.
MAX_FORM_BYTES = 64 << 10
_COMPLETION_TOKENS = 16  # what OpenAI's completions give where nothing is said
MESSAGE_TOKENS = 4  # what a chat template puts around each message, and before the answer
BYTES_PER_TOKEN = 4
MEDIA_TOKENS = 1024  # of an image, a sound or a film: what models make of a megapixel

Endpoint = Literal[
    "chat", "completions", "messages", "responses", "count_tokens", "tokenize", "detokenize"
]
_COUNTS: frozenset[Endpoint] = frozenset({"count_tokens", "tokenize", "detokenize"})
_PARAMS: Mapping[Endpoint, str] = {
    "completions": "prompt", "responses": "input", "tokenize": "prompt", "detokenize": "tokens",
}  # fmt: skip
_Many = Annotated[int, msgspec.Meta(ge=1, le=MAX_SEQUENCES)]
Size = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Token = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Tokens = Annotated[list[_Token], msgspec.Meta(min_length=1)]


_Prompts = Annotated[list[str], msgspec.Meta(min_length=1, max_length=MAX_PROMPTS)]
_TokenLists = Annotated[list[_Tokens], msgspec.Meta(min_length=1, max_length=MAX_PROMPTS)]
_PROMPT = documented(**any_of(str, _Prompts, _Tokens, _TokenLists))
MODEL = msgspec.Meta(min_length=1, description="A model, or `model:adapter`.")
USER = documented("A session, where x-session-id names none.")
_CUT = msgspec.Meta(
    ge=-1, le=2**31 - 1, description="The engine cuts prompts to so many; -1: to what fits."
)
FORM = documented("A form that the answer must have.", type=["object", "null"])
TOOLS = documented("Left to the engine.", type=["array", "null"], items={"type": "object"})


class ContentPart(msgspec.Struct, gc=False):
    text: str | None = None


# Templates put both between the characters of a special token's name. OpenAI's patterns.
_ROLE = msgspec.Meta(pattern="^[A-Za-z0-9_-]{1,64}$")
_NAME = msgspec.Meta(pattern=r"^[^\s<|\\/>]{1,64}$")


class Message(msgspec.Struct, gc=False):
    role: Annotated[str, _ROLE]
    name: Annotated[str, _NAME] | None = None
    content: str | list[ContentPart] | None = None
    tool_calls: Annotated[msgspec.Raw, TOOLS] = msgspec.field(default_factory=msgspec.Raw)


class _Generation(msgspec.Struct, gc=False):
    model: Annotated[str, MODEL]
    stream: bool | None = None
    n: _Many | None = None
    max_tokens: Size | None = None
    user: Annotated[str | None, USER] = None
    truncate_prompt_tokens: Annotated[int, _CUT] | None = None
    response_format: Annotated[msgspec.Raw, FORM] = msgspec.field(default_factory=msgspec.Raw)
    structured_outputs: Annotated[msgspec.Raw, FORM] = msgspec.field(default_factory=msgspec.Raw)


class CompletionRequest(_Generation, gc=False):
    prompt: Annotated[msgspec.Raw, _PROMPT] = msgspec.field(default_factory=msgspec.Raw)
    best_of: _Many | None = None


class ChatRequest(_Generation, gc=False):
    messages: Annotated[list[Message], documented(minItems=1)] = msgspec.field(default_factory=list)
    max_completion_tokens: Size | None = None
    tools: Annotated[msgspec.Raw, TOOLS] = msgspec.field(default_factory=msgspec.Raw)


@dataclass(frozen=True, slots=True)
class GenerationCall:
    """`model`: the served one that is asked for; `adapter`: of that, "" for none. `texts` or
    `tokens` (exactly one is set): the prompts. `extra_tokens`: what a template may add to the
    first, about: around messages, of media, and of fields that may come into a prompt. `sequences`:
    of all prompts together. `max_tokens`: of each sequence, None where the request does not say.
    `truncate_tokens`: the engine is to cut each prompt to so many. `logprobs`: how many the answer
    has of each output token; `prompt_logprobs`: of each of the prompt's, for each sequence.
    `external`: images, sounds and films that parts name by URL; `media`: the `data:` URLs of those
    that are here, by URL. `interval`: tokens of a streamed piece. `defaults`: fields that the
    engine is sent because the request has none."""

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
    defaults: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def param(self) -> str:
        """What holds the prompt."""
        return _PARAMS.get(self.endpoint, "messages")

    @property
    def most(self) -> str:
        """What bounds the output."""
        return "max_output_tokens" if self.endpoint == "responses" else "max_tokens"

    @property
    def generates(self) -> bool:
        """Whether the engine runs its model, or only makes tokens of texts or texts of tokens."""
        return self.endpoint not in _COUNTS


_completions = msgspec.json.Decoder(CompletionRequest)
_chats = msgspec.json.Decoder(ChatRequest)
_text = msgspec.json.Decoder(str)
_texts = msgspec.json.Decoder(list[str])
_token_list = msgspec.json.Decoder(_Tokens)
_token_lists = msgspec.json.Decoder(list[_Tokens])
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_COUNTED_APART = frozenset({"role", "content", "tool_calls", "type", "text"})
_MEDIA = frozenset(
    {"image_url", "input_image", "image_pil", "image_embeds", "input_audio", "audio_url",
     "audio_embeds", "video_url", "video_embeds", "prompt_embeds", "file"}
)  # fmt: skip
_EMBEDS = frozenset({"image_embeds", "audio_embeds", "video_embeds", "prompt_embeds"})
_FETCHED = frozenset({"image_url", "audio_url", "video_url"})
_WITH_URLS = _FETCHED | {"source"}  # Anthropic's
_FILES = frozenset({"source", "file_id", "file_url", "file_data"})
_LISTS = frozenset({"content", "output"})  # of parts
NO_FILES = "file_id names a file that was sent before, and nothing is kept here; send its content."
_MAX_NESTED = 3  # messages, their parts, and parts of a tool's result


class _Media(msgspec.Struct):
    url: str | None = None


class _Source(msgspec.Struct):
    type: str = ""
    file_id: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


_media = msgspec.json.Decoder(str | _Media | None)
_sources = msgspec.json.Decoder(_Source | None)
_objects = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_START = re.compile(rb"\s*(?P<outer>\[?)\s*(?P<inner>.?)", re.DOTALL)


def decode_completion(body: bytes) -> GenerationCall:
    """Raises `BadRequest`, which names the parameter at fault."""
    request = json_body.read(_completions, body)
    _check_forms(request)
    if not is_given(request.prompt):
        raise BadRequest("prompt is missing.", param="prompt")
    try:
        texts, tokens = _prompts(request.prompt)
    except json_body.DECODE_ERRORS as error:
        refusal = json_body.element(error, "The body", "prompt")
        raise BadRequest(refusal.message, param="prompt") from None
    each = max(request.n or 1, request.best_of or 1)
    most = _COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens
    model, _, adapter = request.model.partition(":")
    given = generation_fields.checked(body, COMPLETION_FIELDS)
    generation_fields.check_beams(given, each)
    wanted = given.get("logprobs")
    logprobs = 0 if wanted is None or not is_given(wanted) else 1 + _listed(given, wanted)
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
    check_messages(request.messages)
    most = request.max_completion_tokens
    extra = MESSAGE_TOKENS * (len(request.messages) + 1)
    given = generation_fields.checked(body, CHAT_FIELDS)
    generation_fields.check_beams(given, request.n or 1)
    beside, external, media = beside_texts(given["messages"])
    extra += generation_fields.unread_tokens(given, CHAT_FIELDS) + beside
    top = given.get("top_logprobs")
    logprobs = 1 + _listed(given, top) if is_true(given.get("logprobs")) else 0
    model, _, adapter = request.model.partition(":")
    return GenerationCall(
        "chat", model, body, bool(request.stream), [_conversation(request)], None, request.n or 1,
        request.max_tokens if most is None else most, request.user or "", extra,
        _truncated(request), adapter, logprobs,
        _prompt_logprobs(given, 1 + json_body.count_of(top)), external, media, _interval(given),
    )  # fmt: skip


def check_messages(messages: Sequence[Message]) -> None:
    parts = sum(len(each.content) for each in messages if isinstance(each.content, list))
    check_count("messages", len(messages), parts)


def check_count(param: str, messages: int, parts: int) -> None:
    """Raises BadRequest."""
    if messages + parts > MAX_MESSAGES:
        raise BadRequest(
            f"{param} has {messages} messages, with {parts} parts; it may have "
            f"{MAX_MESSAGES} of both together.",
            param=param,
        )


def _check_forms(request: _Generation) -> None:
    for name in ("response_format", "structured_outputs"):
        check_form(name, getattr(request, name))


def check_form(name: str, form: msgspec.Raw) -> None:
    """Raises BadRequest."""
    size = len(memoryview(form))
    if size > MAX_FORM_BYTES:
        raise BadRequest(f"{name} has {size} bytes; it may have {MAX_FORM_BYTES}.", param=name)


def beside_texts(messages: msgspec.Raw) -> tuple[int, External, dict[str, str]]:
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
            _refuse_embeddings(named, f"messages[{at}]", "messages")
            size += sum(len(part[name]) for name in named - _MEDIA if is_given(part[name]))
            for name in named & _FETCHED:
                url = _url_of(part[name])
                if url and index >= 0:
                    label = f"messages[{at}].content[{index}].{name}"
                    external.append(to_fetch(label, url, found))
    return size // BYTES_PER_TOKEN + media * MEDIA_TOKENS, external, found


def objects(
    raw: msgspec.Raw, label: str, depth: int = _MAX_NESTED
) -> Iterator[tuple[str, dict[str, msgspec.Raw]]]:
    """Messages or items, their parts, and the parts of those, each with where it is."""
    if not depth or not json_body.is_array(raw):
        return
    every: list[dict[str, msgspec.Raw]] = json_body.read(_objects, bytes(raw))
    for at, each in enumerate(every):
        yield f"{label}[{at}]", each
        for name in _LISTS & each.keys():
            yield from objects(each[name], f"{label}[{at}].{name}", depth - 1)


class Beside:
    """What messages or items hold besides the texts that are read, as `beside_texts` says of
    chats. `apart`: what is counted elsewhere."""

    def __init__(self, apart: frozenset[str]) -> None:
        self._apart = apart
        self._size = self._media = self._top = self._parts = 0
        self.external: list[ExternalInput] = []
        self.media: dict[str, str] = {}

    def take(self, raw: msgspec.Raw, label: str) -> None:
        """Raises BadRequest for a file that a server would have to keep, and for too many parts."""
        for place, each in objects(raw, label):
            is_top = place.count("[") == 1
            self._top, self._parts = self._top + is_top, self._parts + (not is_top)
            named = each.keys() - self._apart
            _refuse_embeddings(named, place, label)
            media = named & (_MEDIA | _FILES)
            self._media += bool(media)
            self._size += sum(len(each[n]) for n in named - media if is_given(each[n]))
            for name in media:
                source = _source(each[name]) if name == "source" else _Source()
                if is_given(source.file_id) or (name == "file_id" and is_given(each[name])):
                    raise BadRequest(f"{place}: {NO_FILES}", param=label)
                url = _url_of(each[name]) if name in _FETCHED or source.type == "url" else ""
                if url:
                    self.external.append(to_fetch(f"{place}.{name}", url, self.media))
        check_count(label, self._top, self._parts)

    @property
    def tokens(self) -> int:
        """About."""
        return self._size // BYTES_PER_TOKEN + self._media * MEDIA_TOKENS


def _refuse_embeddings(named: Set[str], place: str, param: str) -> None:
    if refused := named & _EMBEDS:
        said = f"{place}: {min(refused)} is not accepted: the engine would unpickle it"
        raise BadRequest(said, param=param)


def _source(raw: msgspec.Raw) -> _Source:
    try:
        return _sources.decode(raw) or _Source()
    except json_body.DECODE_ERRORS:
        return _Source()  # the engine says what is wrong with it


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


def to_fetch(label: str, url: str, found: dict[str, str]) -> ExternalInput:
    """What is behind this URL; it is put into `found`."""
    return ExternalInput(label, url, partial(_keep, found, url))


def _keep(found: dict[str, str], url: str, fetched: Fetched) -> None:
    found[url] = f"data:{fetched.media_type};base64,{b64encode(fetched.content).decode()}"


def with_media(call: GenerationCall) -> GenerationCall:
    """The same request with what was fetched in place of its URLs, so that the engine fetches
    nothing; all other parts stay byte for byte."""
    given = json_body.read(_fields, call.body)
    name = call.param if call.param in given else "messages"
    given[name] = _filled(given[name], call.media, _MAX_NESTED)
    return replace(call, body=msgspec.json.encode(given), external=())


def _filled(raw: msgspec.Raw, media: Mapping[str, str], depth: int) -> msgspec.Raw:
    """A list of messages, items or parts with its media in place; the same bytes without any."""
    if not depth or not json_body.is_array(raw):
        return raw
    every, changed = json_body.read(_objects, bytes(raw)), False
    for each in every:
        found = {name: _replaced(each[name], media) for name in each.keys() & _WITH_URLS}
        found |= {name: _filled(each[name], media, depth - 1) for name in each.keys() & _LISTS}
        changed |= any(here is not each[name] for name, here in found.items())
        each |= found
    return msgspec.Raw(msgspec.json.encode(every)) if changed else raw


def _replaced(raw: msgspec.Raw, media: Mapping[str, str]) -> msgspec.Raw:
    here = media.get(_url_of(raw))
    if here is None:
        return raw
    if not is_object(raw):
        return msgspec.Raw(msgspec.json.encode(here))
    fields = _fields.decode(raw)
    fields["url"] = msgspec.Raw(msgspec.json.encode(here))
    return msgspec.Raw(msgspec.json.encode(fields))


def _listed(given: Mapping[str, msgspec.Raw], wanted: msgspec.Raw | None) -> int:
    """Log-probabilities of a token besides its own: the likeliest so many, or of tokens by name."""
    named = given.get("logprob_token_ids")
    return max(json_body.count_of(wanted), 0 if named is None else bytes(named).count(b",") + 1)


def _prompt_logprobs(given: Mapping[str, msgspec.Raw], logprobs: int) -> int:
    """With `echo` a prompt has as many as the output."""
    wanted = given.get("prompt_logprobs")
    if wanted is not None and is_given(wanted):
        return 1 + json_body.count_of(wanted)
    return logprobs if is_true(given.get("echo")) else 0


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
    parts = [text_of(request.tools)] if is_given(request.tools) else []
    for message in request.messages:
        content = message.content
        if isinstance(content, str):
            parts.append(content)
        elif content is not None:
            parts += [part.text for part in content if part.text]
        if is_given(message.tool_calls):
            parts.append(text_of(message.tool_calls))
    return "\n".join(parts)


def text_of(raw: msgspec.Raw) -> str:
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
    names = sorted(given.keys() - generation_fields.NO_WORK[call.endpoint])
    parts = [version, call.endpoint, *(f"{name}\0{len(given[name])}" for name in names)]
    digest = blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=32)
    for name in names:
        digest.update(given[name])
    return digest.digest()
