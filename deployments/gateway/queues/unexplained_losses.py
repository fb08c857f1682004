"""Which tenant pays for a lost replica where no row is convicted of it?

Rows that are not run again, because they must not be or their callers left, end one replica each
and never a second one. Of all rows without an answer that a replica had when it was lost, those
that are answered later were not the cause. When the rows of one request alone are left, its tenant
is *accused*: the replica counts in its crash budget until one of them is answered, too. A machine
that dies takes many replicas at once, which is no tenant's doing: what a tenant is accused of
within `_AT_ONCE_S` counts once. Of one model at one gateway, which does not know what others had
there. Bounded in number, the oldest forgotten first. For the event loop's thread alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

_MOST_REPLICAS = 1024
_AT_ONCE_S = 1.0


class LostRow(NamedTuple):
    """A row without an answer that was on a replica when that was lost."""

    key: bytes  # its fingerprint
    tenant: str
    request: int  # the id of its request, at this gateway


@dataclass(slots=True)
class _Loss:
    """The loss of one replica."""

    at: float
    unanswered: dict[bytes, LostRow] = field(default_factory=dict)  # by key
    accused: str = ""  # the tenant that it counts for, "" for none


class UnexplainedLosses:
    """Times are seconds on the caller's monotonic clock; rows are known by their fingerprints.
    `accused`: when each replica was lost that counts for a tenant, by tenant."""

    def __init__(self) -> None:
        self.accused: dict[str, dict[str, float]] = {}
        self._losses: OrderedDict[str, _Loss] = OrderedDict()  # by replica, the oldest first
        self._replicas: dict[bytes, set[str]] = {}  # that a row was lost with

    def __bool__(self) -> bool:
        return bool(self._losses)

    def lost(self, replica_id: str, rows: Iterable[LostRow], now: float) -> None:
        """These rows were on the replica, besides those said before."""
        loss = self._losses.setdefault(replica_id, _Loss(now))
        for row in rows:
            loss.unanswered.setdefault(row.key, row)
            self._replicas.setdefault(row.key, set()).add(replica_id)
        self._judge(replica_id, loss)
        if not loss.unanswered:
            del self._losses[replica_id]
        if len(self._losses) > _MOST_REPLICAS:
            self._forget(next(iter(self._losses)))

    def answered(self, key: bytes) -> None:
        """So it was not what ended the replicas that it was on."""
        for replica_id in self._replicas.pop(key, ()):
            loss = self._losses[replica_id]
            del loss.unanswered[key]
            self._judge(replica_id, loss)
            if not loss.unanswered:
                del self._losses[replica_id]

    def sweep(self, before: float) -> None:
        """Forgets what was lost until then."""
        while self._losses and next(iter(self._losses.values())).at <= before:
            self._forget(next(iter(self._losses)))

    def _judge(self, replica_id: str, loss: _Loss) -> None:
        self._discharge(replica_id, loss)
        if len({row.request for row in loss.unanswered.values()}) == 1:
            tenant = next(iter(loss.unanswered.values())).tenant
            known = self.accused.get(tenant, {})
            if all(abs(loss.at - at) >= _AT_ONCE_S for at in known.values()):
                self.accused.setdefault(tenant, known)[replica_id] = loss.at
                loss.accused = tenant

    def _discharge(self, replica_id: str, loss: _Loss) -> None:
        if not loss.accused:
            return
        known = self.accused[loss.accused]
        del known[replica_id]
        if not known:
            del self.accused[loss.accused]
        loss.accused = ""

    def _forget(self, replica_id: str) -> None:
        loss = self._losses.pop(replica_id)
        self._discharge(replica_id, loss)
        for key in loss.unanswered:
            self._replicas[key].discard(replica_id)
            if not self._replicas[key]:
                del self._replicas[key]
