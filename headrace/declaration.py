"""What a class declares of itself, and what it is given when it loads.

An input or output is a text: a datatype of the Open Inference Protocol and the shape of one row,
such as `FP32[4]`, `INT64[?]` (a list of any length), `FP32[?, 80]` or `INT64` (one number). `text`
is a row of UTF-8, `image` the bytes of a file, as the caller sent it.

Source: Open Inference Protocol, "Tensor Data Types".
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype(bool),
    **{f"UINT{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    "FP16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    **{f"FP{bits}": np.dtype(f"float{bits}") for bits in (32, 64)},
    "BYTES": np.dtype(object),
}
RAW = ("text", "image")
_WRITTEN = re.compile(r"([A-Za-z]+[0-9]*)(?:\[([^\[\]]*)\])?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
_MAX_AXES = 8
METHODS = ("load", "predict")
TAKES = {  # method to what it is called with
    "load": ("settings",),
    "predict": ("batch",),
    "warm": (),
    "health": (),
    "close": (),
    "example": ("length",),
}


class DeclarationError(Exception):
    """The class is not what `runtime: python` can serve; the message says what would be right."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """`datatype`: the Open Inference Protocol's; `shape`: of one row, -1 for an axis of any length;
    `kind`: "text" or "image" for a row that is raw, "" for a tensor."""

    datatype: str
    shape: tuple[int, ...]
    kind: str = ""

    @classmethod
    def parsed(cls, written: object, name: str) -> TensorType:
        """Of `FP32[?, 80]`. Raises `DeclarationError`."""
        what = f"{name!r} is declared as {written!r}"
        if not isinstance(written, str) or not (found := _WRITTEN.fullmatch(written.strip())):
            raise DeclarationError(
                f"{what}; must be a text such as 'FP32[4]', 'INT64[?]' or 'text'"
            )
        kind, axes = found[1], found[2]
        if kind in RAW:
            if axes is not None:
                raise DeclarationError(f"{what}; a {kind} has no shape: write '{kind}'")
            return cls("BYTES", (), kind)
        if kind not in DTYPES or (kind == "BYTES" and axes is None):
            raise DeclarationError(
                f"{what}; must be text, image, or one of {', '.join(DTYPES)} with a row's shape"
            )
        sizes = [axis.strip() for axis in axes.split(",")] if axes and axes.strip() else []
        if len(sizes) > _MAX_AXES or any(
            size != "?" and not (size.isdecimal() and int(size) > 0) for size in sizes
        ):
            raise DeclarationError(
                f"{what}; its axes must be whole numbers from 1, or ? for any length, at most "
                f"{_MAX_AXES} of them"
            )
        return cls(kind, tuple(-1 if size == "?" else int(size) for size in sizes))

    @property
    def length_axis(self) -> int:
        """The first axis of any length, where the batch is axis 0. 0: there is none."""
        return self.shape.index(-1) + 1 if -1 in self.shape else 0

    def __str__(self) -> str:
        if self.kind:
            return self.kind
        axes = ", ".join("?" if size < 0 else str(size) for size in self.shape)
        return f"{self.datatype}[{axes}]" if axes else self.datatype


@dataclass(frozen=True, slots=True)
class Declared:
    """What a class takes and gives, by name."""

    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]

    @property
    def length_input(self) -> str | None:
        """The input that has a row's length: the first with an axis of any length, else the first
        text; None without either."""
        ragged = (name for name, each in self.inputs.items() if each.length_axis)
        texts = (name for name, each in self.inputs.items() if each.kind == "text")
        return next(ragged, None) or next(texts, None)

    @property
    def length_axis(self) -> int:
        """Of the length input. 0: the length is a text's own size."""
        name = self.length_input
        return self.inputs[name].length_axis if name else 0


def declared(cls: type[Any]) -> Declared:
    """What the class says of itself. Raises `DeclarationError` also for a missing method."""
    if not isinstance(cls, type):
        raise DeclarationError(f"{cls!r} is no class; name the class, not what it makes")
    for method in METHODS:
        if not callable(getattr(cls, method, None)):
            raise DeclarationError(
                f"{cls.__name__} lacks the method {method}; it must have load(self, settings) and "
                "predict(self, batch)"
            )
    for method in TAKES:
        if not callable(getattr(cls, method, print)):
            raise DeclarationError(
                f"{cls.__name__}.{method} is no method; rename it, or make it one"
            )
    for method, names in TAKES.items():
        if not _can_take(cls, method, len(names)):
            raise DeclarationError(f"{cls.__name__}.{wrong_arguments(method)}")
    inputs, outputs = (_types(cls, which) for which in ("inputs", "outputs"))
    return Declared(inputs, outputs)


def wrong_arguments(method: str) -> str:
    """Of a method that cannot be called with what it is given."""
    names = TAKES[method]
    given = f"the {names[0]}" if names else "nothing"
    return f"{method} is called with {given}; it must be {method}({', '.join(('self', *names))})"


def _can_take(cls: type[Any], method: str, count: int) -> bool:
    found = inspect.getattr_static(cls, method, None)
    if isinstance(found, staticmethod | classmethod):
        found = getattr(cls, method)
    elif inspect.isfunction(found):
        count += 1  # self
    else:
        return True  # missing, or callable in a way that only a call shows
    try:
        inspect.signature(found, follow_wrapped=False).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _types(cls: type[Any], which: str) -> dict[str, TensorType]:
    given = getattr(cls, which, None)
    if not isinstance(given, Mapping) or not given:
        raise DeclarationError(
            f"{cls.__name__} lacks {which}; must be a class attribute such as "
            f"{which} = {{'x': 'FP32[4]'}}"
        )
    for name in given:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise DeclarationError(
                f"{cls.__name__}.{which} has the name {name!r}; must be 1 to 128 of A-Z a-z "
                "0-9 _ . -, the first a letter or _"
            )
    return {
        name: TensorType.parsed(each, f"{cls.__name__}.{which}: {name}")
        for name, each in given.items()
    }


@dataclass(frozen=True, slots=True)
class Settings(Mapping[str, Any]):
    """What `load` gets: `options.settings` of the settings file, read like a dictionary.

    `name`: the model's; `folder`: where the class's file lies; `cache`: a folder of this node that
    outlives the process; `threads`: how many the model may use."""

    name: str = ""
    folder: Path = Path()
    cache: Path = Path()
    threads: int = 1
    given: Mapping[str, Any] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        """A file beside the class. Raises `FileNotFoundError` saying where it was looked for."""
        found = self.folder / name
        if not found.exists():
            raise FileNotFoundError(f"no file or folder {found}")
        return found

    def __getitem__(self, name: str) -> Any:
        if name not in self.given:
            known = ", ".join(self.given) or "none are given"
            raise KeyError(f"options.settings has no {name!r} ({known})")
        return self.given[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.given)

    def __len__(self) -> int:
        return len(self.given)
