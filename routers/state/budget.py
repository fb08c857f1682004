"""How much device time may be spent on copies, probes and retries."""

from __future__ import annotations

# Of the retry budget:
_CAP_BATCHES = 20.0
_START_BATCHES = 2.0
_BATCH_GAIN = 0.05


class Budget:
    """May device time be spent on work that is already being done elsewhere?

    One account, in predicted device seconds, for hedges, tied copies, probes and retries: each
    primary batch earns a share of its own cost, each extra one pays its whole cost, and gets it
    back when it turns out that one of the two was never started. What may wait asks first
    (`affords`); retries and probes are never refused, since not losing work ranks above, but are
    paid for all the same, so hedging stops while they are many. Capped both ways, so that neither a
    long calm nor a bad minute is remembered for long.

    `share`: extra seconds a primary second. `level_s`: what may be spent; may be negative."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.level_s = 0.0
        self._batch_s = 0.0

    def earn(self, cost_s: float) -> None:
        """A primary batch of this predicted cost was sent."""
        if cost_s <= 0.0:
            return
        if not self._batch_s:
            self._batch_s = cost_s
            self.level_s += _START_BATCHES * cost_s if self.share > 0.0 else 0.0
        self._batch_s += _BATCH_GAIN * (cost_s - self._batch_s)
        self._add(self.share * cost_s)

    def affords(self, cost_s: float, *, spare: bool = False) -> bool:
        """`spare`: only out of the upper half, what more urgent copies will hardly need."""
        reserve = 0.5 * _CAP_BATCHES * self._batch_s if spare else 0.0
        return self.level_s >= cost_s + reserve

    def pay(self, cost_s: float) -> None:
        self._add(-cost_s)

    def refund(self, cost_s: float) -> None:
        """What was paid for has cost nothing."""
        self._add(cost_s)

    def _add(self, seconds: float) -> None:
        cap = _CAP_BATCHES * self._batch_s
        self.level_s = min(cap, max(-cap, self.level_s + seconds))
