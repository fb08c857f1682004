"""The texts that are sent, each of a wanted number of tokens.

Plain English sentences made from a fixed list of words by an injected generator, one text a wanted
length, so that the figure needs no data set. A word of the list is one token of BERT's vocabulary;
lengths count [CLS] and [SEP], so a text of n tokens has n - 2 words, and the shortest is 3.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

_WORD_LIST = (
    "the of and to in was for that on with as is his at by from it he had an were are be this "
    "first new world state city time people year school war house work water family music game "
    "river team church music book life day night group system power north south east west island "
    "university company station century village album season league history government language "
    "station road bridge mountain forest summer winter small large early late white black green "
    "never always often together between through under over after before during against without "
    "found made known called built used played written published opened moved began ended won lost"
)
WORDS = tuple(_WORD_LIST.split())
SHORTEST, LONGEST = 3, 512


def text_of(tokens: int, rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=max(1, tokens - 2)))


def texts(lengths: Sequence[int], rng: random.Random) -> list[str]:
    return [text_of(length, rng) for length in lengths]


class Texts:
    """Texts of as many tokens, each from another place of one long text, cheaply: ten nanoseconds a
    word. Two of the same start are as rare as two equal draws of 65,536."""

    def __init__(self, seed: str) -> None:
        self._rng = random.Random(f"{seed} texts")
        self._words = self._rng.choices(WORDS, k=65_536)

    def of(self, tokens: int) -> str:
        count, words = max(1, tokens - 2), self._words
        start = self._rng.randrange(len(words))
        found = words[start : start + count]
        while len(found) < count:
            found += words[: count - len(found)]
        return " ".join(found)
