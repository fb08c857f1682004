"""How many requests of a flow may be in the core, so that they do not wait too long?

The signal is the share of its slack (arrival to latest start) that a request spent waiting. Service
is no part of it, so long inputs and full batches do not look like congestion. Being a share, it
holds for every SLO. Once a window the limit is multiplied by target share over mean share (0.5 to
1), plus its square root as room to grow, as in Gradient2 and Envoy's gradient limit. The reference
is the fixed target and not a long average, which would follow a lasting overload upwards and take
the limit with it. Without queueing there is nothing to learn: the limit starts at its maximum, and
grows only while at least half of it is used.

Unit: requests of one flow at one gateway, waiting or running. One limit for each flow ever seen,
O(1) a call. Source: Netflix concurrency-limits, Envoy adaptive concurrency.
"""

from __future__ import annotations

from math import sqrt
from typing import Final

from routers.api.requests import FlowKey, FlowWork
from routers.api.settings import AdmissionParameters, DispatcherSettings, LimitParameters, Mode
from routers.policies.admission.types import (
    ADMIT,
    LIMIT_NOTE,
    REFUSE,
    Answer,
    FlowView,
    Newcomer,
    OnArrival,
    RequestView,
)

TARGET_SHARE: Final = 0.5  # of its slack that a request should wait at most, on average
_MIN_GRADIENT: Final = 0.5
_LIMIT_SMOOTHING: Final = 0.5
_MIN_WINDOW_S: Final = 0.1
_MIN_SAMPLES: Final = 10  # of a window


class _Window:
    """A flow's limit, and what the running window has seen of its requests."""

    owner: LearntLimit
    limit: float
    since: float  # when the window began
    shares: float  # summed over `samples`
    samples: int
    peak: int  # the most that waited or ran at once

    def __init__(self, owner: LearntLimit, limit: float, since: float) -> None:
        self.owner, self.limit, self.since, self.shares = owner, limit, since, 0.0
        self.samples = self.peak = 0


class LearntLimit(OnArrival):
    """Keeps one limit a flow."""

    def __init__(self) -> None:
        super().__init__()
        self._flows: dict[FlowKey, _Window] = {}
        self._settings = LimitParameters()
        self._frozen = self._is_fixed = False
        self._most = float(self._settings.most)

    def mode(self, admission: AdmissionParameters) -> Mode:
        return admission.limit.mode

    def tune(self, settings: DispatcherSettings) -> None:
        self._settings, self._frozen = settings.admission.limit, settings.frozen
        self._is_fixed, self._most = self._settings.fixed is not None, float(self._settings.most)

    def judge(self, newcomer: Newcomer, now: float) -> Answer:
        """Refuse while as many requests of its flow as the limit wait or run at this gateway."""
        flow = newcomer.flow
        if self._is_fixed:
            limit = self._start
        else:
            window = self._known(flow)
            limit = self._most if window is None else window.limit
        return REFUSE if float(flow.live) >= limit else ADMIT

    def came(self, newcomer: Newcomer, now: float) -> None:
        flow = newcomer.flow
        window = self._known(flow) or self._open(flow.key, now)
        if flow.live > window.peak:
            window.peak = flow.live

    def waited(
        self, flow: FlowView, request: RequestView, wait_s: float, now: float, *, taken: bool
    ) -> None:
        """A request that turned late in the queue has waited all its slack."""
        if self._frozen or self._is_fixed:
            return
        slack_s = request.latest_start - request.queued_at
        window = self._known(flow) or self._open(flow.key, now)
        window.shares += wait_s / slack_s if wait_s < slack_s else 1.0
        window.samples += 1
        enough = window.samples >= _MIN_SAMPLES
        if enough and now >= window.since + max(_MIN_WINDOW_S, slack_s):
            self._learn(window, now)

    def value(self, capacity: float, now: float) -> float:
        """The lowest limit of all flows."""
        return min([limit for _, _, limit in self.by_flow(now)], default=self._start)

    def by_flow(self, now: float) -> tuple[FlowWork, ...]:
        fixed = self._settings.fixed
        return tuple(
            (*flow, window.limit if fixed is None else fixed)
            for flow, window in self._flows.items()
        )

    @property
    def _start(self) -> float:
        """The limit of a flow until it was seen."""
        fixed = self._settings.fixed
        return self._settings.most if fixed is None else fixed

    def _learn(self, window: _Window, now: float) -> None:
        """End the window: find the new limit from the mean share that requests waited."""
        share = window.shares / window.samples
        gradient = max(_MIN_GRADIENT, TARGET_SHARE / share) if share > TARGET_SHARE else 1.0
        base, used = window.limit, window.peak
        window.since, window.shares, window.samples, window.peak = now, 0.0, 0, 0
        if gradient == 1.0 and used < base / 2.0:
            return
        if gradient < 1.0:
            base = min(base, 2.0 * used)
        aim = gradient * base + sqrt(base)
        limit = base + _LIMIT_SMOOTHING * (aim - base)
        window.limit = max(float(self._settings.least), min(float(self._settings.most), limit))

    def _known(self, flow: FlowView) -> _Window | None:
        """The flow's window; None: it has none."""
        window: _Window | None = flow.notes[LIMIT_NOTE]
        if window is None or window.owner is not self:
            flow.notes[LIMIT_NOTE] = window = self._flows.get(flow.key)
        return window

    def _open(self, flow: FlowKey, now: float) -> _Window:
        window = self._flows[flow] = _Window(self, self._most, now)
        return window
