"""Which replicas have stopped answering?

A replica that holds work is *silent* once nothing was heard of it for about twice the 99th
percentile of what its batches take, as a multiple of the running batch's prediction, within bounds.
The time counts from that batch's predicted start, or from when the replica was last heard if later.
Batches of other gateways known to run before ours add as much each. A stream replica is given the
time of the longest first token that it owes.

Two false alarms are excluded. If a look comes late, this gateway stood still, and first reads what
has come. While no other healthy replica runs, none is silent: the network or gateway is the
likelier fault. `routers.shared.replica_watch` decides when to look. Source: phi accrual failure
detector (SRDS'04).
"""

from __future__ import annotations

from math import inf

from routers.api.settings import SilenceParameters
from routers.policies.hedging.batches import Hedging, expected_start
from routers.state.replica_state import Lease, ReplicaState
from routers.state.replicas import ReplicaSet

_FACTOR = 2.0  # times the quantile
_UNKNOWN_RATIO = 4.0  # of a batch's seconds to its prediction, while too few were measured
_LONGEST = 2.0  # times the prediction: the upper bound is never below this
_STALL_S = 0.1  # a look that is this late was late because this process stood still


class Silence:
    """When each replica will have been silent for too long. `hedging` tells what batches take."""

    def __init__(self, settings: SilenceParameters, hedging: Hedging, replicas: ReplicaSet) -> None:
        self.settings = settings
        self._hedging = hedging
        self._replicas = replicas

    def first_look_at(self, replica: ReplicaState, now: float) -> float:
        """The replica owes an answer from now on: when to look whether it is silent; inf: it is not
        watched."""
        at = self.silent_at(replica)
        return at if at == inf else max(at, now + _STALL_S)

    def look(self, replica: ReplicaState, due_at: float, now: float) -> float:
        """When to look again; inf: not until it owes an answer again; `now`: it is silent.
        `due_at`: when this look was to be."""
        silent_at = inf if replica.suspended else self.silent_at(replica)
        if silent_at > now:
            return silent_at
        has_stalled = now - due_at >= _STALL_S
        return now + _STALL_S if has_stalled or not self._others_are_well(replica) else now

    def is_worth_a_look(self, replica: ReplicaState) -> bool:
        """Whether it is watched: a batch replica from when its batch is overdue until it has
        answered, a stream replica always."""
        return replica.streams or replica.overdue

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
            max_s = max(settings.most_s, _LONGEST * predicted_s)
            patience_s = min(max_s, max(settings.least_s, _FACTOR * ratio * predicted_s))
        return max(since, replica.heard_at) + patience_s

    def _owed_batch(self, replica: ReplicaState) -> tuple[float, float, float] | None:
        """(when the running batch's time began, predicted seconds, what it may take as a multiple
        of that); None: nothing is overdue."""
        head = replica.head()
        if head is None or not replica.overdue:
            return None
        ratio = self._hedging.ratio(head, self.settings.quantile) or _UNKNOWN_RATIO
        if not replica.answers:
            ratio = inf  # nothing is known of a replica's first batch
        return expected_start(head), (1 + replica.foreign_leases) * head.predicted_s, ratio

    def _owed_tokens(self, replica: ReplicaState) -> tuple[float, float, float] | None:
        """(when the oldest lease without a token was sent, predicted seconds to the latest first
        token, what it may take as a multiple of that); None: all leases have tokens."""
        unread = [lease for lease in replica.leases.values() if not lease.begun]
        engine = replica.group.engine
        if not unread or engine is None:
            return None
        first_s = max(engine.first_token_s(_to_read(lease)) for lease in unread)
        return unread[0].sent_at, first_s, _UNKNOWN_RATIO / _FACTOR

    def _others_are_well(self, replica: ReplicaState) -> bool:
        """Whether another healthy replica runs, which takes rows as long."""
        own = not (replica.unhealthy or replica.draining)
        groups, longest = self._replicas.groups.all(), replica.group.longest
        return sum([each.healthy for each in groups if each.longest >= longest]) > own


def _to_read(lease: Lease) -> float:
    """Prompt tokens that the replica reads before the lease's first token."""
    running = lease.running
    return 0.0 if running is None else running.ahead + running.reads
