"""Runs a Python class of the operator's own (`runtime: python`; the package `headrace`).

The class runs in this process, so all that guards other backends guards it: a hang, a leak and an
exit end the replica, and what it held runs elsewhere. Rows are given as they came, as views of the
batch's buffers. What `predict` returns is checked: rows, datatypes, shapes. An exception is the
batch's: its rows then run in halves until the faulty ones stand alone. A `RowError` in a row's
place fails that row alone. Callers are told nothing of an exception; the replica logs it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from headrace.batch import AnswerError, Column, RowError, answer, column
from headrace.batch import Batch as ClassBatch
from headrace.declaration import (
    DeclarationError,
    Declared,
    Settings,
    TensorType,
    declared,
)
from headrace.loading import Caller, folder_of, load_class
from runtimes import options, rows, warmup
from runtimes.errors import BadRows, LoadError, RunError, Unhealthy, failed
from runtimes.types import (
    Batch,
    Limits,
    Ragged,
    Result,
    RuntimeSettings,
    StageTimes,
    TensorSpec,
)

IMPORTED = "python:"  # before an entry that is imported by its name, not from a folder
logger = logging.getLogger("headrace.replica")


@dataclass(frozen=True, slots=True)
class PythonOptions:
    """`settings`: what the class's `load` gets. `padded`: batches come as dense arrays, shorter
    rows filled up with zeros."""

    settings: Mapping[str, Any] | None = None
    padded: bool = False
    warm_s: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < self.warm_s <= 600:
            raise ValueError(f"option 'warm_s' is {self.warm_s}, it takes 0 to 600 seconds")


class PythonRuntime:
    """See `runtimes.types.Runtime`. Each instance makes one object of the class."""

    def __init__(self, settings: RuntimeSettings) -> None:
        self._settings = settings
        self._options = options.parse(PythonOptions, settings.options)
        self._call = Caller()
        self._model: Any = None
        self._class = ""
        self._declared: Declared | None = None
        self._limits: Limits | None = None

    def load(self) -> None:
        if self._settings.precision != "fp32":
            raise LoadError("a Python class has the precision that it computes in; leave it out")
        self._settings.progress("staging", 0.0)
        if not self._settings.entry:
            raise LoadError("the source names no class; it must be folder:module:Class")
        is_imported = self._settings.entry.startswith(IMPORTED)
        module, _, name = self._settings.entry.removeprefix(IMPORTED).rpartition(":")
        source = self._settings.source
        folder = source if source is None or source.is_dir() else source.parent
        try:
            cls = load_class(None if is_imported else folder, module, name)
            self._declared, self._class = declared(cls), cls.__name__
            self._limits = self._limits_of(self._declared, hasattr(cls, "example"))
        except DeclarationError as error:
            raise LoadError(str(error)) from error
        given = Settings(
            name=self._settings.name,
            folder=folder_of(module),
            cache=self._settings.cache_dir,
            threads=self._settings.threads,
            given=self._options.settings or {},
        )
        self._model = self._loading(f"{self._class}()", cls)
        try:
            self._loading(f"{self._class}.load", self._model.load, given)
        except LoadError:
            self.close()
            raise
        self._settings.progress("staging", 1.0)

    def warm(self) -> None:
        """The class's own `warm`; then batches of its `example` rows, or where it has none, of
        zeros, which it may fail."""
        if hasattr(self._model, "warm"):
            self._loading(f"{self._class}.warm", self._model.warm)
        try:
            warmup.warm(self._settings, self.limits(), self.run, self._options.warm_s)
        except (LoadError, MemoryError, ValueError) as error:
            if self.limits().sample is not None:
                raise
            logger.warning(
                "%s is not warmed up: it takes no rows of zeros (%s); give it a method "
                "example(self, length) that returns a row",
                self._class, error, extra={"model": self._settings.name},
            )  # fmt: skip
            self._limits = replace(self.limits(), takes_zeros=False)
            self._settings.progress("warming", 1.0)

    def limits(self) -> Limits:
        if self._limits is None:
            raise Unhealthy("the class is not loaded")
        return self._limits

    def run(self, batch: Batch) -> Result:
        if self._model is None or self._declared is None:
            raise Unhealthy("the class is closed or was never loaded")
        begin = time.perf_counter()
        rows.check(batch, self.limits())
        names = rows.wanted(batch, self.limits())
        given = self._given(batch, self._declared)
        ready = time.perf_counter()
        returned = self._predicted(given)
        done = time.perf_counter()
        try:
            found = answer(returned, self._declared, batch.rows, names)
            failed = {row: _fault(error) for row, error in found.failed.items()}
        except AnswerError as error:
            raise RunError(f"{self._class}: {error}") from error
        except Exception as error:
            raise RunError(
                f"what {self._class}.predict returned cannot be read: {type(error).__name__}"
            ) from error
        outputs = {
            name: Ragged(self._declared.outputs[name].datatype, data, shapes)
            for name, (data, shapes) in found.outputs.items()
        }
        longest = int(batch.lengths.max(initial=1))
        padded = batch.rows * longest if self._options.padded else int(batch.lengths.sum())
        times = StageTimes(
            pad_s=ready - begin, run_s=done - ready, post_s=time.perf_counter() - done
        )
        return Result(outputs, times, padded, failed)

    def health(self) -> None:
        if self._model is None:
            raise Unhealthy("the class is closed or was never loaded")
        if not hasattr(self._model, "health"):
            return
        try:
            healthy = self._call(self._model.health)
        except BaseException as error:
            self._log(f"{self._class}.health", error)
            raise Unhealthy(f"{self._class}.health raised {type(error).__name__}") from error
        if healthy is False:
            raise Unhealthy(f"{self._class}.health says that it is not")

    def close(self) -> None:
        model, self._model = self._model, None
        if model is not None and hasattr(model, "close"):
            try:
                self._call(model.close)
            except BaseException as error:
                self._log(f"{self._class}.close", error)
        self._call.close()

    def _limits_of(self, found: Declared, has_example: bool) -> Limits:
        name, axis = self._length_of(found)
        return Limits(
            inputs=_specs(found.inputs),
            outputs=_specs(found.outputs),
            pads=self._options.padded,
            max_length=rows.longest(self._settings, None) if name else None,
            length_input=name,
            length_axis=axis,
            platform="python",
            sample=partial(self._sample, found) if has_example else None,
        )

    def _length_of(self, found: Declared) -> tuple[str | None, int]:
        """The input and axis of a row's length: the settings', else as the class declares them."""
        settings = self._settings
        if settings.mask_input is not None:
            raise LoadError("lengths.mask is for models that take a mask; leave it out")
        if settings.length_input is None and settings.length_axis is None:
            return found.length_input, found.length_axis
        name = settings.length_input or found.length_input
        if name is None or name not in found.inputs:
            raise LoadError(f"lengths.input is {name}; declared are {', '.join(found.inputs)}")
        own = found.inputs[name]
        axis = settings.length_axis or own.length_axis
        if own.kind != "text" and not (0 < axis <= len(own.shape) and own.shape[axis - 1] < 0):
            raise LoadError(f"input '{name}' is {own}: axis {axis} has no length of its own")
        return name, axis

    def _sample(self, found: Declared, length: int) -> Mapping[str, Ragged]:
        """The class's `example(length)` as one row. Raises `LoadError`."""
        what = f"{self._class}.example"
        given = self._loading(what, self._model.example, length)
        if not isinstance(given, Mapping) or set(given) != set(found.inputs):
            raise LoadError(f"{what} must return a dictionary with {', '.join(found.inputs)}")
        try:
            made = {name: column([given[name]], of, name) for name, of in found.inputs.items()}
        except AnswerError as error:
            raise LoadError(f"{what}({length}): {str(error).replace('predict', 'it')}") from error
        return {
            name: Ragged(found.inputs[name].datatype, data, shapes)
            for name, (data, shapes) in made.items()
        }

    def _given(self, batch: Batch, found: Declared) -> ClassBatch:
        columns = {}
        for name, ragged in batch.inputs.items():
            try:
                columns[name] = Column(found.inputs[name], ragged.data, ragged.shapes)
            except UnicodeDecodeError as error:
                raise BadRows(f"input '{name}' is no UTF-8 text: {error.reason}") from None
        return ClassBatch(batch.lengths, columns, self._options.padded)

    def _predicted(self, given: ClassBatch) -> Any:
        try:
            return self._call(self._model.predict, given)
        except RowError as error:
            raise _fault(error) from error
        except SystemExit as error:
            raise Unhealthy(f"{self._class}.predict ended the process") from error
        except BaseException as error:  # of extensions in Rust, a panic
            raise failed(f"{self._class}.predict raised {type(error).__name__}", error) from error

    def _loading(self, what: str, method: Any, *args: Any) -> Any:
        """Raises `LoadError`."""
        try:
            return self._call(method, *args)
        except ModuleNotFoundError as error:
            raise LoadError(
                f"{what} imports {error.name}, which is not installed; add its package to the "
                "model's dependencies"
            ) from error
        except BaseException as error:
            logger.error("%s failed", what, exc_info=error, extra={"model": self._settings.name})
            raise LoadError(f"{what} raised {type(error).__name__}: {error}") from error

    def _log(self, what: str, error: BaseException) -> None:
        logger.error("%s raised", what, exc_info=error, extra={"model": self._settings.name})


def _specs(types: Mapping[str, TensorType]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, of.datatype, (-1, *of.shape)) for name, of in types.items())


def _fault(error: RowError) -> BadRows | RunError:
    text = str(error).encode("utf-8", "replace").decode()
    return BadRows(text) if error.invalid else RunError(text)
