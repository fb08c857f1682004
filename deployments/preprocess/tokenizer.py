"""Turns texts into token ids, and refuses a text that is too long for its model.

The tokeniser file's truncation and padding are off: lengths are real lengths, and a text is cut
only if the model's settings say so. `encode` runs on a preprocessing thread and releases the
interpreter's lock (`encode_batch_fast` does; the library's `encode` holds it). It starts no
threads: on two processors the library's thread pool made each text a third more expensive.

The cache of tokenised texts is keyed by tenant and whole text: a hit is 500 times as fast, so one
cache for all would tell each tenant what the others have sent. The library's own cache of words,
which knows no tenants, is off. Where a tokeniser looks at each word alone (WordPiece over
whitespace), a very long text can be refused or cut by a prefix that has too many tokens already.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer

from deployments.contract.errors import BadText, TooManyTokens
from deployments.preprocess.pairs import IdArray, Pairs

_PRE_TOKENIZERS = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
_ENTRY_BYTES = 256  # dictionary slot, key, array header and links, measured with tracemalloc
_LARGEST_SHARE = 16  # one text may take a sixteenth of the cache at most
_PREFIX_CHARS_PER_TOKEN = 16  # English has 4 to 5; prefixes of this many nearly always decide
_MAX_CHARS_PER_TOKEN = 64
_MAX_CHARS = 1 << 20  # take 0.1 to 0.8 s to tokenise, which bounds a turn


def splits_at_spaces(tokenizer_json: bytes) -> bool:
    """Whether tokens(prefix) begins tokens(text) for every prefix that ends before a space."""
    parts: dict[str, Any] = json.loads(tokenizer_json)
    return (
        _type(parts, "model") == "WordPiece"
        and _type(parts, "normalizer") in {None, "BertNormalizer"}
        and _type(parts, "pre_tokenizer") in _PRE_TOKENIZERS
        and not any(
            char.isspace() for token in parts.get("added_tokens", ()) for char in token["content"]
        )
    )


def _type(parts: dict[str, Any], name: str) -> str | None:
    part = parts.get(name)
    return part.get("type") if part else None


def prefix(text: str, chars: int) -> str | None:
    """The longest prefix of at most `chars` characters that ends before a space; None if there is
    none."""
    end = text.rfind(" ", 0, chars + 1)
    return text[:end] if end > 0 else None


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """Counters of a `TextCache`. `bytes` includes keys and overhead."""

    entries: int
    bytes: int
    limit_bytes: int
    hits_total: int
    misses_total: int


class TextCache:
    """Token ids of each tenant's recent texts, least recently used out first. Thread-safe: threads
    fill it while the event loop looks texts up."""

    def __init__(self, limit_bytes: int):
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[tuple[str, str], tuple[IdArray, int]] = OrderedDict()
        self._bytes = self._hits = self._misses = 0

    def get(self, tenant: str, text: str) -> IdArray | None:
        key = tenant, text
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self._misses += 1
                return None
            self._entries.move_to_end(key)
            self._hits += 1
            return entry[0]

    def put(self, tenant: str, text: str, ids: IdArray) -> None:
        key = tenant, text
        size = sys.getsizeof(text) + ids.nbytes + _ENTRY_BYTES
        if size * _LARGEST_SHARE > self._limit_bytes:
            return
        with self._lock:
            old = self._entries.pop(key, None)
            self._bytes += size - (old[1] if old else 0)
            self._entries[key] = (ids, size)
            while self._bytes > self._limit_bytes:
                _, (_, freed) = self._entries.popitem(last=False)
                self._bytes -= freed

    def statistics(self) -> CacheStatistics:
        with self._lock:
            return CacheStatistics(
                len(self._entries), self._bytes, self._limit_bytes, self._hits, self._misses
            )


class TextTokenizer:
    """One model's tokeniser. Thread-safe. Arrays that it returns are shared and read-only.

    `max_length` counts special tokens. `truncate`: cut longer texts (special tokens stay) instead
    of refusing them. `cache_bytes` bounds the cache of tokenised texts; 0 keeps none. `markers`:
    texts that are one token each, whatever the file says of their letters. A text of more than
    `max_chars` characters is refused without being tokenised.
    """

    def __init__(
        self, tokenizer_json: bytes, max_length: int, truncate: bool, cache_bytes: int,
        markers: Sequence[str] = (),
    ) -> None:  # fmt: skip
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._tokenizer = Tokenizer.from_buffer(tokenizer_json)
        special = [AddedToken(each, normalized=False, special=True) for each in markers]
        self._tokenizer.add_special_tokens(special)
        self._check_room(max_length)
        side = (self._tokenizer.truncation or {}).get("direction", "right")
        _turn_word_cache_off(self._tokenizer)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        if truncate:
            self._tokenizer.enable_truncation(max_length, direction=side)
        self._prefix_decides = splits_at_spaces(tokenizer_json) and side == "right" and not markers
        self._truncate, self.max_length = truncate, max_length
        self.max_chars = max(_MAX_CHARS, _MAX_CHARS_PER_TOKEN * max_length)
        self._cache = TextCache(cache_bytes)
        self.pairs: Pairs | None = None  # of a model that takes pairs

    def _check_room(self, max_length: int) -> None:
        special = self._tokenizer.num_special_tokens_to_add(is_pair=False)
        if max_length <= special:
            raise ValueError(
                f"a longest length of {max_length} leaves no room for text: "
                f"this tokeniser adds {special} tokens of its own"
            )

    @functools.cached_property
    def around(self) -> tuple[int, int]:
        """Special tokens before and after a text."""
        special = self._tokenizer.encode("a").special_tokens_mask
        plain = [at for at, each in enumerate(special) if not each]
        return plain[0], len(special) - 1 - plain[-1]

    def cached(self, texts: Sequence[str], tenant: str) -> list[IdArray | None]:
        """The ids of each text that is in the tenant's cache, else None. Fast enough for the event
        loop."""
        return [self._cache.get(tenant, text) for text in texts]

    def encode(self, texts: Sequence[str], tenant: str = "") -> list[IdArray]:
        """int64 ids of each text, special tokens included. Tokenises those not in the cache.

        Raises `BadRequest` for the first text that is too long, has no tokens, or is not Unicode.
        """
        known = self.cached(texts, tenant)
        missing = [(index, texts[index]) for index, ids in enumerate(known) if ids is None]
        fresh = iter(self.tokenize(missing, tenant))
        return [ids if ids is not None else next(fresh) for ids in known]

    def tokenize(self, texts: Sequence[tuple[int, str]], tenant: str = "") -> list[IdArray]:
        """As `encode`, but for pairs (index in the request, text), and without looking in the
        cache."""
        long_ones = self._prefix_chars
        for index, text in texts:
            self._check_text(index, text)
        whole = [text for _, text in texts if len(text) <= long_ones]
        encoded = iter(self._ids(whole))
        answer = []
        for index, text in texts:
            ids = next(encoded) if len(text) <= long_ones else self._long(index, text)
            self._check_length(index, ids)
            self._cache.put(tenant, text, ids)
            answer.append(ids)
        return answer

    @property
    def _prefix_chars(self) -> int:
        return _PREFIX_CHARS_PER_TOKEN * self.max_length

    def _check_text(self, index: int, text: str) -> None:
        if len(text) > self.max_chars:
            raise BadText(
                index,
                f"has {len(text)} characters; a text may have at most {self.max_chars} (and "
                f"{self.max_length} tokens)",
            )
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise BadText(
                    index, f"is not valid Unicode: lone surrogate at character {error.start}"
                ) from None

    def _ids(self, texts: list[str]) -> list[IdArray]:
        if not texts:
            return []
        return [_array(encoding.ids) for encoding in self._tokenizer.encode_batch_fast(texts)]

    def _long(self, index: int, text: str) -> IdArray:
        """A long text's ids: those of a prefix if the prefix decides, else of the whole text."""
        start = prefix(text, self._prefix_chars) if self._prefix_decides else None
        if start is not None:
            (ids,) = self._ids([start])
            if self._truncate and len(ids) == self.max_length:
                return ids
            if len(ids) > self.max_length:
                raise self._too_long(index, f"at least {len(ids)}")
        return self._ids([text])[0]

    def _check_length(self, index: int, ids: IdArray) -> None:
        if len(ids) > self.max_length:
            raise self._too_long(index, str(len(ids)))
        if not len(ids):
            raise BadText(index, "has no tokens")
        ids.setflags(write=False)

    def _too_long(self, index: int, length: str) -> TooManyTokens:
        return TooManyTokens(
            index, f"has {length} tokens; this model takes at most {self.max_length}", length
        )

    def statistics(self) -> CacheStatistics:
        return self._cache.statistics()


def _turn_word_cache_off(tokenizer: Tokenizer) -> None:
    """Of BPE and Unigram; other kinds have none. English text is tokenised as fast without it."""
    resize = getattr(tokenizer.model, "_resize_cache", None)
    if resize is not None:
        resize(0)


def _array(ids: list[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(ids, dtype=np.int64)
