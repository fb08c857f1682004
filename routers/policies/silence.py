"""Which replicas have stopped answering?

One that holds work is *silent* once it has said nothing for about twice the 99th percentile of what
its batches take, as a multiple of what was predicted for the one that runs: from that one's
predicted start, or from the last word of the replica where that came later, and bounded below and
above. Batches of other gateways that are known to stand before ours count as much again. A stream
replica is due with the longest first token that it owes. Two kinds of false alarm are told apart
from silence: a look that comes late means that this gateway stood still, so what has come meanwhile
is read first; and while no other healthy replica runs, nobody is called silent, since then more
likely the network or the gateway is. Work: O(log n) a batch that is far overdue, none otherwise.
Source: timeouts from observed response times, as in the phi accrual failure detector (SRDS'04).
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from math import inf

from routers.api.settings import SilenceParameters
from routers.policies.hedging import Hedging, expected_start
from routers.state.replica_state import Lease, ReplicaState
from routers.state.replicas import ReplicaSet

_FACTOR = 2.0  # times the quantile
_UNKNOWN_RATIO = 4.0  # of a batch to its prediction, while too few were measured
_LONGEST = 2.0  # times the prediction: the upper bound is never below this
_STALL_S = 0.1  # a look that is this late was late because this process stood still
_SLACK = 32


class Silence:
    """The replicas that are watched, and when to look at each. `hedging`: what batches take."""

    def __init__(self, settings: SilenceParameters, hedging: Hedging, replicas: ReplicaSet) -> None:
        self.settings = settings
        self._hedging = hedging
        self._replicas = replicas
        self._looks: list[tuple[float, int, ReplicaState]] = []
        self._pushed = 0

    def watch(self, replica: ReplicaState, now: float) -> None:
        """It owes an answer; look at it when that may be called missing. A batch replica is watched
        from when its batch is overdue."""
        if replica.next_look_at is None and self.settings.mode != "off":
            at = self.silent_at(replica)
            if at < inf:
                self._push(replica, max(at, now + _STALL_S))

    def due(self, now: float) -> Iterator[ReplicaState]:
        """Those that are silent; each once, until it is watched again."""
        looks = self._looks
        while looks and looks[0][0] <= now:
            at, _, replica = heappop(looks)
            if replica.next_look_at != at:
                continue
            replica.next_look_at = None
            silent_at = inf if replica.suspended else self.silent_at(replica)
            if silent_at == inf:
                continue
            if silent_at > now:
                self._push(replica, silent_at)
            elif now - at >= _STALL_S or not self._others_are_well(replica):
                self._push(replica, now + _STALL_S)
            else:
                yield replica
        if len(looks) > 2 * len(self._replicas.by_id) + _SLACK:
            looks[:] = [entry for entry in looks if entry[2].next_look_at == entry[0]]
            heapify(looks)

    def next_at(self) -> float:
        """inf: never."""
        looks = self._looks
        while looks and not self._is_due(*looks[0]):
            heappop(looks)
        return looks[0][0] if looks else inf

    @staticmethod
    def _is_due(at: float, _: int, replica: ReplicaState) -> bool:
        """Whether there is anything to look at then: a batch replica may have answered since."""
        if replica.next_look_at != at:
            return False
        if not (replica.streams or replica.overdue):
            replica.next_look_at = None
        return replica.next_look_at is not None

    def silent_at(self, replica: ReplicaState) -> float:
        """When it will have been silent for too long, as far as is known now; inf: it owes nothing
        whose time is known."""
        if self.settings.mode == "off":
            return inf
        owed = self._owed_tokens(replica) if replica.streams else self._owed_batch(replica)
        if owed is None:
            return inf
        since, predicted_s, ratio = owed
        settings = self.settings
        if settings.fixed_s is not None:
            patience_s = settings.fixed_s
        else:
            most_s = max(settings.most_s, _LONGEST * predicted_s)
            patience_s = min(most_s, max(settings.least_s, _FACTOR * ratio * predicted_s))
        return max(since, replica.heard_at) + patience_s

    def _owed_batch(self, replica: ReplicaState) -> tuple[float, float, float] | None:
        """Since when, what was predicted, and what it may take as a multiple of that."""
        head = replica.head()
        if head is None or not replica.overdue:
            return None
        ratio = self._hedging.ratio(head, self.settings.quantile) or _UNKNOWN_RATIO
        if not replica.answers:
            ratio = inf  # what a first batch takes nobody knows
        return expected_start(head), (1 + replica.foreign_leases) * head.predicted_s, ratio

    def _owed_tokens(self, replica: ReplicaState) -> tuple[float, float, float] | None:
        """Of the leases without a token: the oldest's sending, the longest's reading."""
        unread = [lease for lease in replica.leases.values() if not lease.begun]
        engine = replica.group.engine
        if not unread or engine is None:
            return None
        first_s = max(engine.first_token_s(_to_read(lease)) for lease in unread)
        return unread[0].sent_at, first_s, _UNKNOWN_RATIO / _FACTOR

    def _others_are_well(self, replica: ReplicaState) -> bool:
        own = not (replica.unhealthy or replica.draining)
        return self._replicas.healthy > own

    def _push(self, replica: ReplicaState, at: float) -> None:
        replica.next_look_at = at
        self._pushed += 1
        heappush(self._looks, (at, self._pushed, replica))


def _to_read(lease: Lease) -> float:
    running = lease.running
    return 0.0 if running is None else running.ahead + running.reads
