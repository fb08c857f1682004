"""The faults of a backend. The shell maps each to its public answer."""

from __future__ import annotations

import importlib
import re
from typing import Any


class RuntimeFault(Exception):
    """Base of all errors that runtimes raise on purpose."""


class LoadError(RuntimeFault):
    """The model could not be staged, compiled or loaded; the message says what to change."""


class MissingBackend(LoadError):
    """The backend's package or hardware is missing; the message names the extra to install."""


class RefusedArtifact(LoadError):
    """The artifact may run code when loaded (pickle) or is not what it claims to be."""


class BadRows(RuntimeFault):
    """The input of some row is the caller's fault (token id out of range, wrong shape)."""


class RunError(RuntimeFault):
    """The backend failed on this batch; other batches may succeed."""


class OutOfMemory(RunError):
    """The device has too little memory for this batch; a smaller one may succeed."""


class Unhealthy(RuntimeFault):
    """The backend will not recover: its process ends, and a new one replaces it."""


# CUDA, cuBLAS and cuDNN, torch's allocators, ONNX Runtime's arena and its other allocators, C++.
_OUT_OF_MEMORY = re.compile(
    r"out of memory|_ALLOC_FAILED|failed to allocate memory|smaller than requested bytes"
    r"|can't allocate memory|bad_alloc|bad allocation",
    re.IGNORECASE,
)


def lacks_memory(error: BaseException) -> bool:
    """Libraries say it in words alone, but for Python's own MemoryError."""
    return isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(str(error)) is not None


def failed(message: str, error: BaseException) -> RunError:
    """The fault of a batch on which a library raised `error`."""
    return OutOfMemory(message) if lacks_memory(error) else RunError(message)


def library(module: str, needed: str, install: str) -> Any:
    """The module, imported late. Raises `MissingBackend`: `needed` says by what and for what."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingBackend(f"{needed}: pip install '{install}' ({error})") from error
