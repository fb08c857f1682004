"""Which cached images and sounds may a request find? Those of its own tenant.

vLLM keeps what it has made of an image, in its preprocessor and in its encoder, by the image's
`uuid` or, where a request names none, by a hash of its content. A part that has a `uuid` and no
image is answered from what another request has sent. So a part gets a name that begins with the
tenant's salt, whether or not its caller named it. Knows nothing of vLLM but the names of the parts'
fields.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

_TEXTS = ("text", "input_text", "output_text", "refusal", "thinking", "tool_reference")
Part = dict[str, Any]


def parts(messages: Sequence[Any]) -> list[Part]:
    """The parts of messages, or of results of functions, that are images, sounds or the like."""
    found: list[Part] = []
    for message in messages:
        for name in ("content", "output"):
            content = message.get(name) if isinstance(message, dict) else None
            if isinstance(content, list):
                found += (part for part in content if isinstance(part, dict) and not _is_text(part))
    return found


def salt(found: Sequence[Part], tenant: str) -> None:
    """Name the parts as the tenant's. Hashes what has no name, about 1 ms for each megabyte."""
    for part in found:
        given = part.get("uuid")
        part["uuid"] = f"{tenant}/{_digest(part) if given is None else f'named {given}'}"


def _is_text(part: Part) -> bool:
    """vLLM asks no type of a part that has a `uuid`: the field `image_url` makes it an image."""
    return part.get("type") in _TEXTS and part.get("uuid") is None


def _digest(part: Part) -> str:
    return blake2b(json.dumps(part, sort_keys=True, default=str).encode()).hexdigest()
