"""The torch backend: loads a model and runs its batches, on the CPU or on a GPU.

A batch is padded, put on the device, run in inference mode, copied back, and cut into rows. The
number of CPU threads is what the control group allows. The option `mode` says how the network runs:
eagerly, compiled with dynamic shapes, or (on a GPU) as CUDA graphs captured for each bucket's
shapes. The network computes in its parameters' precision, without autocast; pooling stays in
float32. In fp32 the results equal those of `transformers` for the same weights.

`prefetch` puts the next batch on the device while one runs. torch is imported only when a model is
loaded, so that settings can be checked without it.
"""

from __future__ import annotations

import importlib
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runtimes import errors, host, options, rows, warmup
from runtimes.errors import LoadError, OutOfMemory, RuntimeFault, Unhealthy
from runtimes.source import SourceKind, inspect
from runtimes.torch import batch as torch_batch
from runtimes.torch.options import TorchOptions
from runtimes.types import Batch, Limits, Result, RuntimeSettings, StageTimes
from runtimes.warmup import Shape

if TYPE_CHECKING:  # at run time they would import torch
    from runtimes.torch.model import TorchModel
    from runtimes.torch.runner import Runner

PRECISIONS = ("fp32", "bf16", "fp16", "int8")


@dataclass(frozen=True, slots=True)
class _Put:
    shape: Shape
    on_device: Any


class TorchRuntime:
    """A `runtimes.types.Runtime`. torch's number of threads is one for the whole process, so models
    in the same process share it."""

    def __init__(self, settings: RuntimeSettings) -> None:
        self._settings = settings
        self._options = options.parse(TorchOptions, settings.options)
        self._model: TorchModel | None = None
        self._runner: Runner | None = None
        self._lost = ""
        self._last = warmup.LastRun()
        self._putting = threading.Lock()
        self._prefetched: tuple[Batch, _Put] | None = None

    def load(self) -> None:
        settings = self._settings
        if settings.precision not in PRECISIONS:
            known = ", ".join(PRECISIONS)
            raise LoadError(
                f"torch does not support precision '{settings.precision}'; supported are {known}"
            )
        if settings.source is None:
            raise LoadError("the torch runtime needs a source: a model folder or a .pt2 archive")
        settings.progress("staging", 0.0)
        source = inspect(settings.source, settings.cache_dir)
        if source.kind not in (SourceKind.HUGGING_FACE, SourceKind.TORCH_EXPORT):
            raise LoadError(
                f"torch cannot run {source.path}; it runs model folders and .pt2 archives"
            )
        library = errors.library("torch", "the torch runtime needs its package", "headrace[torch]")
        library.set_num_threads(settings.threads or host.allowed_cpus())
        # These modules import torch, so they must not be imported before a model is loaded.
        builder = importlib.import_module("runtimes.torch.model")
        of_folder = source.kind is SourceKind.HUGGING_FACE
        if of_folder:
            model = builder.from_folder(source, settings, self._options)
        else:
            model = builder.from_archive(source, settings)
        settings.progress("staging", 1.0)
        modes = importlib.import_module("runtimes.torch.modes")
        self._model, self._runner = modes.opened(model, settings, self._options)

    def warm(self) -> None:
        warmup.warm(self._settings, self.limits(), self.run, self._options.warm_s)

    def limits(self) -> Limits:
        return self._loaded()[0].limits

    def run(self, batch: Batch) -> Result:
        model, runner = self._loaded()
        times = StageTimes()
        names = rows.wanted(batch, model.limits)
        try:
            with self._putting:
                prefetched, self._prefetched = self._prefetched, None
                ready = prefetched is not None and prefetched[0] is batch
                put = prefetched[1] if prefetched and ready else self._put_now(batch, times)
            arrays = runner.compute(put.on_device, names, times)
        except Unhealthy as fault:
            self._lost = str(fault)
            raise
        except OutOfMemory:
            self._last.failed()
            raise
        self._last.answered()
        begin = time.perf_counter()
        outputs = {
            name: torch_batch.cut(array, name, batch, model)
            for name, array in zip(names, arrays, strict=True)
        }
        times.post_s = time.perf_counter() - begin
        return Result(outputs, times, put.shape[0] * put.shape[1])

    def prefetch(self, batch: Batch) -> None:
        """Puts a batch on the device for a later `run` with the same object.

        May be called from another thread than `run`. A fault of the batch is not raised here but by
        that `run`.
        """
        with self._putting:
            try:
                self._prefetched = batch, self._put_now(batch, StageTimes())
            except RuntimeFault:
                self._prefetched = None

    def health(self) -> None:
        self._loaded()
        if self._lost:
            raise Unhealthy(self._lost)
        self._last.check(self._run_smallest)

    def _run_smallest(self) -> None:
        limits = self.limits()
        edge = min(self._settings.edges, default=1)
        self.run(warmup.batch(limits, 1, min(edge, limits.max_length or edge)))

    def close(self) -> None:
        model, runner, self._model, self._runner = self._model, self._runner, None, None
        with self._putting:
            self._prefetched = None
        if model is not None and runner is not None:
            modes = importlib.import_module("runtimes.torch.modes")
            modes.closed(model, self._settings, runner)

    def _loaded(self) -> tuple[TorchModel, Runner]:
        model, runner = self._model, self._runner  # one read: `close` may come from another thread
        if model is None or runner is None:
            raise Unhealthy("the torch model is closed or was never loaded")
        return model, runner

    def _put_now(self, batch: Batch, times: StageTimes) -> _Put:
        model, runner = self._loaded()
        rows.check(batch, model.limits)
        begin = time.perf_counter()
        shape = runner.shape_for(batch.rows, torch_batch.longest(batch, model.limits))
        arrays = torch_batch.arrays(batch, model, *shape)
        padded = time.perf_counter()
        on_device = runner.put(arrays, shape)
        times.pad_s += padded - begin
        times.copy_in_s += time.perf_counter() - padded
        return _Put(shape, on_device)
