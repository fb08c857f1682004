"""A replica's settings on its node, and how far its start has come.

The registry is told at once, phase by phase. A phase that is told again after another one adds to
its own time. Times are seconds of this process's monotonic clock. The time before the first phase
is the process's age, provided that Ray made the process for this replica.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable
from typing import Any

import psutil

from deployments.contract.registry import ReplicaProgress
from deployments.settings.model import ModelSettings
from deployments.settings_files.load import make_paths_absolute
from deployments.settings_files.sources import sources_folder
from runtimes.errors import RuntimeFault

PROCESS = "process"  # the phase before all others
_MADE_FOR_IT_S = 60.0  # an older process was idle before, and made for something else
logger = logging.getLogger("headrace.replica")


class StartupProgress:
    """Reports one start. `model`: its name; `replica`: this replica's id; `report` sends a
    `ReplicaProgress`; `before_s`: seconds of the start before this object was made, 0 if none
    belong to it; `digest`: of the settings that the replica was started with."""

    def __init__(
        self,
        model: str,
        replica: str,
        report: Callable[[ReplicaProgress], Any],
        before_s: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
        digest: str = "",
    ) -> None:
        self._model = model
        self._replica = replica
        self._report = report
        self._clock = clock
        self._digest = digest
        self._spent: dict[str, float] = {PROCESS: before_s} if before_s else {}
        self._phase, self._since = "", clock()

    def report(self, phase: str, fraction: float, detail: str = "") -> Any:
        """Report the phase at once. Await the result only where the report must have arrived."""
        if phase != self._phase:
            self._turn_to(phase)
        passed = tuple(name for name in self._spent if name != PROCESS)
        progress = ReplicaProgress(
            self._model, self._replica, phase, fraction, detail, passed, self.spent(), self._digest
        )
        return self._report(progress)

    def spent(self) -> tuple[tuple[str, float], ...]:
        """Seconds of each phase that has ended, in order."""
        return tuple(self._spent.items())

    async def failed(self, fault: Exception) -> None:
        """Report and log the failure; returns when the registry has it, because the process may end
        after that. Faults that are no backend's own are logged with their traceback."""
        foreign = None if isinstance(fault, RuntimeFault) else fault
        reason = reason_of(fault)
        logger.error("cannot start: %s", reason, extra={"model": self._model}, exc_info=foreign)
        await self.report("failed", 0.0, reason)

    def _turn_to(self, phase: str) -> None:
        now = self._clock()
        if self._phase:
            self._spent[self._phase] = self._spent.get(self._phase, 0.0) + now - self._since
        self._phase, self._since = phase, now


def reason_of(fault: Exception) -> str:
    """A backend's own message unchanged; any other exception's with its type."""
    return str(fault) if isinstance(fault, RuntimeFault) else f"{type(fault).__name__}: {fault}"


def took(spent: tuple[tuple[str, float], ...]) -> str:
    """The phases as a sentence, for people."""
    return ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in spent)


def process_age_s() -> float:
    """Seconds since this process was made; 0 if it is so old that Ray had it idle before."""
    age_s = time.time() - psutil.Process().create_time()
    return age_s if 0.0 < age_s < _MADE_FOR_IT_S else 0.0


def settings_here(written: dict[str, Any], replicas: int) -> ModelSettings:
    """The settings as the user wrote them, with paths as on this node. `replicas`: the number that
    share the model's resources."""
    models = {"model": copy.deepcopy(written)}
    folder = sources_folder()
    if folder is not None:
        make_paths_absolute(models, folder)
    settings = ModelSettings.model_validate(models["model"])
    fixed = {"count": max(1, replicas), "min": None, "max": None}
    counted = settings.replicas.model_copy(update=fixed)
    return settings.model_copy(update={"replicas": counted})
