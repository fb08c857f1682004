"""On which device does a backend run a model?

A model's option `device` is `cpu`, `cuda` (the first GPU), `cuda:N`, or `auto`: the first GPU if
the backend sees one, else the processors. If the named device is missing, `MissingBackend` says
what the backend saw; there is no silent fallback. GPUs are counted by the backend's own library,
among those that the process was given (`replicas.num_gpus`).

It imports no library and opens nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from runtimes.errors import MissingBackend

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


def check(text: str) -> None:
    """Raises `ValueError` in the words of an option's mistake."""
    if text not in (AUTO, "cpu") and not _CUDA.fullmatch(text):
        raise ValueError(f"option 'device' is {text!r}, it takes {RIGHT}")


def chosen(text: str, gpus: int, backend: str) -> Device:
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
