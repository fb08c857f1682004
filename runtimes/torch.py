"""How does torch run a ragged batch on this machine's processors?

Eager, in inference mode, with as many threads as the control group allows: pad, wrap, run, copy
out, cut back. Precision is the parameters' own (`bf16` casts them; pooling stays in float32), no
autocast. The numbers equal `transformers`' own for the same weights.

Compiled modes and GPUs are not here. The library is imported when a model is loaded, never before,
so that settings can be checked without it.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from runtimes import options, padding, rows, threads, warmup
from runtimes.datatypes import DTYPES
from runtimes.errors import BadRows, LoadError, MissingBackend, RunError, Unhealthy
from runtimes.source import Source, SourceKind, inspect
from runtimes.types import Batch, Limits, Ragged, Result, RuntimeSettings, StageTimes, TensorSpec

if TYPE_CHECKING:  # at run time it would import torch
    from runtimes.torch_model import TorchModel


@dataclass(frozen=True, slots=True)
class TorchOptions:
    """warm_s: warm-up starts no new batch after so many seconds."""

    warm_s: float = warmup.WARM_S

    def __post_init__(self) -> None:
        if self.warm_s < 0:
            raise ValueError(f"option 'warm_s' is {self.warm_s}, it must be 0 or more")


class TorchRuntime:
    """See `runtimes.types.Runtime`. The number of threads is the process's, not the model's."""

    def __init__(self, settings: RuntimeSettings) -> None:
        self._settings = settings
        self._options = options.parse(TorchOptions, settings.options)
        self._library: Any = None
        self._model: TorchModel | None = None

    def load(self) -> None:
        settings = self._settings
        if settings.precision not in ("fp32", "bf16"):
            raise LoadError(f"torch has no precision '{settings.precision}', known: fp32, bf16")
        if settings.source is None:
            raise LoadError("the torch runtime needs a source: a model folder or a .pt2 archive")
        settings.progress("staging", 0.0)
        source = inspect(settings.source, settings.cache_dir)
        if source.kind not in (SourceKind.HUGGING_FACE, SourceKind.TORCH_EXPORT):
            raise LoadError(f"torch cannot run {source.path}; a model folder or a .pt2 it can")
        self._library = _library()
        self._library.set_num_threads(settings.threads or threads.allowed_cpus())
        self._model = self._read(source)
        settings.progress("staging", 1.0)

    def warm(self) -> None:
        warmup.warm(self._settings, self.limits(), self.run, self._options.warm_s)

    def limits(self) -> Limits:
        return self._loaded().limits

    def run(self, batch: Batch) -> Result:
        model = self._loaded()
        rows.check(batch, model.limits)
        names = rows.wanted(batch, model.limits)
        start = time.perf_counter()
        longest = _longest(batch, model)
        arrays = _arrays(batch, model, longest)
        padded = time.perf_counter()
        tensors = [self._tensor(array) for array in arrays]
        copied = time.perf_counter()
        answers = self._compute(model, tensors)
        computed = time.perf_counter()
        found = {name: self._array(model, name, answers[name]) for name in names}
        out = time.perf_counter()
        outputs = {name: _cut(model, name, found[name], batch) for name in names}
        times = StageTimes(
            pad_s=padded - start,
            copy_in_s=copied - padded,
            run_s=computed - copied,
            copy_out_s=out - computed,
            post_s=time.perf_counter() - out,
        )
        return Result(outputs, times, batch.rows * longest)

    def health(self) -> None:
        self._loaded()

    def close(self) -> None:
        self._model = None

    def _loaded(self) -> TorchModel:
        model = self._model  # one read: `close` may come from another thread
        if model is None:
            raise Unhealthy("the torch model is closed or was never loaded")
        return model

    def _read(self, source: Source) -> TorchModel:
        # Imports torch, so it may only be imported here.
        builder = importlib.import_module("runtimes.torch_model")
        of_folder = source.kind is SourceKind.HUGGING_FACE
        made = (builder.from_folder if of_folder else builder.from_archive)(source, self._settings)
        return cast("TorchModel", made)

    def _compute(self, model: TorchModel, tensors: list[Any]) -> Mapping[str, Any]:
        try:
            with self._library.inference_mode():
                return model.call(*tensors)
        except (IndexError, AssertionError) as error:
            # An id that a table does not hold, or a size that the exported graph forbids.
            raise BadRows(f"the model does not take these rows: {error}") from error
        except Exception as error:
            raise RunError(f"torch failed on the batch: {error}") from error

    def _tensor(self, array: np.ndarray[Any, Any]) -> Any:
        """Shares the array's memory, unless that is read-only, which torch does not know."""
        writable = array if array.flags.writeable else array.copy()
        if array.dtype == DTYPES["BF16"]:
            return self._library.from_numpy(writable.view(np.int16)).view(self._library.bfloat16)
        return self._library.from_numpy(writable)

    def _array(self, model: TorchModel, name: str, tensor: Any) -> np.ndarray[Any, Any]:
        datatype = _datatype(model.limits, name)
        if datatype == "FP32":
            tensor = tensor.float()  # folders compute in bf16 and declare FP32
        elif datatype == "BF16":
            bits: np.ndarray[Any, Any] = tensor.contiguous().view(self._library.int16).numpy()
            return bits.view(DTYPES["BF16"])
        array: np.ndarray[Any, Any] = tensor.numpy()
        return array


def _library() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise MissingBackend(
            f"the torch runtime needs its package: pip install 'headrace[torch]' ({error})"
        ) from error


def _longest(batch: Batch, model: TorchModel) -> int:
    """Tokens a row after padding, at least 1: no kernel is asked for a tensor without any."""
    if model.limits.length_input is None:
        return 1
    return max(1, int(batch.lengths.max()))


def _arrays(batch: Batch, model: TorchModel, longest: int) -> list[np.ndarray[Any, Any]]:
    """One dense array an input, in the model's order; what was left out is made here."""
    arrays = []
    for spec in model.limits.inputs:
        ragged = batch.inputs.get(spec.name)
        if ragged is not None:
            _check_ids(ragged, spec.name, model.id_bounds.get(spec.name))
            arrays.append(_pad(ragged, spec, batch, model, longest))
        elif spec.name == model.limits.mask_input:
            arrays.append(padding.mask(batch.lengths, longest))
        else:
            arrays.append(np.zeros((batch.rows, longest), DTYPES[spec.datatype]))
    return arrays


def _pad(
    ragged: Ragged, spec: TensorSpec, batch: Batch, model: TorchModel, longest: int
) -> np.ndarray[Any, Any]:
    axis = model.lengthwise.get(spec.name)
    if axis is None:
        if len(set(ragged.shapes)) > 1:
            raise BadRows(f"the rows of input '{spec.name}' must have one shape in a batch")
        return padding.pad(ragged)
    if [shape[axis - 1] for shape in ragged.shapes] != list(batch.lengths):
        raise BadRows(f"the rows of input '{spec.name}' are not as long as the batch says")
    return padding.pad(ragged, longest if axis == 1 else None)


def _check_ids(ragged: Ragged, name: str, bound: int | None) -> None:
    if bound is None or not ragged.data.size:
        return
    low, high = int(ragged.data.min()), int(ragged.data.max())
    if low < 0 or high >= bound:
        wrong = low if low < 0 else high
        raise BadRows(f"input '{name}' holds {wrong}, the model knows 0 to {bound - 1}")


def _cut(model: TorchModel, name: str, array: np.ndarray[Any, Any], batch: Batch) -> Ragged:
    axis = model.cut_axes.get(name)
    return padding.cut(array, batch.lengths, axis, _datatype(model.limits, name))


def _datatype(limits: Limits, name: str) -> str:
    return next(spec.datatype for spec in limits.outputs if spec.name == name)
