"""What looks like a key, and is not shown: in mistakes, logs, answers and differences.

Keys get into the wrong place by mistake: as a name, as another setting's value, in a path. Whoever
says what is wrong there must not repeat them, for what is said is kept in logs and sent on.
`without_keys` knows keys by how they begin, and what stands before the host of a URL. `redacted`
takes other long random texts for keys, too: it is for places where nothing random belongs, not for
logs, which are full of ids. Digests after `sha256:` stay, and folders of Hugging Face's cache.
"""

from __future__ import annotations

import re

_SHOWN = 3  # characters that tell what kind of key it was
# Callers choose what is searched, so time must grow with its length alone: what has begun as a key
# is taken to its end, whatever follows.
_KEYS = re.compile(
    r"(?<![A-Za-z0-9])(?:hr_[\w-]{20,}|(?:sk|rk|pk)-[\w-]{16,}|gh[a-z]_\w{20,}|github_pat_\w{20,}"
    r"|glpat-[\w-]{16,}|xox[a-z]-[\w-]{10,}|hf_[A-Za-z0-9]{20,}|(?:AKIA|ASIA)[A-Z0-9]{12,}"
    r"|eyJ[\w-]{16,}[\w.-]*)"
)
# A model may be called `hr_employee_attrition` or `sk-learn-iris-v2`. A random key has capitals, or
# digits within its words.
_WORDS = re.compile(r"(?:hr|[srp]k)(?:[_-](?:[a-z]{1,20}[0-9]{0,3}|[0-9]{1,4})){2,}")
_AFTER_ITS_NAME = re.compile(r"(?i)(\bbearer\s+)[^\s'\",;]{8,}|(://)[^\s/@:]*:[^\s/]+(?=@)")
_LONG = re.compile(r"(?<!sha256:)(?<!#sha256=)(?<!/snapshots/)(?<![A-Za-z0-9_-])[A-Za-z0-9_-]{24,}")
_HEX = re.compile(r"[0-9a-fA-F]{32,}")
# From a small letter to a capital or a digit, and the like: in random text two of three
# characters, in names of models and classes fewer than one of four.
_CHANGE = re.compile(r"(?<=[a-z])[A-Z0-9]|(?<=[A-Z])[a-z0-9]|(?<=[0-9])[A-Za-z]")
_CHARACTERS_A_CHANGE = 4


def without_keys(text: str) -> str:
    """The text, with `…` in place of the greatest part of each key."""
    text = _KEYS.sub(lambda key: key[0] if _WORDS.fullmatch(key[0]) else _begun(key[0]), text)
    return _AFTER_ITS_NAME.sub(lambda key: f"{key[1] or key[2]}…", text)


def redacted(text: str) -> str:
    """As `without_keys`; also of texts that are as long and as mixed as random ones are."""
    return _LONG.sub(_unless_words, without_keys(text))


def _unless_words(found: re.Match[str]) -> str:
    text = found[0]
    is_mixed = len(_CHANGE.findall(text)) * _CHARACTERS_A_CHANGE >= len(text)
    return _begun(text) if is_mixed or _HEX.fullmatch(text) else text


def _begun(key: str) -> str:
    return f"{key[:_SHOWN]}…"
