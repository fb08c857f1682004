"""A network's weights by name, read without torch.

Reads safetensors files, one or several shards, through numpy and hands out float32 arrays with
their shape checked. `below` narrows the view to a prefix, so that a network names what is its own.

It never opens a pickle. Source: the safetensors format and the tensor names of `transformers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from runtimes.errors import LoadError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Weights:
    """A view on named tensors: `places` maps a full name to its file, `root` is the model's own
    prefix (such as "bert." under a classifier), `prefix` where this view stands below it."""

    places: Mapping[str, Path]
    root: str = ""
    prefix: str = ""

    def below(self, name: str) -> Weights:
        return Weights(self.places, self.root, f"{self.prefix}{name}.")

    def top(self, name: str) -> Weights:
        """A view beside the model's own prefix, where heads live."""
        return Weights(self.places, "", f"{name}.")

    def read(self, name: str, shape: tuple[int, ...]) -> Array:
        """float32, C-contiguous; -1 in `shape` takes any size. Raises `LoadError`."""
        full = f"{self.root}{self.prefix}{name}"
        if full not in self.places:
            raise LoadError(f"the weights hold no tensor '{full}'")
        array = _tensor(self.places[full], full)
        fits = len(array.shape) == len(shape) and all(
            want in (-1, have) for want, have in zip(shape, array.shape, strict=True)
        )
        if not fits:
            raise LoadError(f"tensor '{full}' is {list(array.shape)}, expected {list(shape)}")
        return np.ascontiguousarray(array, np.float32)


def open_weights(files: Iterable[Path], marker: str, root: str) -> Weights:
    """All tensors of the files. They stand below `root` if `root + marker` is one, else at the top.

    Raises `LoadError` for a file that is no safetensors and for a name that two files hold.
    """
    places: dict[str, Path] = {}
    for file in files:
        for name in _names(file):
            if name in places:
                raise LoadError(f"tensor '{name}' is in {places[name].name} and in {file.name}")
            places[name] = file
    return Weights(places, root if f"{root}{marker}" in places else "")


def _names(file: Path) -> list[str]:
    try:
        with safe_open(str(file), "np") as tensors:
            return list(tensors.keys())
    except (SafetensorError, OSError) as error:
        raise LoadError(f"{file} is not a readable safetensors file: {error}") from error


def _tensor(file: Path, name: str) -> Array:
    with safe_open(str(file), "np") as tensors:
        array: Array = tensors.get_tensor(name)
        return array
