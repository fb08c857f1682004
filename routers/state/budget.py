"""How many device seconds may be spent on copies, probes and retries: the retry budget."""

from __future__ import annotations

_CAP_BATCHES = 20.0  # the most that is saved or owed, in mean batches
_START_BATCHES = 2.0  # what the budget starts with, in mean batches
_BATCH_GAIN = 0.05  # of the moving average of a batch's cost


class Budget:
    """May device time be spent on work that is already being done elsewhere?

    One account, in predicted device seconds, for hedges, tied copies, probes and retries. Each
    primary batch earns a share of its own cost. Each extra batch pays its whole cost, and gets it
    back when one of the two turns out never to have started. Work that may wait asks first
    (`affords`). Retries and probes are never refused, because losing no work ranks above, but they
    pay all the same, so hedging stops while they are many. The level is capped both ways, so that
    neither a long calm nor a bad minute is remembered for long.
    """

    def __init__(self, share: float) -> None:
        self.share = share  # extra seconds that a primary second earns
        self.level_s = 0.0  # may be spent; may be negative
        self._batch_s = 0.0  # mean predicted cost of a primary batch; 0.0: none was sent yet

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
        """Whether so many seconds may be spent. `spare`: only from the upper half of the budget,
        which more urgent copies will hardly need."""
        reserve = 0.5 * _CAP_BATCHES * self._batch_s if spare else 0.0
        return self.level_s >= cost_s + reserve

    def pay(self, cost_s: float) -> None:
        """Extra work of this predicted cost was sent."""
        self._add(-cost_s)

    def refund(self, cost_s: float) -> None:
        """Extra work that was paid for has cost nothing."""
        self._add(cost_s)

    def _add(self, seconds: float) -> None:
        cap = _CAP_BATCHES * self._batch_s
        self.level_s = min(cap, max(-cap, self.level_s + seconds))
