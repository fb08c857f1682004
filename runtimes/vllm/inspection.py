"""Whether reading a model's folder would run what is in it: looked at before vLLM is imported.

Python files and `auto_map` name code that comes with a model; a pickle is code in itself, and what
restricts its reading was got around more than once. Weights are read as safetensors or GGUF. What
is no folder here (a single file, a name that vLLM would look up in Hugging Face's cache) or cannot
be looked through is refused: nobody has seen what is in it.
Source: vLLM CVE-2025-66448, CVE-2026-22807; torch CVE-2025-32434, CVE-2026-24747.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from runtimes.errors import LoadError

_CODE = (".py", ".pyc", ".so", ".pyd")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".npy", ".npz")
_MAX_BYTES = 256 << 20
_LARGEST_DEPTH = 64


def check(folders: Iterable[str], *, may_trust: bool = True) -> None:
    """Raises LoadError that names the file and what would be right. `may_trust`: whether that may
    be the option `trust_files`."""
    for folder in folders:
        if not os.path.isdir(folder):
            trust = ", or set options.trust_files if you know what it is" if may_trust else ""
            raise LoadError(
                f"{folder} is no folder on this machine, so nothing in it can be looked at; must "
                f"be the model's folder{trust}"
            )
        for path, why in _dangers(Path(folder)):
            trust = ", or set options.trust_files if you know what is in it" if may_trust else ""
            raise LoadError(
                f"{path} {why}; convert the model to safetensors without code of its own{trust}"
            )


def _dangers(folder: Path) -> Iterator[tuple[str, str]]:
    for root, _, names in os.walk(folder, onerror=_refuse):
        for name in sorted(names):
            path = os.path.join(root, name)
            if name.lower().endswith(_CODE):
                yield path, "is code"
            elif name.lower().endswith(_PICKLES):
                yield path, "is a pickle, or may hold one"
            elif name.lower().endswith(".json") and _names_code(path):
                yield path, "has an auto_map, which names code to run"


def _refuse(fault: OSError) -> None:
    raise LoadError(f"{fault.filename} cannot be looked through: {fault.strerror}") from None


def _names_code(path: str) -> bool:
    """Raises LoadError for what is no JSON."""
    if os.path.getsize(path) > _MAX_BYTES:
        raise LoadError(f"{path} is larger than {_MAX_BYTES} bytes; a model's settings are not")
    try:
        with open(path, encoding="utf-8") as file:
            return _has_auto_map(json.load(file), 0)
    except (ValueError, RecursionError) as fault:
        raise LoadError(f"{path} is no JSON: {fault}") from None


def _has_auto_map(value: object, depth: int) -> bool:
    if depth > _LARGEST_DEPTH:
        raise LoadError("a model's settings are nested too deeply")
    if isinstance(value, dict):
        # A vocabulary may have the word, with a number.
        return isinstance(value.get("auto_map"), dict | list | str) or any(
            _has_auto_map(each, depth + 1) for each in value.values()
        )
    return isinstance(value, list) and any(_has_auto_map(each, depth + 1) for each in value)
