"""How much of a very long text must be tokenised to know that it is too long?

A tokeniser that splits at every space and looks at each word alone gives a text's first words the
same tokens whatever follows. So a prefix that ends before a space and already has too many tokens
decides the whole: the refusal, or the truncation, is exact, and a megabyte costs milliseconds.
Only the BERT family (WordPiece over whitespace) is known to be so; all others are tokenised whole.
"""

from __future__ import annotations

import json
from typing import Any

_PRE_TOKENIZERS = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}


def splits_at_spaces(tokenizer_json: bytes) -> bool:
    """True if tokens(prefix) begins tokens(text) for every prefix that ends before a space."""
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
    """The longest prefix of at most `chars` characters before a space; None when there is none."""
    end = text.rfind(" ", 0, chars + 1)
    return text[:end] if end > 0 else None
