"""Whose turn is it among flows? First come, first served; or earliest deadline first.

Both compare the rows that wait, not the tenants that pay. They keep no shares between tenants: one
tenant's burst delays all others. Accounts are kept as under fair queueing, so that device seconds
by tenant are published all the same.
"""

from __future__ import annotations

from routers.api.policies import ARRIVALS, DEADLINES
from routers.policies.order.fair_queueing import FairQueueing


class FirstCome(FairQueueing):
    """In the order in which rows arrived, over all flows of a priority."""

    def __init__(self) -> None:
        super().__init__(ARRIVALS)

    def is_far_ahead(self, start: float, than: float, seconds: float) -> bool:
        return False


class EarliestDeadline(FairQueueing):
    """The row with the earliest deadline first, over all flows of a priority. Source: Liu and
    Layland (JACM'73); optimal while all deadlines can be met, and the worst order of all in
    overload."""

    def __init__(self) -> None:
        super().__init__(DEADLINES)

    def is_far_ahead(self, start: float, than: float, seconds: float) -> bool:
        return False
