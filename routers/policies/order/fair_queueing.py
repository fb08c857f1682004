"""Whose turn is it among flows? Start-time fair queueing: who is furthest below its share.

The tag of a flow rises by work / weight for all the work that it takes. An overcharge is credited
against what the flow takes next, so tags fall only for work that was never started. A flow that
enters begins at the virtual time, which moves as if all flows that wait were served at once: the
flow gets no credit for the time it was idle, and does not wait behind the others' backlog. Fair in
predicted device seconds by weight.

Sources: Goyal et al., Start-time Fair Queueing (SIGCOMM'96); the virtual time of weighted fair
queueing, counted in service.
"""

from __future__ import annotations

from routers.api.policies import Account, Order


class FairQueueing(Order):
    """The default order. An account is the start tag, and the credit in seconds."""

    def tag(self, account: Account, weight: float) -> float:
        start, credit_s = account
        return start - credit_s / weight

    def charged(self, account: Account, weight: float, seconds: float) -> Account:
        start, credit_s = account
        due_s = seconds - credit_s
        return (start + due_s / weight, 0.0) if due_s > 0.0 else (start, -due_s)

    def refunded(self, account: Account, weight: float, seconds: float) -> Account:
        """The tag falls, because the rows come back to the places that they had."""
        start, credit_s = account
        return start - seconds / weight, credit_s

    def entered(self, account: Account, weight: float, virtual: float) -> Account:
        """A tag below the virtual time is raised to it, and credit must not take it below."""
        start, credit_s = account
        if start <= virtual:
            return virtual, 0.0
        return start, min(credit_s, (start - virtual) * weight)

    def next_virtual(self, virtual: float, moves: float, start: float, share_s: float) -> float:
        """At least the leader's tag, and at most that tag plus its batch's share.

        Were it the leader's tag alone, it would stand still while many flows come with one row
        each, and a flow that had a long row served would wait for seconds (of 100 tenants' requests
        at 0.8 of the capacity, 97 % were in time instead of 99.5 %).
        """
        return max(max(virtual, min(virtual + moves, start + share_s)), start)

    def is_far_ahead(self, start: float, than: float, seconds: float) -> bool:
        return start > than + seconds
