"""A value of any message type with no field at its default, so that golden bytes show each field.

Values depend on nothing but the type and the names of its fields: the same type has the same value
in every run, and another field changes no other field's value.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def filled(kind: Any, name: str = "") -> Any:
    """A value of this type, for the field of this name."""
    number = 1 + zlib.crc32(name.encode()) % 97
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _filled_dataclass(kind)
    if origin in (Union, UnionType):
        return filled(next(each for each in arguments if each is not NoneType), name)
    if origin is tuple:
        items = arguments[:1] if arguments[-1] is Ellipsis else arguments
        return tuple(filled(item, f"{name}{at}") for at, item in enumerate(items))
    if origin is list:
        return [filled(arguments[0], name)]
    if origin is frozenset:
        return frozenset({filled(arguments[0], name)})
    if origin is Counter:
        return Counter({filled(arguments[0], name): number})
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {filled(arguments[0], name): filled(arguments[1], name)}
    if origin is Literal:
        return arguments[-1]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return list(kind)[-1]
    plain = {str: f"{name}-{number}", int: number, float: number / 64, bytes: name.encode(),
             bool: True, Any: {"key": [number]}}  # fmt: skip
    return plain[kind]


def _filled_dataclass(kind: Any) -> Any:
    hints, values = get_type_hints(kind), {}
    for field in fields(kind):
        default = field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        value = filled(hints[field.name], field.name)
        if value == default and isinstance(value, bool):
            value = not value
        elif value == default and isinstance(value, Enum):
            value = next(iter(type(value)))
        elif value == default and isinstance(value, int | float):
            value += 1
        assert value != default, f"{kind.__name__}.{field.name}"
        values[field.name] = value
    return kind(**values)
