"""Who has had how much? One account a flow (tenant x priority), in virtual seconds.

Start-time fair queueing on predicted device seconds: a flow's `start` is the tag of its next row,
raised by cost / weight for each row taken, so the flow with the lowest tag is the one furthest
below its share. One that was idle starts at the priority's virtual time: no credit for having
slept. Predictions are put right when the batch has been measured; work that other gateways did for
a flow is charged as if it had been done here. Shares between priorities are not its business.

Source: Goyal et al., Start-time Fair Queueing (SIGCOMM'96); lift on re-entry as in VTC (OSDI'24).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from routers.types import FlowKey, FlowWork, Report

_IDLE_FLOWS = 256  # accounts of flows with nothing waiting that are kept beyond the active ones
_STALE_S = 1.0  # a virtual time that no reply has confirmed for so long may lag behind the others'


@dataclass(slots=True, eq=False)
class Flow:
    """`rows` and `waiting_s` wait on time, `late_rows` late; `live`: requests that wait or run.
    `served_s`: measured device seconds it was ever given here; `elsewhere_s`: what waits for it at
    other gateways. `claims`: counted among those who have on-time work waiting, anywhere. `blind`:
    it came while nothing was known of other gateways' virtual time."""

    tenant: str
    priority: int
    weight: float = 1.0
    start: float = 0.0
    rows: int = 0
    late_rows: int = 0
    live: int = 0
    waiting_s: float = 0.0
    served_s: float = 0.0
    elsewhere_s: float = 0.0
    blind: bool = False
    claims: bool = False

    @property
    def key(self) -> FlowKey:
        return self.priority, self.tenant

    @property
    def active(self) -> bool:
        return self.rows + self.late_rows > 0


class Flows:
    """All accounts. `lowered` hears of a flow whose tag has fallen (orders by tag need to know)."""

    def __init__(self) -> None:
        self.by_key: dict[tuple[int, str], Flow] = {}
        self.virtual: list[float] = []  # by priority: highest tag that has led
        self.lowered: list[Flow] = []
        self.weights: list[float] = []  # by priority: of flows with on-time work, here or elsewhere
        self._active = 0
        self._confirmed_at: float | None = None

    def of(self, tenant: str, priority: int, weight: float) -> Flow:
        """The flow's account, opened if there is none; its weight is the last one given."""
        flow = self.by_key.get((priority, tenant))
        if flow is None:
            while len(self.virtual) <= priority:
                self.virtual.append(0.0)
                self.weights.append(0.0)
            flow = Flow(tenant, priority, weight, self.virtual[priority])
            if len(self.by_key) > 2 * self._active + _IDLE_FLOWS:
                self._drop_idle()
            self.by_key[priority, tenant] = flow
        elif flow.weight != weight:
            if flow.claims:
                self.weights[priority] += weight - flow.weight
            flow.weight = weight
        return flow

    def enter(self, flow: Flow, now: float) -> None:
        """The flow is about to have its first row waiting: no credit from the time it was idle."""
        flow.start = max(flow.start, self.virtual[flow.priority])
        flow.blind = self._confirmed_at is not None and now - self._confirmed_at > _STALE_S
        self._active += 1

    def leave(self, flow: Flow) -> None:
        """Nothing of it waits any more."""
        flow.waiting_s = 0.0
        self._active -= 1

    def count(self, flow: Flow) -> None:
        """Its on-time work has begun or ceased to wait, here or elsewhere."""
        claims = flow.rows > 0 or flow.elsewhere_s > 0.0
        if claims is not flow.claims:
            flow.claims = claims
            weights = self.weights[flow.priority] + (flow.weight if claims else -flow.weight)
            self.weights[flow.priority] = weights if weights > 1e-9 else 0.0

    def leads(self, priority: int, start: float) -> None:
        """A flow with this tag leads the next batch: it is the virtual time."""
        if start > self.virtual[priority]:
            self.virtual[priority] = start

    def charge(self, flow: Flow, seconds: float) -> None:
        flow.start += seconds / flow.weight
        if seconds < 0.0:
            self.lowered.append(flow)

    def settle(
        self, charges: Iterable[FlowWork], predicted_s: float, service_s: float | None
    ) -> None:
        """A batch took `service_s` instead of `predicted_s`; None: nothing was started."""
        ratio = service_s / predicted_s if service_s is not None and predicted_s > 0.0 else 0.0
        for priority, tenant, seconds in charges:
            flow = self.by_key.get((priority, tenant))
            if flow is not None:
                self.charge(flow, seconds * (ratio - 1.0))
                flow.served_s += seconds * ratio

    def learn(self, report: Report, now: float) -> None:
        """What a reply says of the other gateways."""
        for priority, virtual in enumerate(report.virtual_time[: len(self.virtual)]):
            if virtual > self.virtual[priority]:
                self.virtual[priority] = virtual
        for priority, tenant, seconds in report.served:
            flow = self.by_key.get((priority, tenant))
            if flow is not None:
                self.charge(flow, seconds)
        for priority, tenant, seconds in report.waiting:
            flow = self.by_key.get((priority, tenant))
            if flow is not None:
                flow.elsewhere_s = seconds
                self.count(flow)
        if report.virtual_time:
            self._confirm(now)

    def active(self) -> Iterator[Flow]:
        return (flow for flow in self.by_key.values() if flow.active)

    def _confirm(self, now: float) -> None:
        stale = self._confirmed_at is not None and now - self._confirmed_at > _STALE_S
        self._confirmed_at = now
        if stale:
            for flow in self.by_key.values():
                if flow.blind:
                    flow.start = max(flow.start, self.virtual[flow.priority])
                    flow.blind = False

    def _drop_idle(self) -> None:
        """Forget flows with nothing waiting and no debt: they would start anew all the same."""
        self.by_key = {
            key: flow
            for key, flow in self.by_key.items()
            if flow.active or flow.live or flow.claims or flow.start > self.virtual[key[0]]
        }
