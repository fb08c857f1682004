"""Who has had how much? One account a flow (tenant × priority).

A flow's `start` is the start tag of its next row; the flow with the lowest tag is served first. A
tag rises by work / weight for all the work that the flow takes. A charge is a prediction, corrected
when the batch has been measured; an overcharge is credited against what the flow takes next, so
tags fall only for work that was never started. Device seconds that other gateways gave to a flow
are charged as if they had been given here. Fair in device seconds by weight. `Flows` is the only
writer of accounts.

Sources: Goyal et al., Start-time Fair Queueing (SIGCOMM'96); lift on re-entry as in VTC (OSDI'24).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from routers.api.requests import FlowKey, FlowWork, Report
from routers.api.snapshot import OfferedSnapshot

_MEAN_GAIN = 0.05  # of the moving average of a flow's requests


@dataclass(slots=True)
class MeanWork:
    """Mean work of one flow's requests, seconds (EWMA); 0.0 until one was seen."""

    seconds: float = 0.0


_LENGTHS = 64  # intervals of lengths, by powers of two: all lengths are below 2**64


@dataclass(slots=True)
class OfferedWork:
    """The counters of one model at one gateway. The caller decides what counts as offered."""

    work_s: float = 0.0
    sq_s2: float = 0.0  # sum of the squares of requests' work, for their variance
    requests: int = 0
    served_s: float = 0.0
    refused: dict[str, int] = field(default_factory=dict)  # by reason
    _by_length: list[float] = field(default_factory=lambda: [0.0] * _LENGTHS)

    def add(self, work_s: float, length: int, flow: MeanWork | None) -> None:
        """Count a request that was read and asks for this work. `length`: tokens. `flow`: the mean
        of its flow, which is updated; None: not known."""
        self.work_s += work_s
        self.sq_s2 += work_s * work_s
        self.requests += 1
        self._by_length[(length - 1).bit_length() if length > 1 else 0] += work_s
        if flow is not None:
            known_s = flow.seconds
            flow.seconds = known_s + _MEAN_GAIN * (work_s - known_s) if known_s else work_s

    def add_unread(self, flow: MeanWork | None) -> None:
        """Count a request that was turned away before it was known what it takes. `flow`: None if
        the flow is new."""
        if self.work_s > 0.0:
            work_s = 0.0 if flow is None else flow.seconds
            work_s = work_s or self.work_s / self.requests
            self.sq_s2 += work_s * self.sq_s2 / self.work_s  # as varied as the requests read
            self.work_s += work_s
        self.requests += 1

    def refuse(self, reason: str) -> None:
        """Count a refusal by its reason."""
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def snapshot(self) -> OfferedSnapshot:
        """The counters as they are; lengths by the upper end of their interval."""
        by_length = [(1 << at, work_s) for at, work_s in enumerate(self._by_length) if work_s]
        refused = tuple(self.refused.items())
        return OfferedSnapshot(
            self.work_s, self.sq_s2, self.requests, self.served_s, refused, tuple(by_length)
        )


_IDLE_FLOWS = 128  # accounts of idle flows that are kept, those furthest above their share
_PEER_DEMAND_S = 0.25  # for so long a replica's report of work that waits elsewhere is believed
_PEERS_GONE_S = 10.0  # without a sign of another gateway, after which none is told what waits here
# A virtual time that no report has confirmed for so long may lag behind other gateways'.
_VIRTUAL_STALE_S = 1.0

Account = tuple[float, float]
"""(start tag, credit): the credit, in seconds, is used up before the tag grows."""


@dataclass(slots=True, eq=False)
class Flow:
    """The account of one tenant at one priority, and sums over its waiting rows."""

    tenant: str
    priority: int
    weight: float = 1.0

    start: float = 0.0  # start tag of its next row
    credit_s: float = 0.0  # what it may take before its tag grows

    rows: int = 0  # on-time rows that wait
    late_rows: int = 0  # late rows that wait
    live: int = 0  # requests that wait or run
    waiting_s: float = 0.0  # predicted seconds of its on-time rows that wait
    served_s: float = 0.0  # measured device seconds that it was ever given here
    peer_demand_s: float = 0.0  # predicted seconds that wait for it at other gateways

    blind: bool = False  # it entered while the other gateways' virtual time was not known
    claims: bool = False  # counted among the flows with on-time work waiting, here or elsewhere
    asks: MeanWork = field(default_factory=MeanWork)  # what its requests take on average
    key: FlowKey = field(init=False)

    def __post_init__(self) -> None:
        self.key = self.priority, self.tenant

    @property
    def active(self) -> bool:
        """Whether any of its rows waits."""
        return self.rows + self.late_rows > 0


class Flows:
    """All accounts, and their only writer."""

    def __init__(self) -> None:
        self.by_key: dict[tuple[int, str], Flow] = {}
        self.virtual: list[float] = []  # by priority: the tag where a flow that enters begins
        # By priority: how far `virtual` moves with the next batch.
        self._next_steps: list[float] = []
        self.lowered: list[Flow] = []  # tags that have fallen, for whoever sorts by tag
        self.weights: list[float] = []  # by priority: of flows with on-time work, here or elsewhere
        self._max_accounts = 2 * _IDLE_FLOWS  # accounts; from here on idle ones are dropped
        # When a replica last reported work of the flow at other gateways, the longest ago first.
        self._peer_demand_at: dict[Flow, float] = {}
        self._confirmed_at: float | None = None  # when a report last told virtual times
        self._peers_seen_at = -inf  # when another gateway was last noticed
        self.alone = True  # no other gateway was noticed lately

    def of(self, tenant: str, priority: int, weight: float) -> Flow:
        """The flow's account, opened if there is none. Its weight becomes the one given."""
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
        elif flow.weight != weight:
            if flow.claims:
                self.weights[priority] += weight - flow.weight
            flow.weight = weight
        return flow

    def enter(self, flow: Flow, now: float) -> None:
        """Work comes to a flow of which nothing waits: it gets no credit for the time it was idle.
        Work that comes back unstarted, or turns late, does not enter."""
        self._lift(flow)
        flow.blind = self._confirmed_at is not None and now - self._confirmed_at > _VIRTUAL_STALE_S
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
        return flow.start - flow.credit_s / flow.weight

    def charge(self, flow: Flow, seconds: float) -> None:
        """It took `seconds` more than it was charged so far; less, if negative."""
        account = flow.start, flow.credit_s
        flow.start, flow.credit_s = charged(account, flow.weight, seconds)

    def set_account(self, flow: Flow, account: Account) -> None:
        """Set the account as a plan that has charged it left it."""
        flow.start, flow.credit_s = account

    def leads(self, flow: Flow, start: float, seconds: float, competing_weight: float) -> None:
        """The flow, whose tag was `start`, leads a batch of `seconds` while flows with the summed
        weight `competing_weight` had work waiting. Moves the priority's virtual time.

        It becomes at least the leader's tag, and at most that tag plus its batch's share. Were it
        the leader's tag alone, it would stand still while many flows come with one row each, and a
        flow that had a long row served would wait for seconds (of 100 tenants' requests at 0.8 of
        the capacity, 97 % were in time instead of 99.5 %).
        """
        priority = flow.priority
        virtual, moves = self.virtual[priority], self._next_steps[priority]
        share_s = seconds / flow.weight
        self.virtual[priority] = max(virtual, min(virtual + moves, start + share_s), start)
        self._next_steps[priority] = seconds / max(competing_weight, flow.weight)

    def settle(self, charges: Iterable[FlowWork], served: Iterable[FlowWork]) -> None:
        """A batch was served: replace the seconds charged by those served, flow by flow."""
        by_key = self.by_key
        for (priority, tenant, charged_s), (_, _, served_s) in zip(charges, served, strict=True):
            flow = by_key.get((priority, tenant))
            if flow is not None:
                self.charge(flow, served_s - charged_s)
                flow.served_s += served_s

    def refund(self, charges: Iterable[FlowWork]) -> None:
        """A batch was never started, so its rows return to the places that they had: take back what
        their flows were charged. The tags fall."""
        for priority, tenant, seconds in charges:
            flow = self.by_key.get((priority, tenant))
            if flow is not None:
                flow.start -= seconds / flow.weight
                self.lowered.append(flow)

    def learn(self, report: Report, now: float) -> None:
        """Take in what a report says of other gateways: their virtual times, what they were served,
        what waits there."""
        for priority, virtual in enumerate(report.virtual_time[: len(self.virtual)]):
            if virtual > self.virtual[priority]:
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
        self._forget_stale_demand(now)
        if report.served or report.waiting or report.inflight > report.held:
            self._peers_seen_at = now
        self.alone = now - self._peers_seen_at > _PEERS_GONE_S
        if report.virtual_time:
            self._confirm(now)

    def _lift(self, flow: Flow) -> None:
        """Raise a tag below the virtual time to it: the flow gets no credit for the time it was
        idle, and does not wait behind the others' backlog. Credit must not take a tag below it."""
        start, virtual = flow.start, self.virtual[flow.priority]
        if start <= virtual:
            flow.start, flow.credit_s = virtual, 0.0
        else:
            flow.credit_s = min(flow.credit_s, (start - virtual) * flow.weight)

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
        stale = self._confirmed_at is not None and now - self._confirmed_at > _VIRTUAL_STALE_S
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
        self._max_accounts = 2 * (len(self.by_key) + _IDLE_FLOWS)


def charged(account: Account, weight: float, seconds: float) -> Account:
    """The account after a charge of `seconds`; negative: after giving them back."""
    start, credit_s = account
    due_s = seconds - credit_s
    return (start + due_s / weight, 0.0) if due_s > 0.0 else (start, -due_s)
