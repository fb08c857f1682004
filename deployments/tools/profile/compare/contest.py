"""Candidates side by side: all loaded, then rounds in which each runs once, in another order.

Rounds alternate them, so that a machine that drifts does so for all; the first does not count.
What cannot load, or has no room beside the others, is left out with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from math import ceil
from random import Random

import psutil

from deployments.tools.profile.compare.candidates import Candidate, Skipped
from deployments.tools.profile.compare.process import CandidateProcess, Ran, TrialFailed
from deployments.tools.profile.subject import Chosen

ROUNDS = 5
ROWS = 128
LOAD_SHARE = 0.5
LEAST_LOAD_S = 30.0  # a process with its libraries takes seconds on a busy machine
_LEAST_MEMORY = 0.1  # of the machine's: below it nothing more is loaded


class Contest:
    """`runs` by candidate, without the first round; `stopped`: before the last round. `watch` is
    told what runs and the share that is done."""

    def __init__(self, found: Chosen, seed: int, watch: Callable[[str, float], None]) -> None:
        self.runs: dict[str, list[Ran]] = {}
        self.skipped: list[Skipped] = []
        self.stopped = False
        self._found = found
        self._rng = Random(seed)
        self._watch = watch

    def hold(self, candidates: Sequence[Candidate], seconds: float) -> None:
        """All runs together take about `seconds`; loading comes on top, for each at most
        `LOAD_SHARE` of that or `LEAST_LOAD_S`, whichever is more."""
        lengths = self._rng.choices(self._found.lengths.rows, k=ROWS)
        with ExitStack() as stack:
            try:
                within_s = max(LEAST_LOAD_S, LOAD_SHARE * seconds)
                loaded = self._loaded(candidates, lengths, within_s, stack)
                self._rounds(loaded, seconds)
            except KeyboardInterrupt:
                self.stopped = True

    def _loaded(
        self,
        candidates: Sequence[Candidate],
        lengths: Sequence[int],
        within_s: float,
        stack: ExitStack,
    ) -> dict[CandidateProcess, float]:
        passes: dict[CandidateProcess, float] = {}
        failed_ways: set[tuple[str, str, str]] = set()
        for place, candidate in enumerate(candidates):
            way = candidate.runtime, candidate.mode, candidate.precision
            if way in failed_ways:
                self._skip(candidate, "the same with other threads did not load")
                continue
            self._watch(f"loading {candidate}", 0.0)
            memory = psutil.virtual_memory()
            if passes and memory.available < _LEAST_MEMORY * memory.total:
                self._skip(candidate, f"no memory left to load it beside the {place} others")
                continue
            process = CandidateProcess(candidate, self._found, lengths)
            stack.callback(process.end)
            try:
                passes[process] = process.loaded(within_s)
            except TrialFailed as failed:
                failed_ways.add(way)
                self._skip(candidate, str(failed))
        return passes

    def _rounds(self, passes: dict[CandidateProcess, float], seconds: float) -> None:
        if not passes:
            return
        # Where passes are too long for the time, each is over every so many batches.
        every = max(1, ceil(ROUNDS * sum(passes.values()) / seconds))
        run_s, order = seconds / ROUNDS / len(passes), list(passes)
        for round_ in range(ROUNDS):
            self._rng.shuffle(order)
            found: dict[str, Ran] = {}
            for place, process in enumerate(order):
                done = (round_ + place / len(order)) / ROUNDS
                self._watch(f"round {round_ + 1} of {ROUNDS}: {process.candidate}", done)
                try:
                    found[str(process.candidate)] = process.run(run_s, every)
                except TrialFailed as failed:
                    self._skip(process.candidate, str(failed))
                    self.runs.pop(str(process.candidate), None)
            order = [each for each in order if str(each.candidate) in found]
            if round_:
                for name, ran in found.items():
                    self.runs.setdefault(name, []).append(ran)

    def _skip(self, candidate: Candidate, why: str) -> None:
        self.skipped.append(Skipped(str(candidate), why))
