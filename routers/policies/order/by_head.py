"""First come, first served, and earliest deadline first: who waits is compared, not who pays.

Those without shares between tenants: one tenant's burst delays everybody. Accounts are kept as
under fair queueing, so that device seconds by tenant are told all the same.
"""

from __future__ import annotations

from routers.api.policies import Ranking
from routers.policies.order.fair_queueing import FairQueueing


class FirstCome(FairQueueing):
    """In the order that rows came in, over all flows of a priority."""

    ranking = Ranking.ARRIVALS

    def is_far_ahead(self, start: float, than: float, seconds: float) -> bool:
        return False


class EarliestDeadline(FairQueueing):
    """The earliest deadline first, over all flows of a priority. Source: Liu and Layland (JACM'73);
    optimal while everything can be in time, and the worst of all in overload."""

    ranking = Ranking.DEADLINES

    def is_far_ahead(self, start: float, than: float, seconds: float) -> bool:
        return False
