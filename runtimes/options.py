"""Checks a backend's options, as the settings file has them, and chooses the device by one of them.

`parse` turns a model's free `options` mapping into the backend's frozen dataclass. A `LoadError`
names all mistakes at once. Known types: bool, int, float (whole numbers are accepted), str, `None`,
`Literal`, unions of these, tuples of one of them, and mappings. Nothing else is converted: "2" is
not an int.

The option `device` is `cpu`, `cuda` (the first GPU), `cuda:N`, or `auto`: the first GPU if the
backend sees one, else the processors. If the named device is missing, `MissingBackend` says what
the backend saw; there is no silent fallback. GPUs are counted by the backend's own library.
"""

from __future__ import annotations

import difflib
import re
import sys
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from runtimes.errors import LoadError, MissingBackend

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
    if origin is Mapping:
        return (
            value if isinstance(value, Mapping) and all(type(k) is str for k in value) else _UNFIT
        )
    if origin is tuple:
        parts = value if isinstance(value, list | tuple) else (_UNFIT,)
        fit = tuple(_fit(part, arguments[0]) for part in parts)
        return _UNFIT if _UNFIT in fit else fit
    if hint is float and type(value) is int:
        return float(value) if abs(value) <= sys.float_info.max else _UNFIT
    return value if type(value) is hint else _UNFIT


def _describe(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(argument) for argument in arguments)
    if origin is Mapping:
        return "a mapping from names to values"
    if origin is tuple:
        return f"a list, each {_describe(arguments[0])}"
    return _WORDS.get(hint, str(hint))


AUTO = "auto"
_CUDA = re.compile(r"cuda(?::(\d{1,3}))?")
RIGHT = "cpu, cuda, cuda:N or auto"


@dataclass(frozen=True, slots=True)
class Device:
    """`index` counts the GPUs that the process sees; 0 for the processors."""

    kind: str  # cpu | cuda
    index: int = 0

    @property
    def is_cuda(self) -> bool:
        return self.kind == "cuda"

    def __str__(self) -> str:
        return f"cuda:{self.index}" if self.is_cuda else self.kind


CPU = Device("cpu")


def check_device(text: str) -> None:
    """Raises `ValueError` in the words of an option's mistake."""
    if text not in (AUTO, "cpu") and not _CUDA.fullmatch(text):
        raise ValueError(f"option 'device' is {text!r}, it takes {RIGHT}")


def check_gpu_memory(mib: int | None, device: str) -> None:
    """Of an option `gpu_memory_mib`. Raises `ValueError` in the words of an option's mistake."""
    if mib is not None and mib < 1:
        raise ValueError(f"option 'gpu_memory_mib' is {mib}, it must be 1 or more")
    if mib is not None and device == "cpu":
        raise ValueError("option 'gpu_memory_mib' is set, which option 'device' cpu has not")


def check_gpu_has(mib: int | None, total_bytes: int, device: Device) -> None:
    """Raises `LoadError` for more than the GPU has; `total_bytes`: 0 where that is not known."""
    if mib is not None and 0 < total_bytes < mib << 20:
        raise LoadError(
            f"option 'gpu_memory_mib' is {mib}, but {device} has {total_bytes >> 20} MiB"
        )


def chosen_device(text: str, gpus: int, backend: str) -> Device:
    """The device for an option that passed `check`; `gpus`: how many `backend` can use here.
    Raises `MissingBackend`."""
    if text == AUTO:
        return Device("cuda") if gpus else CPU
    found = _CUDA.fullmatch(text)
    if found is None:
        return CPU
    index = int(found.group(1) or 0)
    if not gpus:
        raise MissingBackend(
            f"option 'device' is {text}, but {backend} sees no CUDA GPU: it needs an NVIDIA "
            "driver, a build for CUDA and replicas.num_gpus above 0; or set device to cpu"
        )
    if index >= gpus:
        last = "cuda:0 alone" if gpus == 1 else f"cuda:0 to cuda:{gpus - 1}"
        raise MissingBackend(f"option 'device' is {text}, but {backend} sees {last}")
    return Device("cuda", index)
