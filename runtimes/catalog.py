"""Which backends are there, and what does each take?

One table: a backend's name in settings, where its classes are, the package and the extra that bring
it, and the precisions it has. Everything but `create` and `available` answers without importing the
backend's library, so that a settings file can be checked where the library is not installed.

It holds no behaviour of any backend; a new one is a line here and a pass of the conformance suite.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any, cast

from runtimes import options as option_parser
from runtimes.equal_shapes import EqualShapes
from runtimes.errors import LoadError, MissingBackend
from runtimes.types import Runtime, RuntimeSettings


@dataclass(frozen=True, slots=True)
class Entry:
    """`module` holds `prefix`Runtime and `prefix`Options; `package` "" needs none."""

    module: str
    prefix: str
    package: str
    precisions: tuple[str, ...]


ENTRIES: Mapping[str, Entry] = {
    "onnxruntime": Entry("runtimes.onnxruntime", "ONNXRuntime", "onnxruntime", ("fp32",)),
    "openvino": Entry("runtimes.openvino", "OpenVINO", "openvino", ("fp32", "bf16", "fp16")),
    "synthetic": Entry("runtimes.synthetic", "Synthetic", "", ("fp32",)),
    "torch": Entry("runtimes.torch", "Torch", "torch", ("fp32", "bf16", "fp16", "int8")),
}


def names() -> tuple[str, ...]:
    return tuple(ENTRIES)


def create(settings: RuntimeSettings) -> Runtime:
    """The backend, not yet loaded. Raises `LoadError` for what `check` would find, too, and
    `MissingBackend` where its package is not installed."""
    check(settings.runtime, settings.options, settings.precision)
    missing = available(settings.runtime)
    if missing:
        raise MissingBackend(missing)
    entry = _entry(settings.runtime)
    # Where rows have shapes of their own, what they are called by is no axis of theirs.
    own = settings if settings.row_shapes is None else replace(settings, max_length=None)
    made = getattr(importlib.import_module(entry.module), f"{entry.prefix}Runtime")(own)
    plain = cast(Runtime, made)
    return plain if settings.row_shapes is None else EqualShapes(plain, settings)


def check(runtime: str, options: Mapping[str, Any], precision: str) -> None:
    """Raises `LoadError` naming what is wrong and what would be right."""
    entry = _entry(runtime)
    if precision not in entry.precisions:
        raise LoadError(f"{runtime} has no precision '{precision}', {_listed(entry.precisions)}")
    cls = getattr(importlib.import_module(entry.module), f"{entry.prefix}Options")
    option_parser.parse(cls, options)


def available(runtime: str) -> str | None:
    """None, or the sentence that says what to install."""
    package = _entry(runtime).package
    if not package or importlib.util.find_spec(package) is not None:
        return None
    return f"the {runtime} runtime needs its package: pip install 'headrace[{runtime}]'"


def version(runtime: str) -> str:
    """Of the backend's package as installed, without importing it; "" where it has none."""
    package = _entry(runtime).package
    if not package:
        return ""
    for name in (package, *metadata.packages_distributions().get(package, ())):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


def _entry(runtime: str) -> Entry:
    if runtime in ENTRIES:
        return ENTRIES[runtime]
    close = difflib.get_close_matches(runtime, ENTRIES, n=1)
    hint = f"did you mean '{close[0]}'? " if close else ""
    raise LoadError(f"unknown runtime '{runtime}', {hint}{_listed(names())}")


def _listed(words: tuple[str, ...]) -> str:
    return f"known: {', '.join(words)}"
