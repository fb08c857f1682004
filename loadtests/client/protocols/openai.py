"""OpenAI's API: embeddings, completions and chat, the last two streamed unless told otherwise.

Texts have as many tokens as planned, in a vocabulary where common words are one token each. How
many tokens are to be generated is the scenario's `output`; a server that stops earlier is taken at
its word, so an `extra` such as `ignore_eos` belongs to servers that know it.

Source: OpenAI API reference.
"""

from __future__ import annotations

from typing import Any

import orjson

from loadtests.client.protocols.heads import Heads
from loadtests.client.protocols.sse import TokenStream
from loadtests.client.protocols.types import Endpoint
from loadtests.traffic.plan import Planned
from loadtests.traffic.texts import Texts

DEFAULT_OUTPUT = 64


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
