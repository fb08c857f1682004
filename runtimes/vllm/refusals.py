"""What is wrong with a request, in one line; and is what vLLM streams an answer or a failure?

pydantic tries every alternative of a union and reports what is wrong with each: a message whose
content is null has 19 faults. What the request lacks is what most alternatives miss at one place.
So of each field only that place is named, with all that may stand there.

vLLM's layer writes any error as an event after a status of 200, and `[DONE]` after it; `endpoints`
raises `Refused` where it has other forms. Here an
answer begins with its first output token. An error before that is the same refusal that the request
gets if it does not stream; one of the engine itself, or a later one, is raised. So no stream ends
as if it were whole when it is not. Sources: pydantic 2, "Error handling"; vLLM 0.32.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError

from runtimes.errors import RunError

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


_ERROR = 'data: {"error":'  # an event of an answer begins with its id


class Refused(Exception):
    """An error among an answer's events. `error`: what vLLM says of it."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.error = error

    @classmethod
    def failed(cls, message: str) -> Refused:
        """The engine's own error."""
        status = HTTPStatus.INTERNAL_SERVER_ERROR
        return cls({"message": message, "type": "InternalServerError", "code": int(status)})


def error_of(event: str) -> dict[str, Any] | None:
    """vLLM's error, if a chat's or completion's event is one."""
    if not event.startswith(_ERROR):
        return None
    error: dict[str, Any] = json.loads(event.removeprefix("data: "))["error"]
    return error


async def answer(
    events: AsyncIterator[str], begun: Callable[[], bool]
) -> AsyncGenerator[tuple[bytes, int], None]:
    """Data and HTTP's status, as it comes. `begun`: whether there is an output token; events before
    that are joined to the first one behind. Raises `RunError`."""
    held: list[str] = []
    sent = False
    try:
        async for event in events:
            error = error_of(event)
            if error is not None:
                raise Refused(error)
            held.append(event)
            if begun():
                yield "".join(held).encode(), HTTPStatus.OK
                held.clear()
                sent = True
    except Refused as refusal:
        status = int(refusal.error["code"])
        if sent or is_failure(status):
            raise RunError(f"vLLM failed: {refusal}") from None
        yield json.dumps({"error": refusal.error}).encode(), status
        return
    if held:
        yield "".join(held).encode(), HTTPStatus.OK


def is_failure(status: int) -> bool:
    """Whether an error is the engine's own: another replica might answer. What it has not
    implemented it refuses, whoever asks."""
    return status >= HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.NOT_IMPLEMENTED
