"""How many requests does a gateway send an engine, and what does it say that their tokens are worth
there?

The gateway's side of `routers.stream.staging`. What an engine runs at once is enough for a gateway
alone. Beside other gateways' requests its own wait for their turn at the replica: those that wait
at the gateway have none, and what is sent only as room comes is never compared with theirs.

Pure: times are the caller's clock, in seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

from routers.api.requests import Report
from routers.api.settings import GenerationParameters
from routers.api.snapshot import Snapshot

WAITING_SHARE: Final = 2
"""Times what an engine runs at once: as many requests a gateway sends a replica that other gateways
use too, and as many the replica takes from each."""

_SHARED_S: Final = 10.0  # for which engines count as shared after others were seen there
_PRICED_EVERY_S: Final = 1.0  # what a token is worth is read from a snapshot of everything


class SharedEngines:
    """Whether other gateways use a model's engines too, by what ends of requests report."""

    def __init__(self) -> None:
        self._shared = False
        self._shared_at = -inf

    def learn(self, report: Report, now: float) -> bool:
        """Whether `max_leases` is another number now."""
        if report.inflight > report.held:
            self._shared_at = now
        shared = now - self._shared_at <= _SHARED_S
        has_changed = shared is not self._shared
        self._shared = shared
        return has_changed

    def max_leases(self, max_sequences: int, waiting: int = 0) -> int:
        """At one replica, of whose requests so many run at once. `waiting`: that wait there for an
        adapter, so that the engine has places for as many others."""
        room = max_sequences * WAITING_SHARE
        return room if self._shared else min(max_sequences + waiting, room)


class TokenPrices:
    """What a token is worth, in seconds of a full engine, as learnt so far; read now and then."""

    def __init__(self) -> None:
        self._read_at = -inf
        self._prices = 0.0, 0.0

    def at(
        self, settings: GenerationParameters | None, look: Callable[[], Snapshot], now: float
    ) -> tuple[float, float]:
        """Of a prompt's token that has to be read, and of an output token; both 0.0: nobody knows.
        `look`: at the gateway's core."""
        if settings is not None and now - self._read_at >= _PRICED_EVERY_S:
            found = look().generation
            token_s = 1.0 / found.tokens_per_s if found is not None else 0.0
            self._read_at = now
            self._prices = settings.input_weight * token_s, settings.output_weight * token_s
        return self._prices
