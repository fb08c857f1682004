"""Order: whose turn is it among flows?

An order keeps no state: `state.flows` keeps each flow's account and asks what becomes of it
(`api.policies.Order`). A model's settings choose one by name (`policies.order`).
"""

from __future__ import annotations

from math import ceil, floor
from typing import Final

from routers.api.policies import ARRIVALS, DEADLINES, Account, Order
from routers.api.settings import DispatcherSettings


class FairQueueing(Order):
    """Start-time fair queueing, the default: who is furthest below its share. An account is the
    start tag, and the credit in seconds.

    The tag of a flow rises by work / weight for all the work that it takes. An overcharge is
    credited against what the flow takes next, so tags fall only for work that was never started. A
    flow that enters begins at the virtual time, which moves as if all flows that wait were served
    at once: the flow gets no credit for the time it was idle, and does not wait behind the others'
    backlog. Fair in predicted device seconds by weight.

    Sources: Goyal et al., Start-time Fair Queueing (SIGCOMM'96); the virtual time of weighted fair
    queueing, counted in service.
    """

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


QUANTUM_S: Final = 0.02
_ROUNDING: Final = 1e-9  # of a quantum: what rounding may add to, or take from, an exact quantum


class DeficitRoundRobin(Order):
    """Deficit round robin: each flow has `QUANTUM_S` × weight a round.

    The order without virtual time. A flow is served until its quantum of device seconds is used up;
    what it took beyond is taken off its next quantum. A flow that enters joins the running round
    behind the others. A tag is the number of a round; among equal tags, the flow that entered the
    ring first is first. Cheaper to explain than fair queueing, but a flow's turn is a quantum long,
    and the others wait for it. Fair in predicted device seconds by weight.

    Source: Shreedhar and Varghese, Efficient Fair Queueing Using Deficit Round-Robin (SIGCOMM'95).

    An account is the round of the flow's next turn, and the seconds left of its quantum in that
    round.
    """

    def tag(self, account: Account, weight: float) -> float:
        return account[0]

    def charged(self, account: Account, weight: float, seconds: float) -> Account:
        """Once the quantum is used up, the flow's next turn is in the first round whose quantum
        covers what it owes."""
        turn, left_s = account
        left_s -= seconds
        quantum_s = QUANTUM_S * weight
        if left_s > _ROUNDING * quantum_s:
            return turn, left_s
        rounds = floor(-left_s / quantum_s + _ROUNDING) + 1
        return turn + rounds, left_s + rounds * quantum_s

    def refunded(self, account: Account, weight: float, seconds: float) -> Account:
        turn, left_s = account
        left_s += seconds
        quantum_s = QUANTUM_S * weight
        rounds = max(0, ceil(left_s / quantum_s - _ROUNDING) - 1)
        return turn - rounds, left_s - rounds * quantum_s

    def entered(self, account: Account, weight: float, virtual: float) -> Account:
        """A flow whose round has passed, or that has nothing left, joins the running round with a
        whole quantum."""
        turn, left_s = account
        is_new = turn < virtual or left_s == 0.0
        return (max(turn, virtual), QUANTUM_S * weight) if is_new else account

    def next_virtual(self, virtual: float, moves: float, start: float, share_s: float) -> float:
        return max(virtual, start)

    def is_far_ahead(self, start: float, than: float, seconds: float) -> bool:
        return start > than + 1.0 + seconds / QUANTUM_S


class TokenCounters(FairQueueing):
    """Virtual token counters: fewest tokens over weight goes first.

    For models that are paid by the token. What a batch or a long row really takes of the device
    plays no part, nor does a later measurement. Only work at other gateways is known in seconds
    alone; it counts as the number of tokens that take so long in a full batch. A flow that was idle
    is lifted to the counter of the flow that is served: it gets no credit for the time it was idle,
    and waits behind nobody's backlog. Tokens of a model that generates are weighted as
    `GenerationParameters` says, and predicted output is corrected by the tokens really produced.
    Source: Sheng et al., Fairness in Serving Large Language Models (OSDI'24).

    `token_s`: seconds that a token counts as, so that counters compare with what other gateways
    report; None: rows are priced in tokens already.
    """

    def __init__(self, token_s: float | None) -> None:
        super().__init__(settles=token_s is None)
        self._token_s = token_s

    @classmethod
    def of(cls, settings: DispatcherSettings) -> TokenCounters:
        """A token counts the seconds that it takes in the widest of the profile's batches with most
        rows; without a profile, one second over the longest length."""
        if settings.generation is not None:
            return cls(None)
        measured = max(settings.profile, default=(1, settings.bucket_edges[-1], 1.0))
        rows, width, seconds = measured
        return cls(seconds / (rows * width) if seconds > 0.0 else 1e-6)

    def price(self, length: int, cost_s: float) -> float:
        return cost_s if self._token_s is None else length * self._token_s

    def next_virtual(self, virtual: float, moves: float, start: float, share_s: float) -> float:
        return max(virtual, start)
