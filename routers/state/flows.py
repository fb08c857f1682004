"""Who has had how much? One account a flow (tenant × priority).

A flow's `start` is the start tag of its next row; the flow with the lowest tag is served first. The
order policy (`routers.api.policies.Order`) says what a charge does to an account and where the
account of a flow that was idle begins. A charge is a prediction, corrected when the batch has been
measured. Device seconds that other gateways gave to a flow are charged as if they had been given
here. `Flows` is the only writer of accounts.

Sources: accounts as in start-time fair queueing (Goyal et al., SIGCOMM'96); lift on re-entry as in
VTC (OSDI'24).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any, Final

from routers.api.policies import Account, Order
from routers.api.requests import FlowWork, Report
from routers.policies.admission.types import FlowView
from routers.state.offered import MeanWork

_IDLE_FLOWS: Final = 128  # accounts of idle flows that are kept, those furthest above their share
# For so long a replica's report of work that waits elsewhere is believed
_PEER_DEMAND_S: Final = 0.25
# Without a sign of another gateway, after which none is told what waits here
_PEERS_GONE_S: Final = 10.0
# A virtual time that no report has confirmed for so long may lag behind other gateways'.
_VIRTUAL_STALE_S: Final = 1.0


class Flow(FlowView):
    """The account of one tenant at one priority, and sums over its waiting rows."""

    start: float  # start tag of its next row
    credit_s: float  # what it may take before its tag grows

    waiting_s: float  # predicted seconds of its on-time rows that wait
    served_s: float  # measured device seconds that it was ever given here
    peer_demand_s: float  # predicted seconds that wait for it at other gateways

    blind: bool  # it entered while the other gateways' virtual time was not known
    claims: bool  # counted among the flows with on-time work waiting, here or elsewhere
    dropped: bool  # its account was dropped while it was idle
    asks: MeanWork  # what its requests take on average
    share: Any  # what `tenant_shares` keeps of its tenant, so that it need not be looked for

    def __init__(
        self,
        tenant: str,
        priority: int,
        weight: float = 1.0,
        start: float = 0.0,
        credit_s: float = 0.0,
    ) -> None:
        self.tenant, self.priority, self.key = tenant, priority, (priority, tenant)
        self.weight, self.start, self.credit_s = weight, start, credit_s
        self.rows = self.late_rows = self.live = 0
        self.waiting_s = self.served_s = self.peer_demand_s = 0.0
        self.blind = self.claims = self.dropped = False
        self.asks = MeanWork()
        self.share, self.notes = None, [None, None]

    @property
    def active(self) -> bool:
        """Whether any of its rows waits."""
        return self.rows + self.late_rows > 0


class Charge:
    """What flows are charged for a lease, until it is settled.

    `rank`: see `api.actions.Dispatch`; `predicted_s`: of the lease; `charges`: each flow's part of
    the predicted work; `paid`: what accounts were charged (`charges`, if the order settles);
    `epoch`: of the order under which that was; `speed`: seconds of the reference group that a
    second of the lease's replica is worth; `flows`: those of `charges`, if whoever made it knew
    them, so that nobody need look for them.
    """

    def __init__(
        self,
        rank: tuple[int, int, float],
        predicted_s: float,
        charges: tuple[FlowWork, ...] = (),
        paid: tuple[FlowWork, ...] = (),
        epoch: int = 0,
        speed: float = 1.0,
    ) -> None:
        self.rank, self.predicted_s, self.speed = rank, predicted_s, speed
        self.charges, self.paid, self.epoch = charges, paid, epoch
        self.flows: list[Flow] = []

    def of(self, flows: list[Flow]) -> Charge:
        """The charge itself, once it is known whose it is."""
        self.flows = flows
        return self

    @property
    def work_s(self) -> float:
        """Predicted work, in seconds of the reference group."""
        return self.predicted_s * self.speed

    def split(self, service_s: float) -> tuple[FlowWork, ...]:
        """The measured seconds as work (seconds of the reference group) of each flow, in the
        proportions in which the predicted work was charged; in equal parts if nothing was
        predicted."""
        whole, even, split = self.predicted_s, self.speed / max(1, len(self.charges)), []
        for priority, tenant, seconds in self.charges:
            share = seconds / whole if whole > 0.0 else even
            split.append((priority, tenant, service_s * share))
        return tuple(split)


class Flows:
    """All accounts, and their only writer."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.epoch = 0  # of the order: what was charged in another one is not corrected
        self.by_key: dict[tuple[int, str], Flow] = {}
        # The flow that each tenant used last: nearly always the one that is asked for next. To find
        # it by a string takes an eighth of what it takes by a tuple.
        self._last_used: dict[str, Flow] = {}
        self.virtual: list[float] = []  # by priority: the tag where a flow that enters begins
        # By priority: how far `virtual` moves with the next batch.
        self._next_steps: list[float] = []
        self.lowered: list[Flow] = []  # tags that have fallen, for whoever sorts by tag
        self.weights: list[float] = []  # by priority: of flows with on-time work, here or elsewhere
        self._max_accounts = 2 * _IDLE_FLOWS  # accounts; from here on idle ones are dropped
        # When a replica last reported work of the flow at other gateways, the longest ago first.
        self._peer_demand_at: dict[Flow, float] = {}
        self._confirmed_at = inf  # when a report last told virtual times; inf: none has
        self._peers_seen_at = -inf  # when another gateway was last noticed
        self.alone = True  # no other gateway was noticed lately

    def restart(self, order: Order) -> None:
        """Go on under another order, whose tags are of another kind: all accounts begin anew."""
        self.order = order
        self.epoch += 1
        self._confirmed_at = -inf  # replicas still report tags of the order before
        self.virtual = [0.0] * len(self.virtual)
        self._next_steps = [0.0] * len(self._next_steps)
        self.lowered.clear()
        for flow in self.by_key.values():
            flow.start = flow.credit_s = 0.0
            flow.blind = True

    def of(self, tenant: str, priority: int, weight: float) -> Flow:
        """The flow's account, opened if there is none. Its weight becomes the one given."""
        flow = self._last_used.get(tenant)
        if flow is None or flow.priority != priority:
            flow = self._find(tenant, priority, weight)
        if flow.weight != weight:
            if flow.claims:
                self.weights[priority] += weight - flow.weight
            flow.weight = weight
        return flow

    def _find(self, tenant: str, priority: int, weight: float) -> Flow:
        flow = self.by_key.get((priority, tenant))
        if flow is None:
            while len(self.virtual) <= priority:
                self.virtual.append(0.0)
                self._next_steps.append(0.0)
                self.weights.append(0.0)
            flow = Flow(tenant, priority, weight, self.virtual[priority])
            if len(self.by_key) >= self._max_accounts:
                self._drop_idle()
            self.by_key[priority, tenant] = flow
        self._last_used[tenant] = flow
        return flow

    def enter(self, flow: Flow, now: float) -> None:
        """Work comes to a flow of which nothing waits: it gets no credit for the time it was idle.
        Work that comes back unstarted, or turns late, does not enter."""
        self._lift(flow)
        flow.blind = now - self._confirmed_at > _VIRTUAL_STALE_S
        if self._peer_demand_at:
            self._forget_stale_demand(now)

    def count(self, flow: Flow) -> None:
        """To be called when its on-time work has begun or ceased to wait, here or elsewhere."""
        claims = flow.rows > 0 or flow.peer_demand_s > 0.0
        if claims is not flow.claims:
            flow.claims = claims
            weights = self.weights[flow.priority] + (flow.weight if claims else -flow.weight)
            self.weights[flow.priority] = weights if weights > 1e-9 else 0.0

    def tag(self, flow: Flow) -> float:
        """The tag by which the flow is compared with other gateways' flows and with new
        requests."""
        return self.order.tag((flow.start, flow.credit_s), flow.weight)

    def charge(self, flow: Flow, seconds: float) -> None:
        """It took `seconds` more than it was charged so far; less, if negative."""
        account = flow.start, flow.credit_s
        flow.start, flow.credit_s = self.order.charged(account, flow.weight, seconds)

    def set_account(self, flow: Flow, account: Account) -> None:
        """Set the account as a plan that has charged it left it."""
        flow.start, flow.credit_s = account

    def leads(self, flow: Flow, start: float, seconds: float, competing_weight: float) -> None:
        """The flow, whose tag was `start`, leads a batch of `seconds` while flows with the summed
        weight `competing_weight` had work waiting. Moves the priority's virtual time."""
        priority = flow.priority
        virtual, moves = self.virtual[priority], self._next_steps[priority]
        share_s = seconds / flow.weight
        self.virtual[priority] = self.order.next_virtual(virtual, moves, start, share_s)
        self._next_steps[priority] = seconds / max(competing_weight, flow.weight)

    def settle(self, charge: Charge, served: tuple[FlowWork, ...]) -> None:
        """A batch was served: replace the seconds charged by those served, flow by flow."""
        settles, known = self.order.settles and charge.epoch == self.epoch, charge.flows
        for at, (priority, tenant, charged_s) in enumerate(charge.charges):
            served_s = served[at][2]
            flow: Flow | None = known[at] if known else None
            if flow is None or flow.dropped:
                flow = self.by_key.get((priority, tenant))
            if flow is not None:
                if settles:
                    self.charge(flow, served_s - charged_s)
                flow.served_s += served_s

    def refund(self, paid: Iterable[FlowWork], *, epoch: int) -> None:
        """A batch was never started, so its rows return to the places that they had: take back what
        their flows paid."""
        if epoch != self.epoch:
            return
        for priority, tenant, seconds in paid:
            flow = self.by_key.get((priority, tenant))
            if flow is not None:
                account = flow.start, flow.credit_s
                self.set_account(flow, self.order.refunded(account, flow.weight, seconds))
                self.lowered.append(flow)

    def learn(self, report: Report, now: float) -> None:
        """Take in what a report says of other gateways: their virtual times, what they were served,
        what waits there."""
        for priority, virtual in enumerate(report.virtual_time):
            if priority < len(self.virtual) and virtual > self.virtual[priority]:
                self.virtual[priority] = virtual
        for priority, tenant, seconds in report.served:
            flow = self.by_key.get((priority, tenant))
            if flow is not None:
                self.charge(flow, seconds)
                self._next_steps[priority] += seconds / max(self.weights[priority], flow.weight)
        for priority, tenant, seconds in report.waiting:
            flow = self.by_key.get((priority, tenant))
            if flow is not None:
                self._peer_demand_at.pop(flow, None)
                self._peer_demand_at[flow] = now
                flow.peer_demand_s = seconds
                self.count(flow)
        if self._peer_demand_at:
            self._forget_stale_demand(now)
        if report.served or report.waiting or report.inflight > report.held:
            self._peers_seen_at = now
        self.alone = now - self._peers_seen_at > _PEERS_GONE_S
        if report.virtual_time:
            self._confirm(now)

    def _lift(self, flow: Flow) -> None:
        """Begin the account where its order says that an idle flow begins."""
        account, virtual = (flow.start, flow.credit_s), self.virtual[flow.priority]
        flow.start, flow.credit_s = self.order.entered(account, flow.weight, virtual)

    def _forget_stale_demand(self, now: float) -> None:
        """Forget work at other gateways that no report mentions any more. No report says that
        nothing waits elsewhere, and of several replicas some have heard later than others."""
        reported_at = self._peer_demand_at
        while reported_at:
            flow, at = next(iter(reported_at.items()))
            if now - at <= _PEER_DEMAND_S:
                return
            del reported_at[flow]
            flow.peer_demand_s = 0.0
            self.count(flow)

    def _confirm(self, now: float) -> None:
        """A report told virtual times. If none had for too long, flows that entered meanwhile are
        lifted now."""
        stale = now - self._confirmed_at > _VIRTUAL_STALE_S
        self._confirmed_at = now
        if stale:
            for flow in self.by_key.values():
                if flow.blind:
                    self._lift(flow)
                    flow.blind = False

    def _drop_idle(self) -> None:
        """Drop accounts of flows with nothing in the core, except those with the largest debts."""
        idle = [f for f in self.by_key.values() if not (f.active or f.live or f.claims)]
        idle.sort(key=lambda flow: self.tag(flow) - self.virtual[flow.priority])
        for flow in idle[: max(0, len(idle) - _IDLE_FLOWS)]:
            del self.by_key[flow.key]
            self._last_used.pop(flow.tenant, None)
            flow.dropped = True
        self._max_accounts = 2 * (len(self.by_key) + _IDLE_FLOWS)
