"""Who has had how much? One account a flow (tenant x priority).

A flow's `start` is the tag of its next row, lowest first; what a charge does to it, and where a
flow that was idle begins, the order says (`routers.api.policies.Order`). Predictions are put right
when the batch has been measured. What other gateways did for a flow is charged as if done here.
Sources: accounts as in start-time fair queueing (Goyal et al., SIGCOMM'96); lift on re-entry as in
VTC (OSDI'24).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from routers.api.policies import Account, Order
from routers.api.requests import FlowKey, FlowWork, Report
from routers.state.offered import MeanWork

_IDLE_FLOWS = 128  # accounts of idle flows that are kept, those furthest above their share
_PEER_DEMAND_S = 0.25  # for which what a replica last reported of a flow's work elsewhere holds
_OTHERS_S = 10.0  # without a sign of another gateway after which nobody is told what waits here
_STALE_S = 1.0  # a virtual time that no reply has confirmed for so long may lag behind the others'


@dataclass(slots=True, eq=False)
class Flow:
    """`rows` and `waiting_s` wait on time, `late_rows` late; `live`: requests that wait or run.
    `credit_s`: what it may take before its tag grows. `served_s`: measured device seconds it was
    ever given here; `peer_demand_s`: what waits for it at other gateways. `claims`: counted among
    those who have on-time work waiting, anywhere. `blind`: it came while nothing was known of other
    gateways' virtual time. `asks`: what its requests take."""

    tenant: str
    priority: int
    weight: float = 1.0
    start: float = 0.0
    credit_s: float = 0.0
    rows: int = 0
    late_rows: int = 0
    live: int = 0
    waiting_s: float = 0.0
    served_s: float = 0.0
    peer_demand_s: float = 0.0
    blind: bool = False
    claims: bool = False
    asks: MeanWork = field(default_factory=MeanWork)
    key: FlowKey = field(init=False)

    def __post_init__(self) -> None:
        self.key = self.priority, self.tenant

    @property
    def active(self) -> bool:
        return self.rows + self.late_rows > 0


class Flows:
    """All accounts, and their only writer. `lowered` hears of a flow whose tag has fallen (what is
    sorted by tag needs to know)."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.epoch = 0  # of the order: what was charged in another one is not put right
        self.by_key: dict[tuple[int, str], Flow] = {}
        self.virtual: list[float] = []  # by priority: where who comes begins
        self._moves: list[float] = []  # by priority: how far that moves with the next batch
        self.lowered: list[Flow] = []
        self.weights: list[float] = []  # by priority: of flows with on-time work, here or elsewhere
        self._most = 2 * _IDLE_FLOWS
        self._reported_at: dict[
            Flow, float
        ] = {}  # that work waits elsewhere, the longest ago first
        self._confirmed_at: float | None = None
        self._others_at = -inf
        self.alone = True  # no other gateway has been heard of lately

    def restart(self, order: Order) -> None:
        """Under another order, whose tags are of another kind: everybody begins anew."""
        self.order = order
        self.epoch += 1
        self._confirmed_at = -inf  # replicas go on telling tags of the order before
        self.virtual = [0.0] * len(self.virtual)
        self._moves = [0.0] * len(self._moves)
        self.lowered.clear()
        for flow in self.by_key.values():
            flow.start = flow.credit_s = 0.0
            flow.blind = True

    def of(self, tenant: str, priority: int, weight: float) -> Flow:
        """The flow's account, opened if there is none; its weight is the last one given."""
        flow = self.by_key.get((priority, tenant))
        if flow is None:
            while len(self.virtual) <= priority:
                self.virtual.append(0.0)
                self._moves.append(0.0)
                self.weights.append(0.0)
            flow = Flow(tenant, priority, weight, self.virtual[priority])
            if len(self.by_key) >= self._most:
                self._drop_idle()
            self.by_key[priority, tenant] = flow
        elif flow.weight != weight:
            if flow.claims:
                self.weights[priority] += weight - flow.weight
            flow.weight = weight
        return flow

    def enter(self, flow: Flow, now: float) -> None:
        """Work comes to the flow, of which nothing waits: no credit from the time it was idle. What
        comes back unstarted, or turns late, does not enter."""
        self._lift(flow)
        flow.blind = self._confirmed_at is not None and now - self._confirmed_at > _STALE_S
        self._forget_stale_demand(now)

    def count(self, flow: Flow) -> None:
        """Its on-time work has begun or ceased to wait, here or elsewhere."""
        claims = flow.rows > 0 or flow.peer_demand_s > 0.0
        if claims is not flow.claims:
            flow.claims = claims
            weights = self.weights[flow.priority] + (flow.weight if claims else -flow.weight)
            self.weights[flow.priority] = weights if weights > 1e-9 else 0.0

    def tag(self, flow: Flow) -> float:
        """What other gateways, and new requests, are compared with."""
        return self.order.tag((flow.start, flow.credit_s), flow.weight)

    def charge(self, flow: Flow, seconds: float) -> None:
        """It takes, or was found to have taken, so much more; less, if negative."""
        account = flow.start, flow.credit_s
        flow.start, flow.credit_s = self.order.charged(account, flow.weight, seconds)

    def set_account(self, flow: Flow, account: Account) -> None:
        """A plan that charged it is carried out."""
        flow.start, flow.credit_s = account

    def leads(self, flow: Flow, start: float, seconds: float, rivals: float) -> None:
        """The flow, which had the tag `start`, leads a batch of so many seconds, while flows of the
        weight `rivals` had work waiting."""
        priority = flow.priority
        virtual, moves = self.virtual[priority], self._moves[priority]
        share_s = seconds / flow.weight
        self.virtual[priority] = self.order.next_virtual(virtual, moves, start, share_s)
        self._moves[priority] = seconds / max(rivals, flow.weight)

    def settle(
        self, charges: Iterable[FlowWork], served: Iterable[FlowWork], *, epoch: int
    ) -> None:
        """A batch was served: these seconds instead of those charged, flow by flow; `epoch`: of
        when they were."""
        settles = self.order.settles and epoch == self.epoch
        by_key = self.by_key
        for (priority, tenant, charged_s), (_, _, served_s) in zip(charges, served, strict=True):
            flow = by_key.get((priority, tenant))
            if flow is not None:
                if settles:
                    self.charge(flow, served_s - charged_s)
                flow.served_s += served_s

    def refund(self, paid: Iterable[FlowWork], *, epoch: int) -> None:
        """A batch was never started: its rows come back to the places that they had."""
        if epoch != self.epoch:
            return
        for priority, tenant, seconds in paid:
            flow = self.by_key.get((priority, tenant))
            if flow is not None:
                account = flow.start, flow.credit_s
                self.set_account(flow, self.order.refunded(account, flow.weight, seconds))
                self.lowered.append(flow)

    def learn(self, report: Report, now: float) -> None:
        """What a reply says of the other gateways."""
        for priority, virtual in enumerate(report.virtual_time[: len(self.virtual)]):
            if virtual > self.virtual[priority]:
                self.virtual[priority] = virtual
        for priority, tenant, seconds in report.served:
            flow = self.by_key.get((priority, tenant))
            if flow is not None:
                self.charge(flow, seconds)
                self._moves[priority] += seconds / max(self.weights[priority], flow.weight)
        for priority, tenant, seconds in report.waiting:
            flow = self.by_key.get((priority, tenant))
            if flow is not None:
                self._reported_at.pop(flow, None)
                self._reported_at[flow] = now
                flow.peer_demand_s = seconds
                self.count(flow)
        self._forget_stale_demand(now)
        if report.served or report.waiting or report.inflight > report.held:
            self._others_at = now
        self.alone = now - self._others_at > _OTHERS_S
        if report.virtual_time:
            self._confirm(now)

    def _lift(self, flow: Flow) -> None:
        account, virtual = (flow.start, flow.credit_s), self.virtual[flow.priority]
        flow.start, flow.credit_s = self.order.entered(account, flow.weight, virtual)

    def _forget_stale_demand(self, now: float) -> None:
        """What nobody says any more: no report says that nothing waits elsewhere, and of several
        replicas some have heard later than others."""
        reported_at = self._reported_at
        while reported_at:
            flow, at = next(iter(reported_at.items()))
            if now - at <= _PEER_DEMAND_S:
                return
            del reported_at[flow]
            flow.peer_demand_s = 0.0
            self.count(flow)

    def _confirm(self, now: float) -> None:
        stale = self._confirmed_at is not None and now - self._confirmed_at > _STALE_S
        self._confirmed_at = now
        if stale:
            for flow in self.by_key.values():
                if flow.blind:
                    self._lift(flow)
                    flow.blind = False

    def _drop_idle(self) -> None:
        """Forget flows with nothing in the core, but not the largest debts."""
        idle = [f for f in self.by_key.values() if not (f.active or f.live or f.claims)]
        idle.sort(key=lambda flow: self.tag(flow) - self.virtual[flow.priority])
        for flow in idle[: max(0, len(idle) - _IDLE_FLOWS)]:
            del self.by_key[flow.key]
        self._most = 2 * (len(self.by_key) + _IDLE_FLOWS)
