"""OpenAI's API: embeddings, completions and chat, the last two streamed unless told otherwise.

Texts have as many tokens as planned, in a vocabulary where common words are one token each. How
many tokens are to be generated is the scenario's `output`; a server that stops earlier is taken at
its word, so an `extra` such as `ignore_eos` belongs to servers that know it.

Sources: OpenAI API reference; WHATWG HTML, "Server-sent events" (data fields alone: names and ids
are not needed).
"""

from __future__ import annotations

from typing import Any

import orjson

from loadtests.client.http1 import Response
from loadtests.client.protocols.types import AnswerFacts, Endpoint, Heads
from loadtests.traffic.plan import Planned
from loadtests.traffic.texts import Texts

DEFAULT_OUTPUT = 64
DONE = b"[DONE]"


class Embeddings:
    """`/v1/embeddings`, one text a row; see `Wire`."""

    path = "/v1/embeddings"

    def __init__(self, place: Endpoint) -> None:
        self.place = place
        self._heads = Heads(place, self.path)
        self.reseed("")

    def prepare(self) -> None:
        """Nothing has to be known."""

    def reseed(self, seed: str) -> None:
        self._texts = Texts(seed)

    def request(self, planned: Planned) -> bytes:
        body = {"model": self.place.model, **self._said(planned), **self.place.extra}
        return self._heads.request(planned, orjson.dumps(body))

    def listener(self, planned: Planned) -> TokenStream | None:
        return None

    def _said(self, planned: Planned) -> dict[str, Any]:
        texts = [self._texts.of(length) for length in planned.lengths]
        return {"input": texts if len(texts) > 1 else texts[0]}


class Completions(Embeddings):
    """`/v1/completions`, the first row as the prompt; see `Wire`."""

    path = "/v1/completions"

    def listener(self, planned: Planned) -> TokenStream:
        return TokenStream(streams=self.place.stream)

    def _said(self, planned: Planned) -> dict[str, Any]:
        said: dict[str, Any] = self._asked(self._texts.of(planned.lengths[0]))
        said["max_tokens"] = planned.output or DEFAULT_OUTPUT
        if self.place.stream:
            said |= {"stream": True, "stream_options": {"include_usage": True}}
        return said

    def _asked(self, text: str) -> dict[str, Any]:
        return {"prompt": text}


class Chat(Completions):
    """`/v1/chat/completions`, the first row as the one message; see `Wire`."""

    path = "/v1/chat/completions"

    def _asked(self, text: str) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": text}]}


# ---- streams -------------------------------------------------------------------------------------


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
