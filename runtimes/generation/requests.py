"""What a request to generate asks for, in OpenAI's JSON with the fields that vLLM adds.

Every field is read, means nothing for the answer (`_MEANINGLESS`), says what happens anyway
(`AS_IT_IS`), or is refused by its name: none is passed over. Null is as if a field were missing.
Source: OpenAI's API reference, "Create chat completion", "Create completion"; vLLM's protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic_core import from_json

from runtimes.synthetic.stream import InvalidRequest
from runtimes.vllm.refusals import sentence

MAX_LOGPROBS = 20  # alternatives of a token, as at OpenAI
MAX_OUTPUTS = 2048  # of all prompts of a request together
MIN_PENALTY, MAX_PENALTY = 1e-3, 1e3  # of repetition; beyond them float32 may overflow
_MAX_STOPS = 64
_MAX_BIASES = 1024
_GREEDY = 1e-5  # temperatures below it, as in vLLM
_COMPLETION_TOKENS = 16  # of completions that do not say

_MEANINGLESS = frozenset(
    {"user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "request_id",
     "prompt_cache_retention", "priority"}
)  # fmt: skip
AS_IT_IS: Mapping[str, tuple[Any, ...]] = {
    "tools": ([],), "tool_choice": ("none", "auto"), "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},), "store": (False,), "best_of": (1,), "suffix": ("",),
    "use_beam_search": (False,), "length_penalty": (1.0,), "bad_words": ([],),
    "spaces_between_special_tokens": (True,), "modalities": (["text"],),
    "add_generation_prompt": (True,), "continue_final_message": (False,),
    "return_tokens_as_token_ids": (False,), "include_reasoning": (True, False),
}  # fmt: skip

_Count = Annotated[int, Field(ge=1)]
_Token = Annotated[int, Field(ge=0, lt=2**31)]
_Stop = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
_Stops = Annotated[list[_Stop], Field(max_length=_MAX_STOPS)]
_Penalty = Annotated[float, Field(ge=-2, le=2)]
_Arguments = Annotated[dict[str, str | bool | int | float | None], Field(max_length=16)]
_Ids = Annotated[list[_Token], Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _StreamOptions(_Strict):
    include_usage: bool = False
    continuous_usage_stats: Literal[False] = False
    include_obfuscation: Literal[False] = False


class _Common(_Strict):
    model: str = ""
    n: Annotated[int, Field(ge=1, le=128)] = 1
    max_tokens: _Count | None = None
    stream: bool = False
    stream_options: _StreamOptions | None = None
    stop: _Stop | _Stops = []
    stop_token_ids: Annotated[list[_Token], Field(max_length=_MAX_STOPS)] = []
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    return_token_ids: bool = False
    cache_salt: Annotated[str, StringConstraints(min_length=1)] = ""

    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=MIN_PENALTY, le=MAX_PENALTY)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    presence_penalty: _Penalty = 0.0
    frequency_penalty: _Penalty = 0.0
    logit_bias: Annotated[dict[str, float], Field(max_length=_MAX_BIASES)] = {}
    min_tokens: Annotated[int, Field(ge=0)] = 0
    ignore_eos: bool = False


class Completion(_Common):
    prompt: str | _Ids | list[str] | list[_Ids]
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool = False


class _Part(_Strict):
    type: Literal["text", "input_text"]
    text: str


class _Message(_Strict):
    role: str
    content: str | list[_Part]
    name: str | None = None
    tool_call_id: str | None = None


class Chat(_Common):
    messages: Annotated[list[_Message], Field(min_length=1)]
    max_completion_tokens: _Count | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] = 0
    chat_template_kwargs: _Arguments = {}
    reasoning_effort: str | None = None


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a model's `generation_config.json` says of requests that do not say it themselves.
    `ends`: the tokens that end an answer."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None
    ends: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn. `top_k`: 0 for all; `logprobs`: alternatives of each token that
    the answer tells, None for nothing of the kind; `ends`: tokens that end the text, `min_tokens`
    at the earliest."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    seed: int | None
    min_tokens: int
    logprobs: int | None
    ends: frozenset[int]

    @property
    def is_greedy(self) -> bool:
        return self.temperature < _GREEDY


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. `prompts`: texts or token ids, () for a chat; `max_tokens`: of each output, None
    for as many as there is room for."""

    chat: bool
    sampling: Sampling
    n: int
    max_tokens: int | None
    stream: bool
    usage: bool
    echo: bool
    stop: tuple[str, ...]
    include_stop: bool
    skip_special: bool
    token_ids: bool  # whether the answer has its tokens' ids
    cache_salt: str
    prompts: tuple[str | list[int], ...] = ()
    messages: list[dict[str, Any]] = field(default_factory=list)
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of the chat template


def read(endpoint: str, body: bytes, model: str, defaults: Defaults) -> Asked:
    """Raises `InvalidRequest`. `model`: the only name that is served."""
    try:
        given = from_json(body, allow_inf_nan=False)  # refuses halves of characters, too
    except ValueError as error:
        raise InvalidRequest(f"the body is no JSON: {error}") from error
    if not isinstance(given, dict):
        raise InvalidRequest("the body must be a JSON object")
    kind = Chat if endpoint == "chat" else Completion
    fields = {name: value for name, value in given.items() if _matters(name, value)}
    unknown = sorted(fields.keys() - kind.model_fields.keys())
    if unknown:
        raise InvalidRequest(
            f"{unknown[0]} is not supported by this model's runtime; leave it out", unknown[0]
        )
    try:
        asked = kind.model_validate(fields)
    except ValidationError as error:
        message, param = sentence(error)
        raise InvalidRequest(message, param) from error
    if asked.model != model and asked.model:
        raise InvalidRequest(f"The model `{asked.model}` does not exist.", "model", 404)
    return _asked(asked, defaults)


def check_vocabulary(asked: Asked, prompts: Sequence[Sequence[int]], size: int) -> None:
    """Raises `InvalidRequest` for a token that the model does not have."""
    named = {
        "prompt": (token for prompt in prompts for token in prompt),
        "logit_bias": asked.sampling.logit_bias,
        "stop_token_ids": asked.sampling.ends,
    }
    for name, tokens in named.items():
        largest = max(tokens, default=0)
        if largest >= size:
            param = "messages" if asked.chat and name == "prompt" else name
            raise InvalidRequest(f"token id {largest} in {name} is out of vocabulary", param)


def room(asked: Asked, prompt: int, context: int) -> int:
    """Tokens of an output behind a prompt of so many. Raises `InvalidRequest`."""
    param = "messages" if asked.chat else "prompt"
    if not prompt:
        raise InvalidRequest("the prompt has no tokens", param)
    left, most = context - prompt, asked.max_tokens
    if left < 1:
        raise InvalidRequest(
            f"This model's maximum context length is {context} tokens, and the prompt has {prompt}",
            param,
        )
    if most is not None and most > left:
        raise InvalidRequest(
            f"This model's maximum context length is {context} tokens; the prompt has {prompt}, "
            f"and max_tokens is {most}", "max_tokens",
        )  # fmt: skip
    return left if most is None else most


def _matters(name: str, value: Any) -> bool:
    known = AS_IT_IS.get(name, ())
    is_so = any(type(value) is type(each) and value == each for each in known)
    return value is not None and name not in _MEANINGLESS and not is_so


def _asked(said: Completion | Chat, defaults: Defaults) -> Asked:
    chat = isinstance(said, Chat)
    most = said.max_completion_tokens if isinstance(said, Chat) else None
    most = said.max_tokens if most is None else most
    if most is None:
        most = defaults.max_tokens if chat else _COMPLETION_TOKENS
    if said.stream_options is not None and not said.stream:
        raise InvalidRequest("stream_options needs stream: true", "stream_options")
    if most is not None and said.min_tokens > most:
        raise InvalidRequest(
            f"min_tokens is {said.min_tokens}, more than the {most} tokens of an answer",
            "min_tokens",
        )
    prompts = _prompts(said.prompt) if isinstance(said, Completion) else ()
    if said.n * len(prompts) > MAX_OUTPUTS:
        raise InvalidRequest(
            f"the request has {len(prompts)} prompts with {said.n} outputs each; it may have "
            f"{MAX_OUTPUTS} outputs in all", "n",
        )  # fmt: skip
    return Asked(
        chat=chat,
        sampling=_sampling(said, defaults),
        n=said.n,
        max_tokens=most,
        stream=said.stream,
        usage=said.stream_options is not None and said.stream_options.include_usage,
        echo=isinstance(said, Completion) and said.echo,
        stop=(said.stop,) if isinstance(said.stop, str) else tuple(said.stop),
        include_stop=said.include_stop_str_in_output,
        skip_special=said.skip_special_tokens,
        token_ids=said.return_token_ids,
        cache_salt=said.cache_salt,
        prompts=prompts,
        messages=[_message(each) for each in said.messages] if isinstance(said, Chat) else [],
        arguments=_arguments(said) if isinstance(said, Chat) else {},
    )


def _sampling(said: Completion | Chat, defaults: Defaults) -> Sampling:
    def default(name: str) -> Any:
        value = getattr(said, name)
        return getattr(defaults, name) if value is None else value

    ends = frozenset(said.stop_token_ids)
    return Sampling(
        temperature=default("temperature"),
        top_p=default("top_p"),
        top_k=max(default("top_k"), 0),
        min_p=default("min_p"),
        repetition_penalty=default("repetition_penalty"),
        presence_penalty=said.presence_penalty,
        frequency_penalty=said.frequency_penalty,
        logit_bias=_biases(said.logit_bias),
        seed=said.seed,
        min_tokens=said.min_tokens,
        logprobs=_logprobs(said),
        ends=ends if said.ignore_eos else ends | defaults.ends,
    )


def _biases(said: Mapping[str, float]) -> dict[int, float]:
    try:
        biases = {int(token): value for token, value in said.items()}
    except ValueError:
        raise InvalidRequest("logit_bias has a key that is no token id", "logit_bias") from None
    if any(token < 0 for token in biases):
        raise InvalidRequest("logit_bias has a token id below 0", "logit_bias")
    if any(abs(value) > 100 for value in biases.values()):
        raise InvalidRequest("logit_bias has a value outside -100 to 100", "logit_bias")
    return biases


def _logprobs(said: Completion | Chat) -> int | None:
    if isinstance(said, Completion):
        if said.echo and said.logprobs is not None:
            raise InvalidRequest("logprobs cannot be told of an echoed prompt; leave echo out",
                                 "logprobs")  # fmt: skip
        return said.logprobs
    if said.top_logprobs and not said.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true", "top_logprobs")
    return said.top_logprobs if said.logprobs else None


def _prompts(prompt: str | list[int] | list[str] | list[list[int]]) -> tuple[Any, ...]:
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        return (prompt,)
    if not prompt:
        raise InvalidRequest("prompt has none", "prompt")
    return tuple(prompt)


def _message(message: _Message) -> dict[str, Any]:
    """As chat templates read it: with one text."""
    said = message.model_dump(exclude_none=True)
    if isinstance(message.content, list):
        said["content"] = "\n".join(part.text for part in message.content)
    return said


def _arguments(said: Chat) -> dict[str, Any]:
    if said.reasoning_effort is None:
        return said.chat_template_kwargs
    return {"reasoning_effort": said.reasoning_effort, **said.chat_template_kwargs}
