"""Deficit round robin: flows take turns, each with `QUANTUM_S` of device seconds by weight a round.

The rival that keeps no virtual time: a flow is served until its quantum is used up, what it took
beyond it is taken off its next one, and who comes joins the round that runs, behind the others. A
tag is the number of a round; among equals the one that came first into the ring. Cheaper to explain
than fair queueing, but a flow's turn is a quantum long, so that others wait for it. Source:
Shreedhar and Varghese, Efficient Fair Queueing Using Deficit Round-Robin (SIGCOMM'95).
"""

from __future__ import annotations

from math import ceil

from routers.api.policies import Ranking, Standing

QUANTUM_S = 0.02


class DeficitRoundRobin:
    """A standing is the round of the flow's next turn, and what is left of its quantum there."""

    ranking = Ranking.SHARES
    settles = True

    def price(self, length: int, cost_s: float) -> float:
        return cost_s

    def charged(self, standing: Standing, weight: float, seconds: float) -> Standing:
        turn, left_s = standing
        left_s -= seconds
        if left_s > 0.0:
            return turn, left_s
        quantum_s = QUANTUM_S * weight
        rounds = ceil(-left_s / quantum_s) or 1
        return turn + rounds, left_s + rounds * quantum_s

    def refunded(self, standing: Standing, weight: float, seconds: float) -> Standing:
        turn, left_s = standing
        left_s += seconds
        quantum_s = QUANTUM_S * weight
        rounds = max(0, ceil(left_s / quantum_s) - 1)
        return turn - rounds, left_s - rounds * quantum_s

    def entered(self, standing: Standing, weight: float, virtual: float) -> Standing:
        return standing if standing[0] >= virtual else (virtual, QUANTUM_S * weight)

    def virtual(self, virtual: float, moves: float, start: float, turn_s: float) -> float:
        return max(virtual, float(ceil(start)))

    def is_far_ahead(self, start: float, than: float, seconds: float) -> bool:
        return start > than + 1.0
