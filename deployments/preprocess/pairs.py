"""Makes a pair of texts from the tokens of each: [CLS] query [SEP] document [SEP] of BERT,
<s> query </s></s> document </s> of RoBERTa.

So a query of n documents is tokenised once, and each document's tokens are found in the cache of
texts. What stands around texts, alone and in pairs, is read from what the tokeniser itself makes of
two words, and checked with longer texts. A tokeniser that makes other tokens of a text in a pair
than of the text alone is refused.

A model with a vector for each token reads the two apart, each with special tokens of its own: a
query of a folder's fixed length, filled up with a token of its kind, and then the document.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from deployments.contract.errors import BadRequest
from runtimes.types import TokenVectors

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


@dataclass(frozen=True, slots=True)
class Apart:
    """How two texts' tokens become one row that is read apart: the query with its special tokens
    and what fills it up, then the document with its own. `may_cut`: a query, to its own length."""

    how: TokenVectors
    before: int  # special tokens before a text alone
    after: int  # and behind it
    may_cut: bool
    typed: bool = True


Pairs = PairTemplate | Apart
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
    pair: Pairs, query: IdArray, document: IdArray, longest: int, most: int | None
) -> tuple[IdArray, IdArray]:
    """int64 ids and token types of the pair, at most `longest`, from the ids of each text alone,
    special tokens included. The document is cut, to `most` tokens of its own where that is given,
    the query never is (but see `Apart`): `BadRequest` where it leaves no room for a token of the
    document."""
    if isinstance(pair, Apart):
        return _apart(pair, query, document, longest, most)
    asked = query[pair.before : len(query) - pair.after]
    given = document[pair.before : len(document) - pair.after]
    special = len(pair.head) + len(pair.middle) + len(pair.tail)
    room = longest - special - len(asked)
    if room < 1:
        raise _too_long(longest)
    given = given[: room if most is None else min(room, most)]
    ids = np.concatenate((pair.head, asked, pair.middle, given, pair.tail)).astype(np.int64)
    types = np.zeros(len(ids), np.int64)
    types[len(pair.head) + len(asked) + len(pair.middle) :] = pair.typed
    return ids, types


def _apart(
    pair: Apart, query: IdArray, document: IdArray, longest: int, most: int | None
) -> tuple[IdArray, IdArray]:
    query = of_tokens(pair.how, pair.after, query, query=True, may_cut=pair.may_cut)
    special, room = pair.before + pair.after, longest - len(query)
    if room <= special:
        raise _too_long(longest)
    bounds = [room, pair.how.document_length, None if most is None else most + special]
    kept = cut(document, min(bound for bound in bounds if bound is not None), pair.after)
    ids = np.concatenate((query, kept))
    return ids, (np.arange(len(ids)) >= len(query)).astype(np.int64)


def _too_long(longest: int) -> BadRequest:
    return BadRequest(
        f"the query is too long: it leaves no room for a document in the {longest} tokens that a "
        "pair may have",
        param="query",
    )


def of_tokens(
    how: TokenVectors, after: int, ids: IdArray, *, query: bool, may_cut: bool
) -> IdArray:
    """The tokens of a query or of a document as such a model reads them. `after`: special tokens
    behind the text. `BadRequest` where it is longer than the model's folder says and may not be
    cut."""
    longest = how.query_length if query else how.document_length
    if longest is not None and len(ids) > longest:
        if not may_cut:
            kind = "query" if query else "document"
            raise BadRequest(
                f"a {kind} has {len(ids)} tokens; this model reads {longest} of one (a setting "
                "lengths.truncate: true cuts it)",
                param="input",
            )
        ids = cut(ids, longest, after)
    missing = how.fill_length - len(ids)
    if not query or how.fill is None or missing <= 0:
        return ids
    return np.concatenate((ids, np.full(missing, how.fill, np.int64)))


def cut(ids: IdArray, longest: int, after: int) -> IdArray:
    """So many tokens, the `after` special ones behind the text among them."""
    if len(ids) <= longest:
        return ids
    return np.concatenate((ids[: max(0, longest - after)], ids[len(ids) - after :]))


def _last(places: list[int | None], sequence: int) -> int:
    return len(places) - 1 - places[::-1].index(sequence)
