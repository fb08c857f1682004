"""Checks a backend's options, as the settings file has them.

Turns a model's free `options` mapping into the backend's frozen dataclass. A `LoadError` names all
mistakes at once: which option, and what would be right.

Known types: bool, int, float (whole numbers are accepted), str, `None`, `Literal`, unions of these,
and tuples of one of them (`tuple[int, ...]`; a list is accepted). Nothing else is converted: "2" is
not an int.
"""

from __future__ import annotations

import difflib
import sys
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from runtimes.errors import LoadError

T = TypeVar("T")
_UNFIT = object()
_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    type(None): "nothing",
}


def parse(cls: type[T], options: Mapping[str, Any]) -> T:
    """An instance of the frozen dataclass `cls`; raises `LoadError`, also for its `ValueError`s."""
    hints = get_type_hints(cls)
    known = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]
    wrong = [_unknown(name, tuple(known)) for name in options if name not in known]
    wrong += [
        f"option '{name}' is missing"
        for name, field in known.items()
        if name not in options and field.default is MISSING and field.default_factory is MISSING
    ]
    values = {name: _fit(options[name], hints[name]) for name in known if name in options}
    wrong += [
        f"option '{name}' is {options[name]!r}, it takes {_describe(hints[name])}"
        for name, value in values.items()
        if value is _UNFIT
    ]
    if wrong:
        raise LoadError("; ".join(wrong))
    try:
        return cls(**values)
    except ValueError as error:
        raise LoadError(str(error)) from error


def _unknown(name: object, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(str(name), known, n=2, cutoff=0.5)
    if close:
        return f"unknown option '{name}', did you mean {' or '.join(map(repr, close))}?"
    if not known:
        return f"unknown option '{name}', there are none"
    return f"unknown option '{name}', known are {', '.join(known)}"


def _fit(value: object, hint: Any) -> Any:
    """The value as the type wants it (an int becomes a float, a list a tuple), or `_UNFIT`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        same = any(value == argument and type(value) is type(argument) for argument in arguments)
        return value if same else _UNFIT
    if origin in (Union, types.UnionType):
        fitting = (_fit(value, argument) for argument in arguments)
        return next((fit for fit in fitting if fit is not _UNFIT), _UNFIT)
    if origin is tuple:
        return _fit_tuple(value, arguments[0])
    if hint is float and type(value) is int:
        return float(value) if abs(value) <= sys.float_info.max else _UNFIT
    return value if type(value) is hint else _UNFIT


def _fit_tuple(value: object, element: Any) -> Any:
    if not isinstance(value, list | tuple):
        return _UNFIT
    fit = tuple(_fit(part, element) for part in value)
    return _UNFIT if _UNFIT in fit else fit


def _describe(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(argument) for argument in arguments)
    if origin is tuple:
        return f"a list, each {_describe(arguments[0])}"
    return _WORDS.get(hint, str(hint))
