"""What do the planned batches take on the live backend?

One thread runs them one after another, as a replica's does. The first run of a shape that was not
warmed compiles and allocates and does not count. Short batches are run several times at each visit,
since what disturbs them is longer than they are. A batch that would take longer than what is left
of the time is left out, so that the whole is bounded; what was measured before an interruption is
kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter

from deployments.replica.backend_loop import plain_batch
from deployments.tools.profile.plan import Trial
from runtimes.errors import BadRows, RunError
from runtimes.profiling import at_most
from runtimes.types import Batch, Limits, Runtime, StageTimes

Clock = Callable[[], float]

_MOST_RUNS = 5  # at a visit
_ENOUGH_S = 0.02


@dataclass(frozen=True, slots=True)
class Sample:
    """One run: when it began (seconds of `clock`), what the call took, and the backend's stages."""

    trial: Trial
    began_s: float
    took_s: float
    stages: StageTimes


class Sweep:
    """Keeps what it has measured in `samples`, whatever ends it. `watch(what)`: is told before each
    batch; `warmed`: (rows, length) that have run before. Raises what the backend raises for a batch
    that it cannot run."""

    def __init__(
        self,
        runtime: Runtime,
        watch: Callable[[str], None],
        clock: Clock = perf_counter,
        warmed: Collection[tuple[int, int]] = (),
    ) -> None:
        self.samples: list[Sample] = []
        self.limits: Limits = runtime.limits()
        self._runtime = runtime
        self._watch = watch
        self._clock = clock
        self._warmed = warmed
        self._batches: dict[Trial, Batch] = {}
        self._known: dict[tuple[int, int], float] = {}

    def run(self, rounds: Iterable[Sequence[Trial]], seconds: float) -> None:
        """Until the time is over or nothing that is left fits into it."""
        end = self._clock() + seconds
        for trials in rounds:
            ran = [trial for trial in trials if self._fits(trial, end) and self._try(trial)]
            if not ran:
                return

    def _fits(self, trial: Trial, end: float) -> bool:
        left = end - self._clock()
        known = ((*shape, took_s) for shape, took_s in self._known.items())
        runs = 1 if trial in self._batches or self._is_warm(trial) else 2
        return left > runs * at_most(trial.rows, max(trial.lengths), known)

    def _try(self, trial: Trial) -> bool:
        self._watch(f"{trial.rows} rows of up to {max(trial.lengths)}")
        batch = self._batches.get(trial)
        if batch is None:
            batch = self._batches[trial] = plain_batch(self.limits, trial.lengths)
            if not self._is_warm(trial):
                self._timed(trial, batch)
        spent_s = 0.0
        for _ in range(_MOST_RUNS):
            self.samples.append(self._timed(trial, batch))
            spent_s += self.samples[-1].took_s
            if spent_s >= _ENOUGH_S:
                break
        return True

    def _is_warm(self, trial: Trial) -> bool:
        return len(set(trial.lengths)) == 1 and (trial.rows, trial.lengths[0]) in self._warmed

    def _timed(self, trial: Trial, batch: Batch) -> Sample:
        began = self._clock()
        try:
            result = self._runtime.run(batch)
        except BadRows as error:
            raise RunError(f"it refuses zeros as input: {error}") from error
        took_s = self._clock() - began
        shape = trial.rows, max(trial.lengths)
        self._known[shape] = min(took_s, self._known.get(shape, took_s))
        return Sample(trial, began, took_s, result.times)
