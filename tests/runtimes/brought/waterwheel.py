"""A runtime as another package has it, written by docs/extending.md: each row's sum, weighed."""

from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter

import numpy as np

from runtimes import options, rows
from runtimes.catalog import BackendEntry
from runtimes.errors import Unhealthy
from runtimes.types import Limits, Ragged, Result, StageTimes, TensorSpec

ENTRY = BackendEntry("waterwheel", "Wheel", "", ("fp32",))


@dataclass(frozen=True, slots=True)
class WheelOptions:
    weight: float = 1.0

    def __post_init__(self):
        if self.weight <= 0:
            raise ValueError(f"option 'weight' is {self.weight}, it must be above 0")


class WheelRuntime:
    def __init__(self, settings):
        self._settings, self._turns = settings, False
        self._options = options.parse(WheelOptions, settings.options)
        self._limits = Limits(
            inputs=(TensorSpec("ids", "INT64", (-1, -1)),),
            outputs=(TensorSpec("weight", "FP32", (-1,)),),
            length_input="ids",
            platform="waterwheel",
            pads=False,
        )

    def load(self):
        self._limits = rows.settled(self._limits, self._settings)
        self._settings.progress("staging", 1.0)
        self._turns = True

    def warm(self):
        self._settings.progress("warming", 1.0)

    def limits(self):
        return self._limits

    def run(self, batch):
        began = perf_counter()
        self.health()
        rows.check(batch, self._limits)
        rows.wanted(batch, self._limits)
        ids = batch.inputs["ids"]
        ends = np.cumsum([0, *(length for (length,) in ids.shapes)])
        sums = [ids.data[begin:end].sum() for begin, end in pairwise(ends)]
        weights = (np.array(sums) * self._options.weight).astype(np.float32)
        answer = {"weight": Ragged("FP32", weights, ((),) * batch.rows)}
        return Result(answer, StageTimes(run_s=perf_counter() - began), int(ends[-1]))

    def health(self):
        if not self._turns:
            raise Unhealthy("the wheel stands still")

    def close(self):
        self._turns = False
