"""What lies between numpy's arrays and a torch model's answer on the processors.

A runner puts arrays where its device computes and computes with what was put; `cuda` beside this
has the one for GPUs. Here tensors share the arrays' memory, and nothing is copied but read-only
arrays. Faults of rows that only the model can see become `BadRows`, all others `RunError`.
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
    """`call`: see `TorchModel.bind`; `floats`: outputs that are float32 whatever it computes in;
    `shortest`: tokens that every row is padded to at least."""

    call: Call
    floats: frozenset[str]
    shortest: int = 1


class Runner(Protocol):
    """`shape_for`: what to pad a batch of rows x length to. `put` may be called by one thread while
    another is in `compute`, which gives the outputs asked for, arrays of the caller's own."""

    def shape_for(self, rows: int, length: int) -> Shape: ...
    def put(self, arrays: Sequence[Array], shape: Shape) -> Any: ...
    def compute(self, put: Any, names: Sequence[str], times: StageTimes) -> list[Array]: ...
    def close(self) -> None: ...


class HostRunner:
    """`Runner` on the processors."""

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
    """Maps what torch raises."""
    try:
        yield
    except (IndexError, AssertionError) as error:
        # An id that a table does not hold, or a size that the exported graph forbids.
        raise BadRows(f"the model does not take these rows: {error}") from error
    except Exception as error:
        if "index out of bounds" in str(error):  # what compiled code says of such an id
            raise BadRows(f"the model does not take these rows: {error}") from error
        if "CUDA error" in str(error):  # nothing more can be asked of the device by this process
            raise Unhealthy(f"the GPU is lost: {error}") from error
        raise RunError(f"torch failed on the batch: {error}") from error


def tensor_of(array: Array) -> torch.Tensor:
    """Shares the array's memory, unless that is read-only, which torch does not know."""
    writable = array if array.flags.writeable else array.copy()
    if array.dtype == DTYPES["BF16"]:
        return torch.from_numpy(writable.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(writable)


def taken(
    network: Network, answers: Mapping[str, torch.Tensor], names: Sequence[str]
) -> list[torch.Tensor]:
    """Folders compute in bf16 or fp16 and declare FP32."""
    found = ((name, answers[name]) for name in names)
    return [tensor.float() if name in network.floats else tensor for name, tensor in found]


def array_of(tensor: torch.Tensor) -> Array:
    """Of a tensor in the processors' memory, which it shares."""
    if tensor.dtype == torch.bfloat16:
        bits: Array = tensor.contiguous().view(torch.int16).numpy()
        return bits.view(DTYPES["BF16"])
    array: Array = tensor.numpy()
    return array
