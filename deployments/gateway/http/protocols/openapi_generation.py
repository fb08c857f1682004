"""Chats and completions in the OpenAPI document: operations, bodies' schemas, an example a model.

Only what the gateway itself reads or promises is described; every other parameter is the engine's
own and allowed. An answer is JSON, or server-sent events where the request asks to stream.

Source: OpenAI API reference, "Create completion", "Create chat completion".
"""

from __future__ import annotations

from typing import Any

from deployments.contract.description import ModelDescription
from deployments.gateway.http.protocols.openai_generation import MAX_PROMPTS, MAX_SEQUENCES
from deployments.gateway.http.protocols.openapi_schemas import (
    BOOLEAN,
    NUMBER,
    STRING,
    array,
    record,
)

Node = dict[str, Any]
_COUNT: Node = {"type": ["integer", "null"], "minimum": 1, "maximum": MAX_SEQUENCES}
_SIZE: Node = {"type": ["integer", "null"], "minimum": 0}
OPERATIONS = {
    "/v1/chat/completions": ("chatCompletions", "Answer a conversation (OpenAI's form).", "Chat"),
    "/v1/completions": ("completions", "Go on with a text (OpenAI's form).", "Completion"),
}
_EVENTS = (
    "Where `stream` is true: an event a step of the engine, `data: [DONE]` last. An answer that "
    "cannot go on ends with an event that holds an OpenAIError, and without `[DONE]`."
)


def schemas() -> dict[str, Node]:
    common: Node = {
        "model": {**STRING, "description": "A model, or `model:adapter`."},
        "stream": {"type": ["boolean", "null"]},
        "stream_options": record((), include_usage=BOOLEAN),
        "n": _COUNT,
        "max_tokens": _SIZE,
        "user": {**STRING, "description": "A session, where x-session-id names none."},
    }
    part = record(("type",), type=STRING, text=STRING)
    content: Node = {"anyOf": [STRING, array(part), {"type": "null"}]}
    message = record(("role",), role=STRING, content=content)
    tokens = array({"type": "integer", "minimum": 0}, minItems=1)
    many = {"minItems": 1, "maxItems": MAX_PROMPTS}
    prompt: Node = {"anyOf": [STRING, array(STRING, **many), tokens, array(tokens, **many)]}
    choices = array({"type": "object"})
    answer = record(
        ("choices",), id=STRING, object=STRING, created=NUMBER, model=STRING, choices=choices,
        usage={"type": ["object", "null"]},
    )  # fmt: skip
    return {
        "ChatRequest": record(
            ("model", "messages"), **common, messages=array(message, minItems=1),
            max_completion_tokens=_SIZE, tools=array({"type": "object"}),
        ),
        "CompletionRequest": record(
            ("model", "prompt"), **common, prompt=prompt, best_of=_COUNT
        ),
        "ChatResponse": answer,
        "CompletionResponse": answer,
    }  # fmt: skip


def example(path: str, d: ModelDescription) -> Node | None:
    """None for a model that does not generate."""
    if d.generating is None:
        return None
    if path == "/v1/completions":
        return {"model": d.name, "prompt": "Once upon a time", "max_tokens": 16}
    said = [{"role": "user", "content": "Say hello."}]
    return {"model": d.name, "messages": said, "max_tokens": 16, "stream": True}


def with_events(answer: Node) -> Node:
    """The same answer, or a stream of events."""
    answer["content"]["text/event-stream"] = {"schema": {**STRING, "description": _EVENTS}}
    return answer
