"""How long does one thread take to turn texts into this model's tokens?

Plain English texts of the lengths that are asked about, through the tokeniser that gateways use,
none of them twice and nothing cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from time import perf_counter

from deployments.contract.preprocess.tokenizer import TextTokenizer
from loadtests.traffic.texts import texts

_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Tokenising:
    """One thread's seconds: a row of the mean length, and a token."""

    row_s: float
    token_s: float
    texts: int

    @property
    def rows_per_s(self) -> float:
        return 1.0 / self.row_s


def tokenising(
    tokenizer_json: bytes, max_length: int, lengths: Sequence[int], seconds: float, rng: Random
) -> Tokenising | None:
    """None of a model without a tokeniser. Longer texts are cut, as rows are."""
    if not tokenizer_json:
        return None
    tokenizer = TextTokenizer(tokenizer_json, max_length, True, 0)
    done = tokens = 0
    spent_s = 0.0
    while spent_s < seconds:
        chosen = texts([rng.choice(lengths) for _ in range(_AT_ONCE)], rng)
        begin = perf_counter()
        found = tokenizer.tokenize(list(enumerate(chosen)))
        spent_s += perf_counter() - begin
        done += len(found)
        tokens += sum(len(ids) for ids in found)
    return Tokenising(spent_s / done, spent_s / max(1, tokens), done)
