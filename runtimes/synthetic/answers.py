"""Requests and answers of the synthetic engine, in the form of each endpoint.

What a stand-in needs: the prompt, how long and how often it is to be answered, and how. Source: the
API references of OpenAI (completions, chats, responses) and Anthropic (messages); vLLM's tokenize.
"""

from __future__ import annotations

import json
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

DONE = b"data: [DONE]\n\n"
COUNTS = ("count_tokens", "tokenize", "detokenize")
Usage = tuple[int, int, int]  # tokens of the prompt, of those in the cache, and of the output


class InvalidRequest(Exception):
    """The request is at fault; `status` is HTTP's, `param` the field."""

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.status = status


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """`prompt`: text, or token ids. `most`: output tokens a sequence, None: not said."""

    endpoint: str
    prompt: str | tuple[int, ...]
    n: int
    most: int | None
    stream: bool
    usage: bool
    adapter: str = ""


def read(
    endpoint: str, body: bytes, model: str, adapters: Container[str] = ()
) -> GenerationRequest:
    """Raises `InvalidRequest`. `model`: the name that is served, and `model:adapter`."""
    try:
        asked = json.loads(body)
    except ValueError as error:
        raise InvalidRequest(f"the body is no JSON: {error}") from error
    if not isinstance(asked, dict):
        raise InvalidRequest("the body must be a JSON object")
    base, _, adapter = str(asked.get("model", model)).partition(":")
    if base != model or (adapter and adapter not in adapters):
        raise InvalidRequest(f"The model `{asked['model']}` does not exist.", "model", 404)
    most = asked.get("max_tokens", 16 if endpoint == "completions" else None)
    if endpoint == "chat":
        most = asked.get("max_completion_tokens", most)
    elif endpoint == "responses":
        most = asked.get("max_output_tokens")
    options = asked.get("stream_options") or {}
    several = endpoint in ("chat", "completions")
    return GenerationRequest(
        endpoint=endpoint,
        prompt=_prompt_of(endpoint, asked),
        n=(_count(asked.get("n", 1), "n") or 1) if several else 1,
        most=_count(most, "max_tokens"),
        stream=bool(asked.get("stream")),
        usage=isinstance(options, dict) and bool(options.get("include_usage")),
        adapter=adapter,
    )


def _count(value: Any, name: str) -> int | None:
    if value is None:
        return None
    if type(value) is not int or value < 1:
        raise InvalidRequest(f"{name} must be a whole number of at least 1, got {value!r}", name)
    return value


def _prompt_of(endpoint: str, asked: dict[str, Any]) -> str | tuple[int, ...]:
    if endpoint == "detokenize":
        return _prompt(asked.get("tokens"), "tokens")
    if endpoint == "completions" or (endpoint == "tokenize" and "prompt" in asked):
        return _prompt(asked.get("prompt"), "prompt")
    if endpoint == "responses":
        given = asked.get("input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        return _said("system", asked.get("instructions"), "input") + _chat_prompt(items, "input")
    before = _said("system", asked.get("system"), "system") if endpoint != "chat" else ""
    return before + _chat_prompt(asked.get("messages"), "messages")


def _prompt(prompt: Any, name: str) -> str | tuple[int, ...]:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return tuple(prompt)
    raise InvalidRequest(f"{name} must be one text, or one list of token ids", name)


def _chat_prompt(messages: Any, name: str) -> str:
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest(f"{name} must be a list of at least one message", name)
    lines = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if content is None:
            raise InvalidRequest("each message must have a role and a text as content", name)
        lines.append(_said(message.get("role", "user"), content, name))
    return "".join(lines)


def _said(role: str, content: Any, name: str) -> str:
    if content is None:
        return ""
    parts = [{"text": content}] if isinstance(content, str) else content
    texts: list[str] = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) else None
        if not isinstance(text, str):
            raise InvalidRequest("each message must have a role and a text as content", name)
        texts.append(text)
    return f"{role}: {''.join(texts)}\n"


_ERRORS = {404: "NotFoundError", 503: "ServiceUnavailableError"}


def error(fault: InvalidRequest) -> bytes:
    kind = _ERRORS.get(fault.status, "BadRequestError")
    body = {"message": str(fault), "type": kind, "param": fault.param, "code": fault.status}
    return _json({"error": body})


def counted(endpoint: str, tokens: tuple[int, ...], context: int) -> bytes:
    if endpoint == "count_tokens":
        return _json({"input_tokens": len(tokens)})
    page = {"count": len(tokens), "max_model_len": context, "tokens": tokens, "token_strs": None}
    return _json(page)


def detokenized(text: str) -> bytes:
    return _json({"prompt": text})


def answers(request: GenerationRequest, model: str, name: str) -> Answers:
    """`name`: unique."""
    if request.endpoint == "messages":
        return MessageAnswer(request, model, name)
    if request.endpoint == "responses":
        return ResponseAnswer(request, model, name)
    return Answers(request, model, name)


class Answers:
    """One request's answers, as completions and chats have them."""

    def __init__(self, request: GenerationRequest, model: str, name: str) -> None:
        self._request, self._model, self._name = request, model, name
        self._is_chat = request.endpoint == "chat"
        prefix, kind = (
            ("chatcmpl", "chat.completion") if self._is_chat else ("cmpl", "text_completion")
        )
        self._kind = kind
        self._head = {"id": f"{prefix}-{name}", "created": 0, "model": model}

    def first(self, inputs: int) -> bytes:
        """Events before any token. `inputs`: tokens of the prompt."""
        if not self._is_chat:
            return b""
        role = {"role": "assistant", "content": ""}
        return b"".join(
            self._event([{"index": i, "delta": role, "logprobs": None, "finish_reason": None}])
            for i in range(self._request.n)
        )

    def token(self, index: int, text: str, finish: str | None) -> bytes:
        part: dict[str, Any] = {"delta": {"content": text}} if self._is_chat else {"text": text}
        return self._event([{"index": index, **part, "logprobs": None, "finish_reason": finish}])

    def last(self, usage: Usage) -> bytes:
        tail = self._event([], usage=_usage(usage)) if self._request.usage else b""
        return tail + DONE

    def whole(self, texts: list[str], finish: str, usage: Usage) -> bytes:
        choices = []
        for i, text in enumerate(texts):
            said = {"message": {"role": "assistant", "content": text}}
            part: dict[str, Any] = said if self._is_chat else {"text": text}
            choices.append({"index": i, **part, "logprobs": None, "finish_reason": finish})
        page = {**self._head, "object": self._kind, "choices": choices, "usage": _usage(usage)}
        return _json(page)

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        kind = "chat.completion.chunk" if self._is_chat else self._kind
        page = {**self._head, "object": kind, "choices": choices, **more}
        return b"data: " + _json(page) + b"\n\n"


class MessageAnswer(Answers):
    """Anthropic's."""

    _finish: str | None = None

    def first(self, inputs: int) -> bytes:
        page = self._page([], None, {"input_tokens": inputs, "output_tokens": 0})
        block = {"type": "text", "text": ""}
        return _named("message_start", message=page) + _named(
            "content_block_start", index=0, content_block=block
        )

    def token(self, index: int, text: str, finish: str | None) -> bytes:
        self._finish = finish
        delta = {"type": "text_delta", "text": text}
        return _named("content_block_delta", index=0, delta=delta)

    def last(self, usage: Usage) -> bytes:
        delta = {"stop_reason": _stop_reason(self._finish), "stop_sequence": None}
        return (
            _named("content_block_stop", index=0)
            + _named("message_delta", delta=delta, usage=_message_usage(usage))
            + _named("message_stop")
        )

    def whole(self, texts: list[str], finish: str, usage: Usage) -> bytes:
        content = [{"type": "text", "text": text} for text in texts]
        return _json(self._page(content, _stop_reason(finish), _message_usage(usage)))

    def _page(self, content: Any, reason: str | None, usage: dict[str, int]) -> dict[str, Any]:
        return {
            "id": f"msg_{self._name}", "type": "message", "role": "assistant", "content": content,
            "model": self._model, "stop_reason": reason, "stop_sequence": None, "usage": usage,
        }  # fmt: skip


class ResponseAnswer(Answers):
    """OpenAI's responses."""

    _number = 0
    _text = ""
    _finish: str | None = None

    def first(self, inputs: int) -> bytes:
        page = self._page([], "in_progress", None)
        return (
            self._numbered("response.created", response=page)
            + self._numbered("response.in_progress", response=page)
            + self._numbered(
                "response.output_item.added", output_index=0, item=self._item("in_progress", [])
            )
            + self._of_part("response.content_part.added", part=_part(""))
        )

    def token(self, index: int, text: str, finish: str | None) -> bytes:
        self._text, self._finish = self._text + text, finish
        return self._of_part("response.output_text.delta", delta=text, logprobs=[])

    def last(self, usage: Usage) -> bytes:
        item = self._item("completed", [_part(self._text)])
        return (
            self._of_part("response.output_text.done", text=self._text, logprobs=[])
            + self._of_part("response.content_part.done", part=_part(self._text))
            + self._numbered("response.output_item.done", output_index=0, item=item)
            + self._numbered(
                "response.completed", response=self._page([item], _status(self._finish), usage)
            )
        )

    def whole(self, texts: list[str], finish: str, usage: Usage) -> bytes:
        items = [self._item("completed", [_part(text)]) for text in texts]
        return _json(self._page(items, _status(finish), usage))

    def _page(self, output: list[Any], status: str, usage: Usage | None) -> dict[str, Any]:
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": f"resp_{self._name}", "object": "response", "created_at": 0, "status": status,
            "model": self._model, "output": output, "incomplete_details": cut, "store": False,
            "instructions": None, "metadata": None, "parallel_tool_calls": True, "temperature": 1.0,
            "tool_choice": "none", "tools": [], "top_p": 1.0, "background": False,
            "usage": None if usage is None else _response_usage(usage),
        }  # fmt: skip

    def _item(self, status: str, content: list[Any]) -> dict[str, Any]:
        return {
            "id": f"msg_{self._name}", "type": "message", "role": "assistant", "status": status,
            "content": content,
        }  # fmt: skip

    def _of_part(self, kind: str, **more: Any) -> bytes:
        place = {"item_id": f"msg_{self._name}", "output_index": 0, "content_index": 0}
        return self._numbered(kind, **place, **more)

    def _numbered(self, kind: str, **more: Any) -> bytes:
        self._number += 1
        return _named(kind, sequence_number=self._number - 1, **more)


def _named(kind: str, **more: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _json({"type": kind, **more}))


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": None}


def _stop_reason(finish: str | None) -> str:
    return "max_tokens" if finish == "length" else "end_turn"


def _status(finish: str | None) -> str:
    return "incomplete" if finish == "length" else "completed"


def _usage(usage: Usage) -> dict[str, Any]:
    inputs, cached, outputs = usage
    return {
        "prompt_tokens": inputs,
        "total_tokens": inputs + outputs,
        "completion_tokens": outputs,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _message_usage(usage: Usage) -> dict[str, int]:
    inputs, cached, outputs = usage
    return {
        "input_tokens": inputs - cached,
        "output_tokens": outputs,
        "cache_read_input_tokens": cached,
    }


def _response_usage(usage: Usage) -> dict[str, Any]:
    inputs, cached, outputs = usage
    return {
        "input_tokens": inputs,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": outputs,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": inputs + outputs,
    }


def _json(page: Any) -> bytes:
    return json.dumps(page, separators=(",", ":"), ensure_ascii=False).encode()
