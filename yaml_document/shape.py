"""What may stand at a place in a file: read off its tree itself, for messages and the manual.

A place is a path of names and positions from the root. Words and ranges come from the fields'
annotations, so that no message can disagree with what is enforced.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from yaml_document.section import Section

DocumentPath = tuple[str | int, ...]
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_LISTS = {int: "a list of whole numbers", str: "a list of texts"}


@dataclass(frozen=True)
class DocumentPlace:
    """`kind`: the annotation without its optional `None`; `bounds`: its constraints."""

    kind: Any
    bounds: tuple[Any, ...] = ()
    field: FieldInfo | None = None


def place_at(root: type[Section], path: DocumentPath) -> DocumentPlace | None:
    """None where the tree has nothing of that name."""
    place = DocumentPlace(root)
    for step in path:
        below = _below(place.kind, step)
        if below is None:
            return None
        place = below
    return place


def section_at(root: type[Section], path: DocumentPath) -> type[Section] | None:
    place = place_at(root, path)
    return place.kind if place and is_section(place.kind) else None


def is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def _below(kind: Any, step: str | int) -> DocumentPlace | None:
    if is_section(kind):
        field = kind.model_fields.get(str(step))
        return None if field is None else place_of(field)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is dict:
        return _unwrapped(inner[1])
    if origin is tuple and isinstance(step, int):
        return _unwrapped(inner[0])
    if origin in (Union, types.UnionType):
        return next((found for each in inner if (found := _below(each, step))), None)
    return None


def place_of(field: FieldInfo) -> DocumentPlace:
    inner = _unwrapped(field.annotation)
    return DocumentPlace(inner.kind, (*field.metadata, *inner.bounds), field)


def _unwrapped(kind: Any) -> DocumentPlace:
    """Peels `Annotated` and `| None` off."""
    bounds: tuple[Any, ...] = ()
    while True:
        if get_origin(kind) is Annotated:
            kind, *more = get_args(kind)
            bounds += tuple(constraint for each in more for constraint in _constraints(each))
        elif get_origin(kind) in (Union, types.UnionType) and type(None) in get_args(kind):
            rest = tuple(each for each in get_args(kind) if each is not type(None))
            kind = rest[0] if len(rest) == 1 else Union[rest]  # noqa: UP007 (built at run time)
        else:
            return DocumentPlace(kind, bounds)


def _constraints(annotation: Any) -> list[Any]:
    return annotation.metadata if isinstance(annotation, FieldInfo) else [annotation]


def expected(place: DocumentPlace) -> str:
    """What is right there, in words: `a whole number, 1 to 65536`."""
    words = _kind_in_words(place.kind)
    limits = _range(place.bounds)
    if place.field is not None and place.field.examples:
        limits = f"such as {place.field.examples[0]}"
        return f"{words} {limits}"
    return f"{words}, {limits}" if limits else words


def _kind_in_words(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return choice(inner)
    if origin in (Union, types.UnionType):
        words = [_kind_in_words(_unwrapped(each).kind) for each in inner]
        return choice(tuple(words))
    if origin is tuple:
        return _LISTS.get(_unwrapped(inner[0]).kind, "a list")
    if origin is dict or is_section(kind):
        return "a mapping"
    return _WORDS.get(kind, "a value")


def choice(allowed: tuple[str, ...]) -> str:
    head = ", ".join(allowed[:-1])
    return f"{head} or {allowed[-1]}" if head else allowed[0]


def _range(bounds: tuple[Any, ...]) -> str:
    low = high = ""
    for bound in bounds:
        if (limit := getattr(bound, "ge", None)) is not None:
            low = f"{limit}"
        elif (limit := getattr(bound, "gt", None)) is not None:
            low = f"above {limit}"
        if (limit := getattr(bound, "le", None)) is not None:
            high = f"at most {limit}"
        elif (limit := getattr(bound, "lt", None)) is not None:
            high = f"below {limit}"
    if low and high and low[0].isdigit() and high.startswith("at most "):
        return f"{low} to {high.removeprefix('at most ')}"
    if low and low[0].isdigit():
        low = f"at least {low}"
    return " and ".join(part for part in (low, high) if part)


def fields_below(
    section: type[Section], prefix: str = "", closed: tuple[type[Section], ...] = ()
) -> Iterator[tuple[str, FieldInfo]]:
    """Dotted name and field of everything in a section, depth first; mappings show as `<name>`,
    lists as `[]`. Sections that are `closed`, or within themselves, are named and not opened."""
    closed = (*closed, section)
    for name, field in section.model_fields.items():
        yield prefix + name, field
        inner, of = place_of(field).kind, ""
        if get_origin(inner) is dict:
            inner, of = _unwrapped(get_args(inner)[1]).kind, ".<name>"
        elif get_origin(inner) is tuple:
            inner, of = _unwrapped(get_args(inner)[0]).kind, "[]"
        if is_section(inner) and inner not in closed:
            yield from fields_below(inner, f"{prefix}{name}{of}.", closed)
