"""Which special tokens may a prompt hold? Those of the chat template, and none that a text names.

A tokeniser reads `<|system|>` as one token wherever it stands, so that a message could end its turn
and speak as the system. Here a special token's name in a caller's text is broken by a character
that no text has (`_BREAK`) before the template is applied. In what the template makes of it, the
names that are still whole are the template's own. They are marked (`_MARK`), breaks are taken out,
and a copy of the tokeniser that knows special tokens by their marked names alone reads the result
in one piece. So a text without such names has the tokens that it has always had.

Not covered: a template that puts its own characters right before a text so that both together are a
name. Roles and names, which templates do that with, are checked by the gateway.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from tokenizers import AddedToken, Tokenizer

# The last two characters for private use.
_MARK, _BREAK = "\U0010fffc", "\U0010fffd"
_OURS = re.compile(f"[{_MARK}{_BREAK}]")


class SpecialTokens:
    """Of one fast tokeniser. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        page = json.loads(tokenizer.to_str())
        added = page["added_tokens"]
        special = [each for each in added if each["special"] and len(each["content"]) > 1]
        names = [each["content"] for each in special]
        self._name = re.compile(_any_of(names) or "(?!)")
        self._beginnings = {name[:end] for name in names for end in range(1, len(name))}
        self._longest = max((len(name) for name in names), default=1)
        page["added_tokens"] = [each for each in added if each not in special]
        page["truncation"] = page["padding"] = page["post_processor"] = None
        self._marked = Tokenizer.from_str(json.dumps(page))
        kinds = ("single_word", "lstrip", "rstrip", "normalized")
        flags = [{kind: each[kind] for kind in kinds} for each in special]
        self._marked.add_special_tokens(
            [AddedToken(_marked(n), special=True, **f) for n, f in zip(names, flags, strict=True)]
        )
        # The copy counts added tokens on from the model's own.
        self._ids: dict[int | None, int] = {
            self._marked.token_to_id(content): each["id"]
            for each in added
            for content in [_marked(each["content"]) if each in special else each["content"]]
        }
        self._before, self._behind = _around(tokenizer)

    def broken(self, value: Any) -> Any:
        """The same with every name broken, in all texts within it. An end that another text could
        go on with is broken as well."""
        return _each_text(value, self._broken)

    def _broken(self, text: str) -> str:
        text = _OURS.sub("", text)
        while self._name.search(text):  # names may overlap
            text = self._name.sub(lambda found: found[0][0] + _BREAK + found[0][1:], text)
        ends = (text[-size:] for size in range(1, min(self._longest, len(text) + 1)))
        return text + _BREAK if any(end in self._beginnings for end in ends) else text

    def ids(self, text: str, *, around: bool) -> list[int] | None:
        """The tokens of a prompt in which texts were broken; None: none is, so that the tokeniser
        itself can read it. `around`: with what the tokeniser puts around every text."""
        if _BREAK not in text:
            return None
        marked = whole(self._name.sub(lambda found: _marked(found[0]), text))
        ids = self._marked.encode(marked, add_special_tokens=False).ids
        own = [self._ids.get(each, each) for each in ids]
        return [*self._before, *own, *self._behind] if around else own


def whole(value: Any) -> Any:
    """What `broken` was given, but for our own characters in it."""
    return _each_text(value, lambda text: text.replace(_BREAK, ""))


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_each_text(key, change): _each_text(each, change) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_each_text(each, change) for each in value]
    return value


def _any_of(names: Iterable[str]) -> str:
    """An expression for the longest of these names at a place. Each character is looked at once:
    vocabularies have thousands of names with the same beginning, and callers write that often."""
    by_first: dict[str, set[str]] = {}
    for name in names:
        by_first.setdefault(name[:1], set()).add(name[1:])
    may_end = by_first.pop("", None) is not None
    branches = [re.escape(first) + _any_of(rest) for first, rest in sorted(by_first.items())]
    if not branches or (len(branches) == 1 and not may_end):
        return "".join(branches)
    return f"(?:{'|'.join(branches)})" + "?" * may_end


def _marked(name: str) -> str:
    return f"{_MARK}{name}{_MARK}"


def _around(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """What the tokeniser puts before and behind every text."""
    alone = tokenizer.encode("a", add_special_tokens=False).ids
    framed = tokenizer.encode("a", add_special_tokens=True).ids
    for start in range(len(framed) - len(alone) + 1):
        if framed[start : start + len(alone)] == alone:
            return framed[:start], framed[start + len(alone) :]
    return [], []
