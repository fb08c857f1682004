"""Which token ids does a text become, and is it short enough for its model?

The tokeniser file's own truncation and padding are turned off: lengths are real lengths and nothing
is cut unless the model's settings say so. `encode` runs on a preprocessing thread and lets go of
the interpreter's lock while it works (`encode_batch_fast`; `encode` of the same library holds it).
It starts no threads of its own: on two processors the library's pool made each text a third dearer.
It knows no tenants and no turns: `preprocess/texts.py` cuts the work.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from deployments.contract.errors import BadRequest, TooManyTokens
from deployments.contract.preprocess.prefix import prefix, splits_at_spaces
from deployments.contract.preprocess.text_cache import CacheStatistics, IdArray, TextCache

_PREFIX_CHARS_PER_TOKEN = 16  # English has 4 to 5; prefixes of this many nearly always decide
_MOST_CHARS_PER_TOKEN = 64
_MOST_CHARS = 1 << 20  # tokenised in 0.1 to 0.8 s, so that no turn takes longer


class TextTokenizer:
    """One model's tokeniser. Thread-safe; arrays it returns are shared and read-only.

    `max_length` counts special tokens. `truncate`: cut longer texts (special tokens stay) instead
    of refusing them. `cache_bytes` bounds the cache of texts seen before; 0 keeps none.
    A text of more than `max_chars` characters is refused unseen.
    """

    def __init__(
        self, tokenizer_json: bytes, max_length: int, truncate: bool, cache_bytes: int
    ) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._tokenizer = Tokenizer.from_buffer(tokenizer_json)
        self._check_room(max_length)
        side = (self._tokenizer.truncation or {}).get("direction", "right")
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        if truncate:
            self._tokenizer.enable_truncation(max_length, direction=side)
        self._prefix_decides = splits_at_spaces(tokenizer_json) and side == "right"
        self._truncate, self.max_length = truncate, max_length
        self.max_chars = max(_MOST_CHARS, _MOST_CHARS_PER_TOKEN * max_length)
        self._cache = TextCache(cache_bytes)

    def _check_room(self, max_length: int) -> None:
        special = self._tokenizer.num_special_tokens_to_add(is_pair=False)
        if max_length <= special:
            raise ValueError(
                f"a longest length of {max_length} leaves no room for text: "
                f"this tokeniser adds {special} tokens of its own"
            )

    def cached(self, texts: Sequence[str]) -> list[IdArray | None]:
        """What is known already, without tokenising; for the event loop."""
        return [self._cache.get(text) for text in texts]

    def encode(self, texts: Sequence[str]) -> list[IdArray]:
        """int64 ids of each text, special tokens included; tokenises what is not known already.

        Raises `BadRequest` naming the first text that is too long, empty of tokens or no Unicode.
        """
        found = self.cached(texts)
        missing = [(index, texts[index]) for index, ids in enumerate(found) if ids is None]
        fresh = iter(self.tokenize(missing))
        return [ids if ids is not None else next(fresh) for ids in found]

    def tokenize(self, texts: Sequence[tuple[int, str]]) -> list[IdArray]:
        """As `encode`, of (index in the request, text), without looking anything up."""
        long_ones = self._prefix_chars
        for index, text in texts:
            self._check_text(index, text)
        whole = [text for _, text in texts if len(text) <= long_ones]
        encoded = iter(self._ids(whole))
        answer = []
        for index, text in texts:
            ids = next(encoded) if len(text) <= long_ones else self._long(index, text)
            answer.append(self._keep(index, text, ids))
        return answer

    @property
    def _prefix_chars(self) -> int:
        return _PREFIX_CHARS_PER_TOKEN * self.max_length

    def _check_text(self, index: int, text: str) -> None:
        if len(text) > self.max_chars:
            raise BadRequest(
                f"input[{index}] has {len(text)} characters; a text may have at most "
                f"{self.max_chars} (and {self.max_length} tokens)",
                param="input",
            )
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise BadRequest(
                    f"input[{index}] is not valid Unicode: lone surrogate at character "
                    f"{error.start}",
                    param="input",
                ) from None

    def _ids(self, texts: list[str]) -> list[IdArray]:
        if not texts:
            return []
        return [_array(encoding.ids) for encoding in self._tokenizer.encode_batch_fast(texts)]

    def _long(self, index: int, text: str) -> IdArray:
        """A long text's ids: of a prefix if that decides, else of the whole."""
        start = prefix(text, self._prefix_chars) if self._prefix_decides else None
        if start is not None:
            (ids,) = self._ids([start])
            if self._truncate and len(ids) == self.max_length:
                return ids
            if len(ids) > self.max_length:
                raise self._too_long(index, f"at least {len(ids)}")
        return self._ids([text])[0]

    def _keep(self, index: int, text: str, ids: IdArray) -> IdArray:
        if len(ids) > self.max_length:
            raise self._too_long(index, str(len(ids)))
        if not len(ids):
            raise BadRequest(f"input[{index}] has no tokens", param="input")
        ids.setflags(write=False)
        self._cache.put(text, ids)
        return ids

    def _too_long(self, index: int, length: str) -> TooManyTokens:
        return TooManyTokens(
            f"input[{index}] has {length} tokens; this model takes at most {self.max_length}",
            length,
            param="input",
        )

    def statistics(self) -> CacheStatistics:
        return self._cache.statistics()


def _array(ids: list[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(ids, dtype=np.int64)
