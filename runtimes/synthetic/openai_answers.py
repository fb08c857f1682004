"""The part of OpenAI's API for text that a fake engine has to speak.

What is read of a request, and the JSON and server-sent events of its answer, for `/v1/completions`
and `/v1/chat/completions`; whatever else a body holds is passed over. vLLM has its own layer for
all of this; here is what a stand-in needs to be asked and read by any client.
Source: OpenAI's API reference.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

DONE = b"data: [DONE]\n\n"


class InvalidRequest(Exception):
    """The request is at fault; `status` is HTTP's, `param` the field."""

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.status = status


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """`prompt`: text, or token ids. `most`: output tokens a sequence, None: not said."""

    chat: bool
    prompt: str | tuple[int, ...]
    n: int
    most: int | None
    stream: bool
    usage: bool


def read(endpoint: str, body: bytes, model: str) -> GenerationRequest:
    """Raises `InvalidRequest`. `model`: the only name that is served."""
    try:
        asked = json.loads(body)
    except ValueError as error:
        raise InvalidRequest(f"the body is no JSON: {error}") from error
    if not isinstance(asked, dict):
        raise InvalidRequest("the body must be a JSON object")
    if asked.get("model", model) != model:
        raise InvalidRequest(f"The model `{asked['model']}` does not exist.", "model", 404)
    chat = endpoint == "chat"
    most = asked.get("max_completion_tokens", asked.get("max_tokens")) if chat else None
    most = most if chat else asked.get("max_tokens", 16)
    options = asked.get("stream_options") or {}
    return GenerationRequest(
        chat=chat,
        prompt=_chat_prompt(asked.get("messages")) if chat else _prompt(asked.get("prompt")),
        n=_count(asked.get("n", 1), "n") or 1,
        most=_count(most, "max_tokens"),
        stream=bool(asked.get("stream")),
        usage=isinstance(options, dict) and bool(options.get("include_usage")),
    )


def _count(value: Any, name: str) -> int | None:
    if value is None:
        return None
    if type(value) is not int or value < 1:
        raise InvalidRequest(f"{name} must be a whole number of at least 1, got {value!r}", name)
    return value


def _prompt(prompt: Any) -> str | tuple[int, ...]:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return tuple(prompt)
    raise InvalidRequest("prompt must be one text, or one list of token ids", "prompt")


def _chat_prompt(messages: Any) -> str:
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("messages must be a list of at least one message", "messages")
    lines = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, str):
            raise InvalidRequest("each message must have a role and a text as content", "messages")
        lines.append(f"{message.get('role', 'user')}: {content}\n")
    return "".join(lines)


def error(fault: InvalidRequest) -> bytes:
    kind = "NotFoundError" if fault.status == 404 else "BadRequestError"
    body = {"message": str(fault), "type": kind, "param": fault.param, "code": fault.status}
    return _json({"error": body})


class Answers:
    """One request's answers. `name`: unique; `usage` is counted by the caller."""

    def __init__(self, request: GenerationRequest, model: str, name: str) -> None:
        self._request = request
        prefix, kind = (
            ("chatcmpl", "chat.completion") if request.chat else ("cmpl", "text_completion")
        )
        self._kind = kind
        self._head = {"id": f"{prefix}-{name}", "created": 0, "model": model}

    def first(self) -> bytes:
        """Events before any token."""
        if not self._request.chat:
            return b""
        role = {"role": "assistant", "content": ""}
        return b"".join(
            self._event([{"index": i, "delta": role, "logprobs": None, "finish_reason": None}])
            for i in range(self._request.n)
        )

    def token(self, index: int, text: str, finish: str | None) -> bytes:
        part: dict[str, Any] = (
            {"delta": {"content": text}} if self._request.chat else {"text": text}
        )
        return self._event([{"index": index, **part, "logprobs": None, "finish_reason": finish}])

    def last(self, usage: dict[str, Any]) -> bytes:
        tail = self._event([], usage=usage) if self._request.usage else b""
        return tail + DONE

    def whole(self, texts: list[str], finish: str, usage: dict[str, Any]) -> bytes:
        choices = [
            {"index": i, **self._text(text), "logprobs": None, "finish_reason": finish}
            for i, text in enumerate(texts)
        ]
        return _json({**self._head, "object": self._kind, "choices": choices, "usage": usage})

    def _text(self, text: str) -> dict[str, Any]:
        if self._request.chat:
            return {"message": {"role": "assistant", "content": text}}
        return {"text": text}

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        kind = "chat.completion.chunk" if self._request.chat else self._kind
        page = {**self._head, "object": kind, "choices": choices, **more}
        return b"data: " + _json(page) + b"\n\n"


def usage(input_tokens: int, cached_tokens: int, output_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": input_tokens,
        "total_tokens": input_tokens + output_tokens,
        "completion_tokens": output_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def _json(page: dict[str, Any]) -> bytes:
    return json.dumps(page, separators=(",", ":"), ensure_ascii=False).encode()
