"""Whose turn is it among flows? Deficit round robin: each flow has `QUANTUM_S` × weight a round.

The order without virtual time. A flow is served until its quantum of device seconds is used up;
what it took beyond is taken off its next quantum. A flow that enters joins the running round behind
the others. A tag is the number of a round; among equal tags, the flow that entered the ring first
is first. Cheaper to explain than fair queueing, but a flow's turn is a quantum long, and the others
wait for it. Fair in predicted device seconds by weight.

Source: Shreedhar and Varghese, Efficient Fair Queueing Using Deficit Round-Robin (SIGCOMM'95).
"""

from __future__ import annotations

from math import ceil, floor
from typing import Final

from routers.api.policies import Account, Order

QUANTUM_S: Final = 0.02
_ROUNDING: Final = 1e-9  # of a quantum: what rounding may add to, or take from, an exact quantum


class DeficitRoundRobin(Order):
    """An account is the round of the flow's next turn, and the seconds left of its quantum in that
    round."""

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
