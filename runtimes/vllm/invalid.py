"""What is wrong with a request that does not fit vLLM's model of it, in one line.

pydantic tries every alternative of a union and reports what is wrong with each: a message whose
content is null has 19 faults, nearly all of which are about messages of other roles. What the
request lacks is what most alternatives miss at one place. So of each field only that place is
named, with all that may stand there. vLLM's own handler lists all faults, with addresses of
pydantic's pages.
Source: pydantic 2, "Error handling": `loc`, `type`, `msg`, `input`, `ctx`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import ValidationError

_MOST = 3  # fields, and alternatives at one place
_MAX_FAULTS = 10_000  # take 0.1 s to look at, in which the engine hands on nobody's tokens
# An alternative of a union, by the name of its type or of the function that makes it.
# Callers' keys are looked at, too, so each character is only once.
_ALTERNATIVE = re.compile(
    r"[A-Z]\w*|[^\[(]*[\[(].*|str|int|float|bool|bytes|none|tuple|set|dict|list", re.DOTALL
)
_PREFIXES = ("Input ", "Value error, ", "Assertion failed, ")
Fault = dict[str, Any]


def sentence(error: ValidationError) -> tuple[str, str | None]:
    """What is wrong and where, and the field at fault, None for the whole body."""
    if error.error_count() > _MAX_FAULTS:
        return "the request does not fit the API: nearly all of its values have a wrong type", None
    faults: list[Fault] = [dict(each) for each in error.errors(include_url=False)]
    fields = list(dict.fromkeys(_field(each) for each in faults))
    said = [_of_field(each for each in faults if _field(each) == field) for field in fields[:_MOST]]
    more = f"; and {len(fields) - _MOST} more fields" if len(fields) > _MOST else ""
    return "; ".join(said) + more, fields[0]


def _field(fault: Fault) -> str | None:
    named = getattr(fault.get("ctx", {}).get("error"), "parameter", None)
    if named or not fault["loc"]:
        return named or None
    return str(fault["loc"][0])


def _of_field(faults: Iterable[Fault]) -> str:
    found = [(_path(each["loc"]), each) for each in faults]
    path, _ = Counter(path for path, _ in found).most_common(1)[0]
    here = [fault for where, fault in found if where == path]
    words = list(dict.fromkeys(_words(str(each["msg"])) for each in here))[:_MOST]
    is_null = here[0]["input"] is None and here[0]["type"] != "missing"
    return f"{path}: " * bool(path) + " or ".join(words) + ", not null" * is_null


def _path(loc: Sequence[str | int]) -> str:
    """`messages[0].content`."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not _ALTERNATIVE.fullmatch(part):
            path += f".{part}" if path else part
    return path


def _words(message: str) -> str:
    for prefix in _PREFIXES:
        message = message.removeprefix(prefix)
    return message[:1].lower() + message[1:] if message[1:2].islower() else message
