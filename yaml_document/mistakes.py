"""What is wrong with a file, all of it at once: file, line, dotted path, what would be right.

Turns pydantic's errors into sentences by way of the tree's shape. Values are shown shortened; what
looks like a key is never shown, wherever it stands. Names that are close to a known one are met
with that one.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from yaml_document.credentials import redacted
from yaml_document.section import RULE, Section
from yaml_document.shape import DocumentPath, expected, fields_below, place_at, section_at

LONGEST_SHOWN = 60


@dataclass(frozen=True)
class Mistake:
    """`file` as the user wrote it, "" when there is none; `line` from 1, 0 when unknown."""

    file: str
    line: int
    path: str
    message: str

    def __post_init__(self) -> None:
        for name in ("path", "message"):
            object.__setattr__(self, name, redacted(getattr(self, name)))

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file and self.line else self.file
        return ": ".join(part for part in (place, self.path, self.message) if part)


class DocumentErrors(ValueError):
    """Every mistake that was found, in the file's order."""

    def __init__(self, mistakes: Iterable[Mistake]):
        self.mistakes = tuple(sorted(set(mistakes), key=lambda each: (each.line, each.path)))
        super().__init__("\n".join(str(each) for each in self.mistakes))

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.mistakes,))


UNKNOWN = "unknown setting"  # how the sentence about a key that there is not begins
Where = Callable[[DocumentPath, str], Mistake]


def explain(
    error: ValidationError, root: type[Section], where: Where, *, brief: bool = False
) -> list[Mistake]:
    """`where` makes the mistake of a path and a sentence: it knows the file and its lines. `brief`:
    says what pydantic minds, and not all that would be right there."""
    return [where(*_sentence(each, root, brief)) for each in error.errors(include_url=False)]


def dotted(path: DocumentPath) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def _sentence(error: Any, root: type[Section], brief: bool) -> tuple[DocumentPath, str]:
    # "[key]" is pydantic's way to say that the name, not what it names, is wrong.
    path: DocumentPath = tuple(step for step in error["loc"] if step != "[key]")
    if error["type"] == RULE:
        return path + tuple(error["ctx"]["at"]), error["ctx"]["message"]
    if error["type"] == "value_error":
        return path, str(error["ctx"]["error"])
    if error["type"] == "extra_forbidden":
        return path, _unknown(path, root, "unknown" if brief else UNKNOWN)
    if brief:
        return path, _in_brief(error)
    place = place_at(root, path)
    right = expected(place) if place else "a value of another kind"
    if error["type"] == "missing":
        return path, f"is missing; must be {right}"
    return path, _not_right(error["input"], right)


def _in_brief(error: Any) -> str:
    if error["type"] == "missing":
        return "is missing"
    must = error["msg"].replace("Input should be", "must be")
    must = must.replace("a valid integer", "a whole number").replace("a valid ", "a ")
    return f"is {shown(error['input'])}; {must}"


def _not_right(value: Any, right: str) -> str:
    if right.startswith("text") and isinstance(value, int | float) and not isinstance(value, bool):
        right += "; write it in quotes"
    message = f"is {shown(value)}; must be {right}"
    choices = [] if right.startswith(("a ", "an ")) else right.replace(",", "").split()
    close = difflib.get_close_matches(value, choices, 1, 0.7) if isinstance(value, str) else []
    return f"{message}; did you mean {close[0]}?" if close else message


def shown(value: Any) -> str:
    """A value as YAML would have it, shortened."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 1] + "…"


def _unknown(path: DocumentPath, root: type[Section], unknown: str) -> str:
    section = section_at(root, path[:-1])
    if section is None:
        return unknown
    name = str(path[-1])
    if name in section.gone:
        return f"was removed; delete this line. In its place: {section.gone[name]}"
    close = difflib.get_close_matches(name, section.model_fields, 1, 0.6)
    if close:
        return f"{unknown}; did you mean {close[0]}?"
    elsewhere = [known for known, _ in fields_below(section) if known.split(".")[-1] == name]
    if elsewhere:
        return f"{unknown} here; did you mean {elsewhere[0]}?"
    return f"{unknown}; known here: {', '.join(section.model_fields)}"
