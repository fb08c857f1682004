"""A cluster whose registry and Serve behave as the real ones do, on virtual time, for rollouts."""

from __future__ import annotations

from typing import Any

from deployments.control.registry.registry import Registry

ROLLOUT = {"steps_percent": [50], "hold_s": 1, "min_requests": 1}


def model(base_ms: float, **fields: Any) -> dict[str, Any]:
    return {
        "runtime": "synthetic", "options": {"base_ms": base_ms}, "rollout": ROLLOUT, **fields,
    }  # fmt: skip


class RegistryCalls:
    """What rollouts ask of the registry. `_answer` raises ClusterError while nothing answers."""

    registry: Registry
    now: float

    def _answer(self) -> None:
        raise NotImplementedError

    def begin_rollout(self, model: str, terms: Any) -> int:
        self._answer()
        return self.registry.begin_rollout(model, terms, self.now, self.now)

    def promote(self, model: str) -> bool:
        self._answer()
        return self.registry.promote(model, self.now)

    def finish_rollout(self, model: str) -> bool:
        self._answer()
        return self.registry.finish_rollout(model)

    def abort_rollout(self, model: str, why: str) -> bool:
        self._answer()
        return self.registry.abort_rollout(model, why)
