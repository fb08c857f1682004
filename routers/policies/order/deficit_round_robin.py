"""Deficit round robin: flows take turns, each with `QUANTUM_S` of device seconds by weight a round.

The one that keeps no virtual time: a flow is served until its quantum is used up, what it took
beyond it is taken off its next one, and who comes joins the round that runs, behind the others. A
tag is the number of a round; among equals the one that came first into the ring. Cheaper to explain
than fair queueing, but a flow's turn is a quantum long, so that others wait for it. Source:
Shreedhar and Varghese, Efficient Fair Queueing Using Deficit Round-Robin (SIGCOMM'95).
"""

from __future__ import annotations

from math import ceil, floor

from routers.api.policies import Account, Ranking

QUANTUM_S = 0.02
_EVEN = 1e-9  # of a quantum: what rounding may make of exactly one


class DeficitRoundRobin:
    """A account is the round of the flow's next turn, and what is left of its quantum there."""

    ranking = Ranking.SHARES
    settles = True

    def price(self, length: int, cost_s: float) -> float:
        return cost_s

    def tag(self, account: Account, weight: float) -> float:
        return account[0]

    def charged(self, account: Account, weight: float, seconds: float) -> Account:
        turn, left_s = account
        left_s -= seconds
        quantum_s = QUANTUM_S * weight
        if left_s > _EVEN * quantum_s:
            return turn, left_s
        rounds = floor(-left_s / quantum_s + _EVEN) + 1
        return turn + rounds, left_s + rounds * quantum_s

    def refunded(self, account: Account, weight: float, seconds: float) -> Account:
        turn, left_s = account
        left_s += seconds
        quantum_s = QUANTUM_S * weight
        rounds = max(0, ceil(left_s / quantum_s - _EVEN) - 1)
        return turn - rounds, left_s - rounds * quantum_s

    def entered(self, account: Account, weight: float, virtual: float) -> Account:
        turn, left_s = account
        is_new = turn < virtual or left_s == 0.0
        return (max(turn, virtual), QUANTUM_S * weight) if is_new else account

    def next_virtual(self, virtual: float, moves: float, start: float, share_s: float) -> float:
        return max(virtual, start)

    def is_far_ahead(self, start: float, than: float, seconds: float) -> bool:
        return start > than + 1.0 + seconds / QUANTUM_S
