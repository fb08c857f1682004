"""A candidate's processes: started, told to run at the same moment, ended.

Each replica is a process, so that threads, allocators and libraries of candidates do not mix. They
stay loaded between runs and wait for a line on their input, which takes no processor.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deployments.tools.profile.compare.candidates import Candidate
from deployments.tools.profile.subject import Chosen

_END_S = 10.0


class TrialFailed(RuntimeError):
    """A process could not load or run its model; the message is its backend's."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One run: real tokens a second by pass (of all replicas together), seconds by batch."""

    rates: tuple[float, ...]
    took: tuple[float, ...]


class CandidateProcess:
    def __init__(self, candidate: Candidate, found: Chosen, lengths: Sequence[int]) -> None:
        self.candidate = candidate
        told = json.dumps({
            "name": found.name,
            "model": _model(candidate, found),
            "cache_dir": str(found.cache_dir),
            "lengths": list(lengths),
        })  # fmt: skip
        self._processes = [_start(told) for _ in range(candidate.replicas)]

    def loaded(self, within_s: float) -> float:
        """Waits; seconds of one pass over all batches. Raises TrialFailed, at the latest after
        `within_s`."""
        late = threading.Timer(within_s, self._kill)
        late.start()
        try:
            return max(float(_answer(process)["pass_s"]) for process in self._processes)
        except TrialFailed:
            if late.finished.is_set():
                raise TrialFailed(f"not loaded after {within_s:g} s") from None
            raise
        finally:
            late.cancel()

    def run(self, seconds: float, every: int) -> Ran:
        """All replicas at once. Raises TrialFailed."""
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


def _model(candidate: Candidate, found: Chosen) -> dict[str, Any]:
    data = found.model.model_dump(mode="json")
    data |= {
        "runtime": candidate.runtime,
        "precision": candidate.precision,
        "options": dict(candidate.options),
    }
    data["replicas"] |= {"threads": candidate.threads, "count": candidate.replicas}
    return data


def _start(told: str) -> subprocess.Popen[str]:
    module = "deployments.tools.profile.compare.trial"
    # Our own interpreter and our own module. In a group of its own: Ctrl-C is this process's to
    # handle, which then ends the others.
    process = subprocess.Popen(
        [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    _tell(process, told)
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
        raise TrialFailed(f"its process ended (exit code {process.wait()})")
    answer: dict[str, Any] = json.loads(line)
    if "failed" in answer:
        raise TrialFailed(answer["failed"])
    return answer
