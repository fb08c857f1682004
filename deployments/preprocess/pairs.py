"""Makes a pair of texts from the tokens of each: [CLS] query [SEP] document [SEP] of BERT,
<s> query </s></s> document </s> of RoBERTa.

So a query of n documents is tokenised once, and each document's tokens are found in the cache of
texts. What stands around texts, alone and in pairs, is read from what the tokeniser itself makes of
two words, and checked with longer texts. A tokeniser that makes other tokens of a text in a pair
than of the text alone is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from deployments.contract.errors import BadRequest

_PROBES = (
    ("river", "stone"),
    ("What is 2 + 2?", "Four, as everybody knows."),
    ("a", "Zürich, 東京 and\na new line"),
)
IdArray = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """How two texts' tokens become one row: head, the query, middle, the document, tail. A text
    alone has `before` special tokens before it and `after` behind it."""

    before: int
    after: int
    head: tuple[int, ...]
    middle: tuple[int, ...]
    tail: tuple[int, ...]
    typed: bool  # the document and the tail have token type 1


_APART = "this tokeniser makes other tokens of a text in a pair than of the text alone"


def template(tokenizer_json: bytes) -> PairTemplate:
    """Raises `ValueError` for a tokeniser whose pairs are more than their texts with special
    tokens around them."""
    tokenizer = Tokenizer.from_buffer(tokenizer_json)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    first, second = _PROBES[0]
    alone, pair = tokenizer.encode(first), tokenizer.encode(first, second)
    places = pair.sequence_ids
    starts, ends = [places.index(at) for at in (0, 1)], [_last(places, at) + 1 for at in (0, 1)]
    if starts[0] > starts[1]:
        raise ValueError(_APART)
    plain = [at for at, special in enumerate(alone.special_tokens_mask) if not special]
    found = PairTemplate(
        before=len(alone.ids[: plain[0]]),
        after=len(alone.ids[plain[-1] + 1 :]),
        head=tuple(pair.ids[: starts[0]]),
        middle=tuple(pair.ids[ends[0] : starts[1]]),
        tail=tuple(pair.ids[ends[1] :]),
        typed=any(pair.type_ids),
    )
    for query, document in _PROBES:
        encoded = tokenizer.encode(query, document)
        one, other = (np.array(tokenizer.encode(text).ids, np.int64) for text in (query, document))
        ids, types = joined(found, one, other, len(encoded.ids), None)
        if ids.tolist() != encoded.ids or (found.typed and types.tolist() != encoded.type_ids):
            raise ValueError(_APART)
    return found


def joined(
    pair: PairTemplate, query: IdArray, document: IdArray, longest: int, most: int | None
) -> tuple[IdArray, IdArray]:
    """int64 ids and token types of the pair, at most `longest`, from the ids of each text alone,
    special tokens included. The document is cut, to `most` tokens of its own where that is given,
    the query never is: `BadRequest` where it leaves no room for a token of the document."""
    asked = query[pair.before : len(query) - pair.after]
    given = document[pair.before : len(document) - pair.after]
    special = len(pair.head) + len(pair.middle) + len(pair.tail)
    room = longest - special - len(asked)
    if room < 1:
        raise BadRequest(
            f"the query is too long: it leaves no room for a document in the {longest} tokens that "
            "a pair may have",
            param="query",
        )
    given = given[: room if most is None else min(room, most)]
    ids = np.concatenate((pair.head, asked, pair.middle, given, pair.tail)).astype(np.int64)
    types = np.zeros(len(ids), np.int64)
    types[len(pair.head) + len(asked) + len(pair.middle) :] = pair.typed
    return ids, types


def _last(places: list[int | None], sequence: int) -> int:
    return len(places) - 1 - places[::-1].index(sequence)
