"""One replica of one candidate, in a process of its own.

Run as a module it reads JSON lines: first what to load, then one line a run, and answers each with
a line. Whatever the libraries print goes to standard error. A run is whole passes over the same
batches: the given lengths sorted, as a backend would like them best.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import IO, Any

from deployments.replica.describe import runtime_settings
from deployments.settings.model import ModelSettings
from deployments.tools.profile.backend_loop import plain_batch, sorted_groups
from deployments.tools.profile.lengths import as_taken
from deployments.tools.profile.subject import created
from runtimes.types import Batch, Runtime, RuntimeSettings


class CandidateReplica:
    """A loaded model and its batches; `load` runs each of them once, for nothing."""

    def __init__(self, runtime: Runtime, settings: RuntimeSettings, lengths: Sequence[int]) -> None:
        self._runtime = runtime
        self._settings = settings
        self._lengths = lengths
        self._batches: list[Batch] = []

    def load(self) -> float:
        """Seconds of a pass."""
        self._runtime.load()
        limits = self._runtime.limits()
        most = min(self._settings.max_size, limits.max_rows or self._settings.max_size)
        groups = sorted_groups(as_taken(self._lengths, limits), most, self._settings.max_tokens)
        self._batches = [plain_batch(limits, group) for group in groups]
        for batch in self._batches:
            self._runtime.run(batch)
        return sum(self._pass(1)[0])

    def run(self, seconds: float, every: int) -> dict[str, Any]:
        """Passes over each `every`th batch until the time is over; at least one."""
        begin = perf_counter()
        took: list[float] = []
        rates: list[float] = []
        while not rates or perf_counter() - begin < seconds:
            spent, tokens = self._pass(every)
            took += spent
            rates.append(tokens / sum(spent))
        return {"took": took, "rates": rates}

    def _pass(self, every: int) -> tuple[list[float], int]:
        took, tokens = [], 0
        for batch in self._batches[::every]:
            begin = perf_counter()
            self._runtime.run(batch)
            took.append(perf_counter() - begin)
            tokens += int(batch.lengths.sum())
        return took, tokens


def main() -> int:
    with os.fdopen(os.dup(1), "w", buffering=1) as out:
        os.dup2(2, 1)
        try:
            _serve(sys.stdin, out)
        except KeyboardInterrupt:
            return 130
        except Exception as error:
            _say(out, failed=f"{error}" or type(error).__name__)
            return 1
    return 0


def _serve(lines: IO[str], out: IO[str]) -> None:
    job = json.loads(lines.readline())
    model = ModelSettings.model_validate(job["model"])
    settings = runtime_settings(
        job["name"], model, Path(job["cache_dir"]), lambda phase, fraction: None
    )
    runtime = created(settings)
    try:
        replica = CandidateReplica(runtime, settings, job["lengths"])
        _say(out, pass_s=replica.load())
        for line in lines:
            _say(out, **replica.run(**json.loads(line)))
    finally:
        runtime.close()


def _say(out: IO[str], **fields: Any) -> None:
    out.write(json.dumps(fields) + "\n")


if __name__ == "__main__":
    sys.exit(main())
