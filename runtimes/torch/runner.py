"""Runs a torch network on numpy arrays, on the CPU; and the interface of all runners.

A runner first puts arrays on its device (`put`) and later computes with them (`compute`). `cuda`
has the runner for GPUs. On the CPU, tensors share the arrays' memory; only read-only arrays are
copied. A fault of the rows that only the model can detect becomes `BadRows`, a lost GPU
`Unhealthy`, and every other fault `RunError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import torch

from runtimes.datatypes import DTYPES
from runtimes.errors import BadRows, RunError, Unhealthy
from runtimes.shapes import Shape
from runtimes.types import StageTimes

Array = np.ndarray[Any, Any]
Call = Callable[..., Mapping[str, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Network:
    """A network that is ready to run."""

    call: Call  # see `TorchModel.bind`
    floats: frozenset[str]  # outputs that are float32 at any precision
    shortest: int = 1  # every row is padded to this length at least


class Runner(Protocol):
    """Runs batches on one device.

    `shape_for`: the shape to pad a batch to. `put`: copies a batch to the device; one thread may
    call it while another is in `compute`. `compute`: the requested outputs, as arrays that belong
    to the caller.
    """

    def shape_for(self, rows: int, length: int) -> Shape: ...
    def put(self, arrays: Sequence[Array], shape: Shape) -> Any: ...
    def compute(self, put: Any, names: Sequence[str], times: StageTimes) -> list[Array]: ...
    def close(self) -> None: ...


class HostRunner:
    """A `Runner` on the CPU."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def shape_for(self, rows: int, length: int) -> Shape:
        return rows, max(length, self._network.shortest)

    def put(self, arrays: Sequence[Array], shape: Shape) -> list[torch.Tensor]:
        return [tensor_of(array) for array in arrays]

    def compute(
        self, put: list[torch.Tensor], names: Sequence[str], times: StageTimes
    ) -> list[Array]:
        begin = perf_counter()
        with faults(), torch.inference_mode():
            answers = self._network.call(*put)
        computed = perf_counter()
        found = [array_of(tensor) for tensor in taken(self._network, answers, names)]
        times.run_s += computed - begin
        times.copy_out_s += perf_counter() - computed
        return found

    def close(self) -> None:
        pass


@contextmanager
def faults() -> Iterator[None]:
    """Maps torch's exceptions to the runtimes' own."""
    try:
        yield
    except (IndexError, AssertionError) as error:
        # An index beyond a table's rows, or a size that the exported graph forbids.
        raise BadRows(f"the model does not take these rows: {error}") from error
    except Exception as error:
        if "index out of bounds" in str(error):  # compiled code's message for such an index
            raise BadRows(f"the model does not take these rows: {error}") from error
        if "CUDA error" in str(error):  # this process cannot use the device any more
            raise Unhealthy(f"the GPU is lost: {error}") from error
        raise RunError(f"torch failed on the batch: {error}") from error


def tensor_of(array: Array) -> torch.Tensor:
    """A tensor on the array's own memory; on a copy if the array is read-only, which torch's
    tensors cannot be."""
    writable = array if array.flags.writeable else array.copy()
    if array.dtype == DTYPES["BF16"]:
        return torch.from_numpy(writable.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(writable)


def taken(
    network: Network, answers: Mapping[str, torch.Tensor], names: Sequence[str]
) -> list[torch.Tensor]:
    """The outputs `names`. Those that are declared FP32 are converted from bf16 or fp16."""
    found = ((name, answers[name]) for name in names)
    return [tensor.float() if name in network.floats else tensor for name, tensor in found]


def array_of(tensor: torch.Tensor) -> Array:
    """An array on the memory of a tensor, which must be on the CPU."""
    if tensor.dtype == torch.bfloat16:
        bits: Array = tensor.contiguous().view(torch.int16).numpy()
        return bits.view(DTYPES["BF16"])
    array: Array = tensor.numpy()
    return array
