"""What a starting replica tells the registry: which phase it is in, how far, and why it failed."""

from __future__ import annotations

import logging
from typing import Any

from deployments.contract.registry import Progress
from deployments.contract.registry_actor import registry
from runtimes.errors import RuntimeFault

logger = logging.getLogger("headrace.replica")


class StartupProgress:
    """`model`: its name; `replica`: this replica's id."""

    def __init__(self, model: str, replica: str) -> None:
        self._model = model
        self._replica = replica
        self._registry = registry()
        self._phases: dict[str, None] = {}

    def tell(self, phase: str, fraction: float, detail: str = "") -> Any:
        """Sent at once; await what it returns only where it must have arrived."""
        passed = tuple(self._phases)
        self._phases[phase] = None
        note = Progress(self._model, self._replica, phase, fraction, detail, passed)
        return self._registry.note.remote(note)

    async def failed(self, fault: Exception) -> None:
        """What a backend says of a model is said by the caller; anything else shows where it
        arose. Returns when the registry has it: the process may end after that."""
        if not isinstance(fault, RuntimeFault):
            logger.exception("the model cannot start", extra={"model": self._model})
        await self.tell("failed", 0.0, _reason(fault))


def _reason(fault: Exception) -> str:
    """A backend's own sentence as it is; of anything else also what it is."""
    return str(fault) if isinstance(fault, RuntimeFault) else f"{type(fault).__name__}: {fault}"
