"""How many requests of a flow may be in the core, so that they wait no longer than is good?

The signal is the share of its time (arrival to latest start) that a request spent waiting. Service
is no part of it, so long inputs and full batches don't look like congestion; being a share, it
holds for every SLO. Once a window the limit is multiplied by target over mean share (0.5 to 1) and
given its square root to grow by, as in Gradient2 and Envoy's gradient controller. The reference is
the fixed target and no long average, which would follow a lasting overload upwards and the limit
with it. Without queueing there is nothing to learn: the limit stands at its most, and grows only
while at least half of it is used. Source: Netflix concurrency-limits, Envoy adaptive concurrency.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from routers.admission.verdicts import Verdicts
from routers.settings import LimitSettings
from routers.types import FlowKey

TARGET = 0.5
_LEAST_GRADIENT = 0.5
_SMOOTHING = 0.5
_LEAST_WINDOW_S = 0.1
_LEAST_SAMPLES = 10


@dataclass(slots=True)
class _Window:
    """A flow's limit, and what the window that runs has seen of its requests."""

    limit: float
    since: float
    shares: float = 0.0
    samples: int = 0
    peak: int = 0


class LearntLimit:
    """One limit a flow ever seen, O(1) a call."""

    def __init__(self, settings: LimitSettings, *, frozen: bool = False) -> None:
        self.verdicts = Verdicts(settings.mode)
        self._flows: dict[FlowKey, _Window] = {}
        self.tune(settings, frozen=frozen)

    def tune(self, settings: LimitSettings, *, frozen: bool) -> None:
        """Other settings; what was learnt stays."""
        self.settings, self.frozen = settings, frozen
        self.verdicts.tune(settings.mode)

    def sheds(self, flow: FlowKey, inflight: int, now: float) -> bool:
        """Whether a newcomer is refused; `inflight` of its flow wait or run at this gateway."""
        if self.verdicts.off:
            return False
        window = self._flows.get(flow) or self._open(flow, now)
        if inflight > window.peak:
            window.peak = inflight
        fixed = self.settings.fixed
        limit = window.limit if fixed is None else fixed
        return inflight >= limit and self.verdicts.no()

    def waited(self, flow: FlowKey, wait_s: float, slack_s: float, now: float) -> None:
        """A request left the queue on time; one that turned late there has waited all its slack."""
        if self.frozen or self.settings.fixed is not None or self.verdicts.off:
            return
        window = self._flows.get(flow) or self._open(flow, now)
        window.shares += wait_s / slack_s if wait_s < slack_s else 1.0
        window.samples += 1
        enough = window.samples >= _LEAST_SAMPLES
        if enough and now >= window.since + max(_LEAST_WINDOW_S, slack_s):
            self._learn(window, now)

    @property
    def start(self) -> float:
        """A flow's limit until it has queued."""
        fixed = self.settings.fixed
        return self.settings.most if fixed is None else fixed

    def limits(self) -> dict[FlowKey, float]:
        fixed = self.settings.fixed
        return {
            flow: window.limit if fixed is None else fixed for flow, window in self._flows.items()
        }

    def _learn(self, window: _Window, now: float) -> None:
        share = window.shares / window.samples
        gradient = max(_LEAST_GRADIENT, TARGET / share) if share > TARGET else 1.0
        base, used = window.limit, window.peak
        window.since, window.shares, window.samples, window.peak = now, 0.0, 0, 0
        if gradient == 1.0 and used < base / 2.0:
            return
        if gradient < 1.0:
            base = min(base, 2.0 * used)
        aim = gradient * base + sqrt(base)
        limit = base + _SMOOTHING * (aim - base)
        window.limit = max(float(self.settings.least), min(float(self.settings.most), limit))

    def _open(self, flow: FlowKey, now: float) -> _Window:
        window = self._flows[flow] = _Window(self.settings.most, now)
        return window
