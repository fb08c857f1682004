"""A tenant's key, and the hash that stands in the settings in its place.

A key is 32 random bytes, so a plain SHA-256 is enough: there is nothing to guess and no need of a
slow hash. Keys are never stored, logged or shown again after they are made.
"""

from __future__ import annotations

import hashlib
import secrets

PREFIX = "hr_"
RANDOM_BYTES = 32


def new_key() -> tuple[str, str]:
    """A fresh key and its hash, `sha256:` and 64 hex digits."""
    key = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
    return key, hash_key(key)


def hash_key(key: str | bytes) -> str:
    body = key.encode() if isinstance(key, str) else key
    return "sha256:" + hashlib.sha256(body).hexdigest()
