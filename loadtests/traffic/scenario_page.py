"""The manual's page of the scenario format, written from the format itself: `docs/scenarios.md`.

`python -m loadtests.traffic.scenario_page` rewrites the page; a test compares it with the format,
so that it cannot fall behind.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from loadtests.traffic.scenario import Scenario, TenantPart
from loadtests.traffic.scenario_faults import DevicePart, FaultsPart
from loadtests.traffic.scenario_traffic import ArrivalsPart, LengthsPart

PAGE = Path(__file__).parents[2] / "docs" / "scenarios.md"
_INTRODUCTION = """# Scenarios

A scenario says who calls how often with what, for how long, and what breaks meanwhile; the settings
file that it names says what is served. [simulator.md](simulator.md) shows how one is run.
Times in ms are promises to callers or patience, times in s are moments and spans; moments count
from the end of the warm-up. Rates are requests a second over all gateways, lengths are tokens.

This page is written by `python -m loadtests.traffic.scenario_page` from the format itself.
"""
_CHAPTERS: tuple[tuple[str, str, type[BaseModel]], ...] = (
    ("The file", "", Scenario),
    ("arrivals", "When requests come; in a tenant, its own.", ArrivalsPart),
    ("lengths", "How long rows are; exactly one way to draw them.", LengthsPart),
    ("tenants.&lt;name&gt;", "One tenant's callers.", TenantPart),
    ("device", "The simulated device.", DevicePart),
    ("faults", "What breaks, in simulations.", FaultsPart),
)
_ON_THEIR_OWN = {part for _, _, part in _CHAPTERS}
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def page() -> str:
    parts = [_INTRODUCTION]
    for title, text, part in _CHAPTERS:
        rows = "\n".join(_row(name, field) for name, field in _fields(part))
        table = f"| setting | value | default | what it is |\n|---|---|---|---|\n{rows}\n"
        parts.append("\n\n".join(each for each in (f"## {title}", text, table) if each))
    return "\n".join(parts)


def _fields(part: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Depth first; parts that have a chapter of their own are named and not opened."""
    for name, field in part.model_fields.items():
        yield prefix + name, field
        inner, of = _part_in(field.annotation)
        if inner is not None and inner not in _ON_THEIR_OWN:
            yield from _fields(inner, f"{prefix}{name}{of}.")


def _part_in(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """The part that stands there, and how one gets to it."""
    kind = _plain(annotation)
    if get_origin(kind) is tuple:
        return _part_in(get_args(kind)[0])[0], "[]"
    if get_origin(kind) is dict:
        return _part_in(get_args(kind)[1])[0], ".&lt;name&gt;"
    is_part = isinstance(kind, type) and issubclass(kind, BaseModel)
    return (kind if is_part else None), ""


def _plain(annotation: Any) -> Any:
    """Without `| None` and constraints."""
    while get_origin(annotation) in (Annotated, Union, types.UnionType):
        annotation = next(each for each in get_args(annotation) if each is not type(None))
    return annotation


def _row(name: str, field: FieldInfo) -> str:
    return f"| `{name}` | {_kind(field)} | {_default(field)} | {field.description} |"


def _kind(field: FieldInfo) -> str:
    kind = _plain(field.annotation)
    if get_origin(kind) is Literal:
        return ", ".join(get_args(kind))
    if get_origin(kind) is tuple:
        return "a list"
    bounds = ", ".join(_bounds(field))
    words = _WORDS.get(kind, "a mapping")
    return f"{words}, {bounds}" if bounds else words


def _bounds(field: FieldInfo) -> Iterator[str]:
    for bound in [*field.metadata, *_hidden(field.annotation)]:
        for name, words in (("ge", "at least"), ("gt", "above"), ("le", "at most")):
            if (limit := getattr(bound, name, None)) is not None:
                yield f"{words} {limit:.10g}"


def _hidden(annotation: Any) -> Iterator[Any]:
    """Constraints inside of an optional annotation."""
    if get_origin(annotation) is Annotated:
        for each in get_args(annotation)[1:]:
            yield from each.metadata if isinstance(each, FieldInfo) else (each,)
    elif get_origin(annotation) in (Union, types.UnionType):
        for inner in get_args(annotation):
            yield from _hidden(inner)


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required" if field.default_factory is None else ""
    if field.default is None:
        return "unset"
    if field.default == () or field.default == "":
        return "none"
    shown = f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
    return f"`{shown.lower() if isinstance(field.default, bool) else shown}`"


if __name__ == "__main__":
    PAGE.write_text(page())
