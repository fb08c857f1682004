"""Candidates side by side: all loaded, then rounds in which each runs once, in another order.

Rounds alternate them, so that a machine that drifts does so for all; the first does not count.
What cannot load, or has no room beside the others, is left out with its reason. Each replica is a
process, so that threads, allocators and libraries of candidates do not mix; they stay loaded
between runs and wait for a line on their input, which takes no processor.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import ceil
from random import Random
from typing import Any

import psutil

from deployments.tools.profile.compare.candidates import Candidate, Skipped
from deployments.tools.profile.subject import ChosenModel

_END_S = 10.0
ROUNDS = 5
ROWS = 128
LOAD_SHARE = 0.5
MIN_LOAD_S = 30.0  # a process with its libraries takes seconds on a busy machine
_MIN_MEMORY = 0.1  # of the machine's: below it nothing more is loaded


class CandidateFailed(RuntimeError):
    """A process could not load or run its model; the message is its backend's."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One run: real tokens a second by pass (of all replicas together), seconds by batch."""

    rates: tuple[float, ...]
    took: tuple[float, ...]


class CandidateProcess:
    def __init__(self, candidate: Candidate, found: ChosenModel, lengths: Sequence[int]) -> None:
        self.candidate = candidate
        told = json.dumps({
            "name": found.name,
            "model": _model(candidate, found),
            "cache_dir": str(found.cache_dir),
            "lengths": list(lengths),
        })  # fmt: skip
        self._processes = [_start(told) for _ in range(candidate.replicas)]

    def loaded(self, within_s: float) -> float:
        """Waits; seconds of one pass over all batches. Raises CandidateFailed, at the latest after
        `within_s`."""
        late = threading.Timer(within_s, self._kill)
        late.start()
        try:
            return max(float(_answer(process)["pass_s"]) for process in self._processes)
        except CandidateFailed:
            if late.finished.is_set():
                raise CandidateFailed(f"not loaded after {within_s:g} s") from None
            raise
        finally:
            late.cancel()

    def run(self, seconds: float, every: int) -> Ran:
        """All replicas at once. Raises CandidateFailed."""
        for process in self._processes:
            _tell(process, json.dumps({"seconds": seconds, "every": every}))
        answers = [_answer(process) for process in self._processes]
        passes = min(len(answer["rates"]) for answer in answers)
        rates = tuple(sum(each["rates"][n] for each in answers) for n in range(passes))
        return Ran(rates, tuple(took for answer in answers for took in answer["took"]))

    def end(self) -> None:
        for process in self._processes:
            with contextlib.suppress(OSError):
                assert process.stdin is not None
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()


def _model(candidate: Candidate, found: ChosenModel) -> dict[str, Any]:
    data = found.model.model_dump(mode="json")
    data |= {
        "runtime": candidate.runtime,
        "precision": candidate.precision,
        "options": dict(candidate.options),
    }
    data["replicas"] |= {"threads": candidate.threads, "count": candidate.replicas}
    return data


def _start(job: str) -> subprocess.Popen[str]:
    module = "deployments.tools.profile.compare.candidate_replica"
    # Our own interpreter and our own module. In a group of its own: Ctrl-C is this process's to
    # handle, which then ends the others.
    process = subprocess.Popen(
        [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    _tell(process, job)
    return process


def _tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # its answer says why
        process.stdin.write(line + "\n")
        process.stdin.flush()


def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise CandidateFailed(f"its process ended (exit code {process.wait()})")
    answer: dict[str, Any] = json.loads(line)
    if "failed" in answer:
        raise CandidateFailed(answer["failed"])
    return answer


class Contest:
    """`runs` by candidate, without the first round; `stopped`: before the last round. `watch` is
    told what runs and the share that is done."""

    def __init__(self, found: ChosenModel, seed: int, watch: Callable[[str, float], None]) -> None:
        self.runs: dict[str, list[Ran]] = {}
        self.skipped: list[Skipped] = []
        self.stopped = False
        self._found = found
        self._rng = Random(seed)
        self._watch = watch

    def hold(self, candidates: Sequence[Candidate], seconds: float) -> None:
        """All runs together take about `seconds`; loading comes on top, for each at most
        `LOAD_SHARE` of that or `MIN_LOAD_S`, whichever is more."""
        lengths = self._rng.choices(self._found.lengths.rows, k=ROWS)
        with ExitStack() as stack:
            try:
                within_s = max(MIN_LOAD_S, LOAD_SHARE * seconds)
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
            if passes and memory.available < _MIN_MEMORY * memory.total:
                self._skip(candidate, f"no memory left to load it beside the {place} others")
                continue
            process = CandidateProcess(candidate, self._found, lengths)
            stack.callback(process.end)
            try:
                passes[process] = process.loaded(within_s)
            except CandidateFailed as failed:
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
                except CandidateFailed as failed:
                    self._skip(process.candidate, str(failed))
                    self.runs.pop(str(process.candidate), None)
            order = [each for each in order if str(each.candidate) in found]
            if round_:
                for name, ran in found.items():
                    self.runs.setdefault(name, []).append(ran)

    def _skip(self, candidate: Candidate, why: str) -> None:
        self.skipped.append(Skipped(str(candidate), why))
