"""Server-sent events as they come, and what a stream of generated tokens says in them.

Source: WHATWG HTML, "Server-sent events" (data fields alone; names and ids are not needed); OpenAI
API, streaming of completions and chat.
"""

from __future__ import annotations

from typing import Any

import orjson

from loadtests.client.http1 import Response
from loadtests.client.protocols.types import AnswerFacts

DONE = b"[DONE]"


class EventReader:
    """Feeds on pieces of a body; gives the data of each event that is whole."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        text = (self._rest + piece).replace(b"\r\n", b"\n")
        *whole, self._rest = text.split(b"\n\n")
        return [data for event in whole if (data := _data(event)) is not None]


def _data(event: bytes) -> bytes | None:
    lines = [line[5:].lstrip(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


class TokenStream:
    """Listens to one generation, streamed or whole. An event that brings text is a token, unless
    the server counts them in `usage`."""

    __slots__ = ("_events", "_over", "_tokens", "heard", "streams")

    def __init__(self, *, streams: bool) -> None:
        self.streams = streams
        self.heard = AnswerFacts()
        self._events = EventReader()
        self._tokens = 0
        self._over = False

    def piece(self, data: bytes, at_s: float) -> None:
        for event in self._events.feed(data):
            if event == DONE:
                self._over = True
                continue
            try:
                self._event(orjson.loads(event), at_s)
            except (orjson.JSONDecodeError, AttributeError, TypeError):
                self.heard.trouble = "bad event"

    def ended(self, answer: Response) -> None:
        if not 200 <= answer.status < 300:
            return
        if self.streams:
            if not self._over:
                self.heard.trouble = self.heard.trouble or "cut off"
        else:
            self._whole(answer.body)
        self.heard.tokens_out = self.heard.tokens_out or self._tokens

    def _event(self, event: Any, at_s: float) -> None:
        if not isinstance(event, dict) or event.get("error"):
            self.heard.trouble = "error event"
            return
        self._usage(event)
        for choice in event.get("choices") or ():
            if _text_of(choice):
                self._tokens += 1
                self.heard.last_s = at_s
                if self.heard.first_s is None:
                    self.heard.first_s = at_s
            self._over = self._over or choice.get("finish_reason") is not None

    def _whole(self, body: bytes) -> None:
        try:
            answer = orjson.loads(body)
            self._usage(answer)
        except (orjson.JSONDecodeError, AttributeError):
            self.heard.trouble = "bad answer"

    def _usage(self, said: Any) -> None:
        usage = said.get("usage")
        if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
            self.heard.tokens_out = usage["completion_tokens"]


def _text_of(choice: Any) -> Any:
    """Of a completion or of a chat, reasoning included; empty of an event that brings no token."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return choice.get("text")
    return delta.get("content") or delta.get("reasoning_content") or delta.get("tool_calls")
