"""What would it cost a replica, in seconds, to have this request's adapter: nothing, or a load?

A replica holds a bounded number of adapters; one that it does not hold is loaded when a request
comes for it, which that request waits for. Where no place is free, the price has a second part: the
adapter that would have to go may have to be loaded again, by the probability that a request asks
for it first. So a rare adapter takes the place of a rare one. A copy beyond an adapter's share of
the replicas has a third part, for the place that it takes from another one as long as it stays:
popular adapters spread, the others do so only where their replica is much busier.

This is the gateway's own account, set right by what replicas report. Work: O(places) a replica.
Sources: LFU with ageing; S-LoRA (MLSys'24) for loading on demand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

_FIRST_LOAD_S: Final = 0.1  # until a replica has reported what loads take
# Replicas that hold an adapter, by its share of the requests times all replicas
_SPREAD: Final = 1.5
# Of a copy beyond that. Measured (tests/simulation/adapter_load.py, loads of 20 ms): against none,
# 0.43 of the loads, and the p99 of first tokens 265 ms instead of 243.
_COPY_S: Final = 1.0
_FAILS_S: Final = 30.0  # at a replica that cannot load it now: any other one is better
# Of the weight of each new request: a use counts half after 347 further ones
_GROWTH: Final = 1.002
_LARGEST: Final = 1e100  # weights are scaled down beyond
_FORGOTTEN: Final = 1e-6  # of the newest use: such counts are dropped


class AdapterAccount:
    """Which replicas hold which adapters, and how popular each is. `places`: adapters that a
    replica may hold; 0: the model has none."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.load_s = _FIRST_LOAD_S  # seconds of a load
        self._held: dict[str, dict[str, int]] = {}  # by replica: open leases of each adapter
        self._copies: Counter[str] = Counter()  # replicas in `_held`, by adapter
        self._reported: dict[str, frozenset[str]] = {}  # by replica, those that it said last
        self._failing: dict[str, frozenset[str]] = {}  # by replica
        self._uses: dict[str, float] = {}
        self._weight, self._total = 1.0, 0.0  # of the newest use, and of all

    def holders(self, adapter: str) -> list[str]:
        """Ids of the replicas that hold it, or are loading it."""
        return [
            replica_id
            for replica_id, held in self._held.items()
            if adapter in held and not self._fails(replica_id, adapter)
        ]

    def price_s(self, replica_id: str, adapter: str, request_s: float) -> float:
        """Seconds that it costs to serve a request for the adapter there, because of the adapter
        alone. `request_s`: predicted seconds of such a request, which pass where no adapter may
        go."""
        held = self._held.get(replica_id, {})
        if adapter and self._fails(replica_id, adapter):
            return self.load_s + _FAILS_S
        if not adapter or adapter in held:
            return 0.0
        uses, load_s = self._uses, self.load_s
        copies = self._copies[adapter]
        if copies:
            share = uses.get(adapter, 0.0) / max(self._total, self._weight)
            if copies >= _SPREAD * share * len(self._held):
                load_s += _COPY_S
        if len(held) < self.places:
            return load_s
        idle = [each for each, leases in held.items() if not leases]
        if not idle:
            return load_s + self.load_s + request_s
        lost = min((self._copies[each] < 2) * uses.get(each, 0.0) for each in idle)
        again = lost / (lost + uses.get(adapter, 0.0) + self._weight)
        return load_s + again * self.load_s

    def asked(self, adapter: str) -> None:
        """A request for it has come."""
        if not adapter:
            return
        self._weight *= _GROWTH
        self._uses[adapter] = self._uses.get(adapter, 0.0) + self._weight
        self._total += self._weight
        if self._weight > _LARGEST:
            kept = {name: uses / self._weight for name, uses in self._uses.items()}
            self._uses = {name: uses for name, uses in kept.items() if uses > _FORGOTTEN}
            self._weight, self._total = 1.0, sum(self._uses.values())

    def sent(self, replica_id: str, adapter: str) -> bool:
        """A lease for it is open at the replica. Whether the replica has to load it. Where the
        places are full, the least popular one that no lease uses is taken to have gone."""
        held = self._held.setdefault(replica_id, {})
        loads = adapter not in held
        if loads and len(held) >= self.places:
            idle = [each for each, leases in held.items() if not leases]
            if idle:
                self._drop(held, min(idle, key=lambda each: self._uses.get(each, 0.0)))
        held[adapter] = held.get(adapter, 0) + 1
        self._copies[adapter] += loads
        return loads

    def ended(self, replica_id: str, adapter: str) -> None:
        """A lease for it has closed there. What the replica never said that it holds was not
        loaded."""
        held = self._held.get(replica_id, {})
        if held.get(adapter, 0) > 0:
            held[adapter] -= 1
            if not held[adapter] and adapter not in self._reported.get(replica_id, held):
                self._drop(held, adapter)

    def told(
        self,
        replica_id: str,
        adapters: Iterable[str],
        load_s: float,
        failing: Iterable[str] = (),
    ) -> None:
        """The replica reports those that it holds, the mean seconds of its loads lately (0.0: it
        knows none), and those that it cannot load now. One that open leases need counts as held: it
        is on its way."""
        self._reported[replica_id] = adapters = frozenset(adapters)
        self._failing[replica_id] = frozenset(failing)
        before = self._held.get(replica_id, {})
        now = {each: leases for each, leases in before.items() if leases}
        for each in adapters:
            now.setdefault(each, 0)
        self._held[replica_id] = now
        self._copies.update(now.keys())
        self._copies.subtract(before.keys())
        if 0.0 < load_s < _LARGEST:
            self.load_s = load_s

    def forget(self, replica_id: str) -> None:
        """The replica is gone."""
        self._copies.subtract(self._held.pop(replica_id, {}).keys())
        self._reported.pop(replica_id, None)
        self._failing.pop(replica_id, None)

    def _drop(self, held: dict[str, int], adapter: str) -> None:
        del held[adapter]
        self._copies[adapter] -= 1

    def _fails(self, replica_id: str, adapter: str) -> bool:
        return adapter in self._failing.get(replica_id, ())
