"""What does the autoscaler want of each deployment, as Serve's controller was last told?

A thread in the controller's process sends what runs and gets targets, four times a second. The
controller's own loop reads the last answer and never waits for one. An answer older than `STALE_S`
is not used. The thread ends with the process, and tries again after any fault.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from deployments.contract.scaling.messages import OBSERVED, Observed

STALE_S = 5.0
EVERY_S = 0.25
_ANSWER_S = 2.0
_MAX_TARGET = 1_000_000  # replicas; a larger target is not believed
ExchangeTargets = Callable[[Mapping[str, Observed]], Mapping[str, int]]


class TargetReader:
    """Keeps the last targets. `exchange` may block and raise; `clock` is monotonic."""

    def __init__(
        self, exchange: ExchangeTargets, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._exchange = exchange
        self._clock = clock
        self._observed: dict[str, tuple[float, Observed]] = {}
        self._told: tuple[float, Mapping[str, int]] = (float("-inf"), {})
        self._started = False

    def copied(self, contexts: Mapping[Any, Any]) -> dict[Any, int]:
        """The targets that must change among one application's deployments. `contexts`: Serve's, by
        deployment id. Call it on the controller's loop only."""
        if not self._started:
            self._started = True
            threading.Thread(target=self._run, name="headrace-targets", daemon=True).start()
        now = self._clock()
        at, targets = self._told
        changed: dict[Any, int] = {}
        for deployment, context in contexts.items():
            key = f"{context.app_name}/{context.deployment_name}"
            is_now = Observed(context.current_num_replicas, context.target_num_replicas)
            self._observed[key] = (now, is_now)
            target = targets.get(key) if now - at < STALE_S else None
            # NaN, infinity or no number at all would end the controller's tick.
            if type(target) is int and 0 <= target < _MAX_TARGET and target != is_now.target:
                changed[deployment] = target
        return changed

    def exchange(self) -> None:
        """Exchange once. Raises what `exchange` raises."""
        since = self._clock() - STALE_S
        known = tuple(self._observed.items())  # in one step: the other thread adds to it
        observed = {key: seen for key, (at, seen) in known if at > since}
        for key, _ in known:
            if key not in observed:
                self._observed.pop(key, None)
        asked = self._clock()
        self._told = (asked, self._exchange(observed))

    def _run(self) -> None:
        while True:
            try:
                self.exchange()
            except Exception:
                time.sleep(EVERY_S)
            time.sleep(EVERY_S)


class _Autoscaler:
    """The autoscaler's actor, looked up again after every failure."""

    def __init__(self) -> None:
        self._actor: Any = None

    def __call__(self, observed: Mapping[str, Observed]) -> Mapping[str, int]:
        import ray

        from deployments.process import actors

        try:
            if self._actor is None:
                self._actor = actors.running_autoscaler()
            answer: Mapping[str, int] = ray.get(
                self._actor.exchange.remote(OBSERVED.encode(observed)), timeout=_ANSWER_S
            )
        except Exception:
            self._actor = None
            raise
        return answer


@cache
def reader() -> TargetReader:
    """This process's only `TargetReader`."""
    return TargetReader(_Autoscaler())
