"""A batch backend that only takes time, for load tests and tests of everything around a model.

A batch of B rows takes `base_ms + per_request_ms·B + per_token_us·B·L_padded`, one batch at a time.
The answer of each row is its true sum, so that a mix-up of rows shows. Input: INT64 `ids` [-1, -1].
Output: FP32 `sum` [-1]; with `embed_width` also `embedding`, so that the path of such a model
(tokenising included) can be load-tested.

It sleeps instead of computing, which leaves the processor to the load generator; it does not
imitate a model's use of memory or caches. Faults can be injected by token id. They are for tests of
retries, bisection and replacement; a service would never set them.
"""

from __future__ import annotations

import os
import random
import threading
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from runtimes import options, rows
from runtimes.errors import LoadError, RunError, Unhealthy
from runtimes.types import (
    Batch,
    Limits,
    Ragged,
    Result,
    RuntimeSettings,
    StageTimes,
    TensorSpec,
)


class Hiccups:
    """`every`: one batch in so many stalls, on average; 0: none does. `stall_ms`: for how long.
    `process`: whose sequence this is, such as its number at the operating system."""

    def __init__(self, every: int, stall_ms: float, seed: int, process: int) -> None:
        self._chance = 1.0 / every if every else 0.0
        self._stall_s = stall_ms / 1e3
        self._rng = random.Random(f"{seed} {process}")

    def next_s(self) -> float:
        """Seconds that the next batch takes longer; 0 of nearly all."""
        return self._stall_s if self._rng.random() < self._chance else 0.0


SPIN_S = 0.0001  # a sleep ends 60 to 90 µs late here (timer slack is 50 µs); the rest is spun
EXIT_CODE = 70  # what a process ends with that `die_ids` killed

LIMITS = Limits(
    inputs=(TensorSpec("ids", "INT64", (-1, -1)),),
    outputs=(TensorSpec("sum", "FP32", (-1,)),),
    length_input="ids",
    platform="headrace_synthetic",
)
EMBEDDING = "embedding"
_NOT_NEGATIVE = (
    "base_ms", "per_request_ms", "per_token_us", "embed_width", "load_s", "warm_s", "hang_s",
    "grow_mib", "hiccup_every", "hiccup_ms",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SyntheticOptions:
    """The device's speed, and faults for tests."""

    # The time of a batch; see the module.
    base_ms: float = 2.0
    per_request_ms: float = 0.0
    per_token_us: float = 0.0
    embed_width: int = 0  # width of the output `embedding`; 0: there is none
    load_s: float = 0.0
    warm_s: float = 0.0

    # Stalls, in batches; see `Hiccups`.
    hiccup_every: int = 0
    hiccup_ms: float = 0.0
    hiccup_seed: int = 0

    # Faults of a batch that holds one of these ids in any row.
    fail_ids: tuple[int, ...] = ()  # it raises `RunError`
    hang_ids: tuple[int, ...] = ()  # it hangs for `hang_s`, or until `close`
    die_ids: tuple[int, ...] = ()  # the whole process ends at once
    lose_ids: tuple[int, ...] = ()  # it and all later batches raise `Unhealthy`
    nan_ids: tuple[int, ...] = ()  # the answers of rows that hold one are NaN
    hang_s: float = 3600.0

    # Faults of every batch.
    answer_bias: float = 0.0  # is added to every answer
    # Memory that stays resident after each batch.
    grow_mib: int = 0

    def __post_init__(self) -> None:
        for name in _NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise ValueError(f"option '{name}' is {getattr(self, name)}, it must be 0 or more")


def service_s(device: SyntheticOptions, size: int, longest: int) -> float:
    """Seconds the device takes for `size` rows padded to `longest`."""
    milliseconds = device.base_ms + device.per_request_ms * size
    return milliseconds / 1e3 + device.per_token_us * size * longest / 1e6


class SyntheticRuntime:
    """See `runtimes.types.Runtime`; needs no source and stages nothing."""

    def __init__(self, settings: RuntimeSettings) -> None:
        self._settings = settings
        self._options = options.parse(SyntheticOptions, settings.options)
        self._hiccups = Hiccups(
            self._options.hiccup_every,
            self._options.hiccup_ms,
            self._options.hiccup_seed,
            os.getpid(),
        )
        self._limits = LIMITS
        self._loaded = False
        self._closed = threading.Event()
        self._leaked: list[np.ndarray[Any, Any]] = []
        self._lost = False
        given = self._options
        self._faulty = any((given.fail_ids, given.hang_ids, given.die_ids, given.lose_ids))

    def load(self) -> None:
        if self._settings.precision != "fp32":
            raise LoadError(f"precision is '{self._settings.precision}', synthetic has fp32 only")
        self._limits = rows.settled(_limits(self._options), self._settings)
        self._spend(self._options.load_s, "staging")
        self._loaded = True

    def warm(self) -> None:
        self._spend(self._options.warm_s, "warming")

    def limits(self) -> Limits:
        return self._limits

    def run(self, batch: Batch) -> Result:
        start = time.perf_counter()
        self.health()
        rows.check(batch, self._limits)
        names = rows.wanted(batch, self._limits)
        ids = batch.inputs["ids"]
        if self._faulty:
            self._inject(ids.data)
        if self._options.grow_mib:
            self._leaked.append(np.ones(self._options.grow_mib << 20, np.uint8))
        longest = max(shape[0] for shape in ids.shapes)
        outputs = {name: self._output(name, ids) for name in names}
        if self._options.nan_ids:
            rows_ids = np.split(ids.data, np.cumsum([shape[0] for shape in ids.shapes])[:-1])
            bad = [at for at, data in enumerate(rows_ids) if _holds(data, self._options.nan_ids)]
            for ragged in outputs.values():
                ragged.data.reshape(batch.rows, -1)[bad] = np.nan
        ready = time.perf_counter()
        took_s = service_s(self._options, batch.rows, longest) + self._hiccups.next_s()
        _wait_until(start + took_s)
        times = StageTimes(pad_s=ready - start, run_s=time.perf_counter() - ready)
        return Result(outputs, times, batch.rows * longest)

    def health(self) -> None:
        if self._closed.is_set() or not self._loaded:
            raise Unhealthy("the synthetic device is closed or was never loaded")
        if self._lost:
            raise Unhealthy("the synthetic device is lost")

    def close(self) -> None:
        self._closed.set()

    def _output(self, name: str, ids: Ragged) -> Ragged:
        rows = len(ids.shapes)
        if name == EMBEDDING:
            width = self._options.embed_width
            return Ragged("FP32", _folded(ids, width), ((width,),) * rows)
        # Differences of one running sum, so that empty rows are 0 and none is looped.
        running = np.concatenate(([0], np.cumsum(ids.data)))
        ends = np.cumsum([shape[0] for shape in ids.shapes])
        sums = running[ends] - running[np.concatenate(([0], ends[:-1]))]
        answers = sums.astype(np.float32) + np.float32(self._options.answer_bias)
        return Ragged("FP32", answers, ((),) * rows)

    def _inject(self, ids: np.ndarray[Any, Any]) -> None:
        if _holds(ids, self._options.die_ids):
            os._exit(EXIT_CODE)
        if _holds(ids, self._options.lose_ids):
            self._lost = True
            self.health()
        if _holds(ids, self._options.hang_ids):
            self._closed.wait(self._options.hang_s)
            raise RunError("the batch held an id that hangs")
        if _holds(ids, self._options.fail_ids):
            raise RunError("the batch held an id that fails")

    def _spend(self, seconds: float, phase: str, steps: int = 10) -> None:
        for step in range(steps):
            self._settings.progress(phase, step / steps)
            self._closed.wait(seconds / steps)
        self._settings.progress(phase, 1.0)


def _limits(device: SyntheticOptions) -> Limits:
    if not device.embed_width:
        return LIMITS
    embedding = TensorSpec(EMBEDDING, "FP32", (-1, device.embed_width))
    return replace(LIMITS, outputs=(*LIMITS.outputs, embedding))


def _holds(ids: np.ndarray[Any, Any], marked: tuple[int, ...]) -> bool:
    return any(bool((ids == value).any()) for value in marked)


def _folded(ids: Ragged, width: int) -> np.ndarray[Any, Any]:
    """FP32 [rows x width]: a row's value k is the sum of its ids at k, k + width, k + 2 width …"""
    counts = np.array([shape[0] for shape in ids.shapes])
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    places = np.repeat(np.arange(len(counts)), counts) * width
    places += (np.arange(len(ids.data)) - starts) % width
    summed = np.bincount(places, weights=ids.data, minlength=len(counts) * width)
    return summed.astype(np.float32)


def _wait_until(finish: float) -> None:
    left = finish - time.perf_counter()
    if left > SPIN_S:
        time.sleep(left - SPIN_S)
    while time.perf_counter() < finish:
        pass
