"""Were an answer's tokens in time: the first within its limit, the others at their rate? Seconds.

The tokens of an answer that did not stream cannot be timed: the whole answer must be there by the
time that both limits allow together. A stream whose first token was not seen is not in time.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadtests.client.protocols.types import AnswerFacts


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """`first_s`: from when a request was meant to be sent; `each_s`: mean time a further token.
    None: no such limit."""

    first_s: float | None = None
    each_s: float | None = None

    def __bool__(self) -> bool:
        return self.first_s is not None or self.each_s is not None

    def kept(
        self, heard: AnswerFacts | None, at_s: float, latency_s: float, *, streams: bool
    ) -> bool:
        """`at_s`: when it was meant to be sent."""
        if heard is None or not self:
            return True
        if not streams:
            return self._whole(heard.tokens_out, latency_s)
        first_s, each_s = heard.first_s, heard.per_token_s
        if self.first_s is not None and (first_s is None or first_s - at_s > self.first_s):
            return False
        return self.each_s is None or each_s is None or each_s <= self.each_s

    def _whole(self, tokens: int, latency_s: float) -> bool:
        if self.first_s is None or self.each_s is None:
            return self.first_s is None or tokens > 1 or latency_s <= self.first_s
        return latency_s <= self.first_s + self.each_s * max(tokens - 1, 0)

    def words(self) -> str:
        """`a first token within 500 ms and further ones every 50 ms`."""
        parts = []
        if self.first_s is not None:
            parts.append(f"a first token within {self.first_s * 1e3:g} ms")
        if self.each_s is not None:
            parts.append(f"further ones every {self.each_s * 1e3:g} ms")
        return " and ".join(parts)
