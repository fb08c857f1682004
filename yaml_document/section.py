"""What every section of a file has in common: frozen, closed to unknown names, strict.

Strict means that text is no number and a number is no text: YAML already knows which is which, and
a guess would hide a mistake. An empty section (`batch:` with nothing below it) is all defaults. A
section's own rules raise `wrong(message, at)`, which points at the field that has to change, or a
ValueError, which is told at the section.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from yaml_document.credentials import without_keys

RULE = "headrace_rule"  # type of the errors that carry a finished sentence


class Section(BaseModel):
    """Base of every section. Values are immutable; unknown names are refused. `gone`: names that
    older files have here, with what to know about them."""

    gone: ClassVar[Mapping[str, str]] = {}
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=False,
        hide_input_in_errors=True,
    )  # fmt: skip

    @model_validator(mode="before")
    @classmethod
    def _empty_is_all_defaults(cls, value: Any) -> Any:
        return {} if value is None else value


def wrong(message: str, *at: str | int) -> PydanticCustomError:
    """An error whose sentence is ready to print; `at` leads from the section to its place."""
    return PydanticCustomError(RULE, "{message}", {"message": message, "at": at})


def finite(value: Any) -> Any:
    """Free data below a field, as it is; no number in it is infinite or none at all, which JSON
    could not carry."""
    for at, number in _numbers(value):
        if not math.isfinite(number):
            raise wrong(f"is {number}; must be a finite number", *at)
    return value


def _numbers(
    value: Any, at: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], float]]:
    if isinstance(value, float):
        yield at, value
    elif isinstance(value, dict | list | tuple):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for step, each in inner:
            yield from _numbers(each, (*at, step))


def listed(value: Any) -> Any:
    """Sequences are kept as tuples (immutable) and written as lists."""
    return tuple(value) if isinstance(value, list) else value


def off_is_a_word(value: Any) -> Any:
    """YAML reads a bare `off` as false; where `off` is one of the words, that is what was meant."""
    return "off" if value is False else value


def name_check(pattern: str, what: str) -> Callable[[str], str]:
    """A check of a mapping's keys, each of which becomes a part of URLs, headers and labels."""
    shape = re.compile(pattern)

    def check(name: str) -> str:
        if without_keys(name) != name:
            raise wrong("looks like a key, and names are shown to many; must be another name")
        if not shape.fullmatch(name):
            raise wrong(what)
        return name

    return check
