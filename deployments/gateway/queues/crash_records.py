"""Which rows have ended replicas, and whose they were.

A row is known by its fingerprint (`response_cache.row_keys`). One that was on a replica when that
was lost is *suspect*: it travels alone from then on. It is acquitted when it is answered alone, and
*convicted* when a second replica is lost after it had begun there alone: then it is refused for a
while. A tenant pays for each replica that its convicted rows have ended, and is refused for a while
once it has spent its budget. Bounded in number, the least recently seen forgotten first. Of one
model at one gateway: another gateway finds out by itself. For the event loop's thread alone.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from deployments.contract import errors
from deployments.contract.description import CrashTerms
from deployments.gateway.queues.batch_calls import SentBatch
from deployments.gateway.reuse.response_cache import row_keys
from deployments.gateway.rows.types import Rows

_MOST_ROWS = 4096
_MOST_TENANTS = 1024
CRASH_BUDGET = "crash_budget"  # why a tenant is refused
_ELSEWHERE = "another version's"
_SWEEP_S = 10.0  # how often what is over is forgotten, so that newcomers need no look again


def fingerprints(rows: Rows, version: str) -> list[bytes]:
    """One a row, whatever outputs are asked for. Takes about 1 ns a byte."""
    return row_keys(replace(rows, outputs=None), version, ())


def same_row(one: Rows, i: int, other: Rows, j: int) -> bool:
    """Whether row `i` of the one is row `j` of the other; quick where they differ."""
    if one.lengths[i] != other.lengths[j] or one.inputs.keys() != other.inputs.keys():
        return False
    pairs = [(column, other.inputs[name]) for name, column in one.inputs.items()]
    if any(a.datatype != b.datatype or a.shapes[i] != b.shapes[j] for a, b in pairs):
        return False
    return all(np.array_equal(a.rows[i], b.rows[j]) for a, b in pairs)


@dataclass(slots=True)
class _Record:
    """`lost`: replicas that were lost while the row was there."""

    until: float
    lost: set[str] = field(default_factory=set)
    convicted: bool = False


class CrashRecords:
    """Times are seconds on the caller's monotonic clock. `convictions`: how many, ever."""

    def __init__(self, terms: CrashTerms) -> None:
        self.terms = terms
        self.convictions = 0
        self._swept_at = 0.0
        self._rows: OrderedDict[bytes, _Record] = OrderedDict()
        self._spent: OrderedDict[str, deque[float]] = OrderedDict()

    def __bool__(self) -> bool:
        """Whether anything is known of anybody, so that newcomers must be looked at."""
        return bool(self._rows or self._spent)

    def lost_with(self, sent: SentBatch, now: float) -> Iterator[tuple[Rows, int]]:
        """A replica was lost with this lease; the rows that this convicts. Who has left meanwhile
        has sent them all the same."""
        begun_alone = sent.lease.alone and sent.begun
        for pending, (_, row) in zip(sent.members, sent.lease.rows, strict=True):
            (key,) = fingerprints(pending.rows.only([row]), sent.version)
            tenant = pending.request.tenant
            if self.lost(key, tenant, sent.lease.replica_id, now, begun_alone=begun_alone):
                yield pending.rows, row

    def lost(
        self, key: bytes, tenant: str, replica_id: str, now: float, *, begun_alone: bool
    ) -> bool:
        """A replica was lost while this row was there; whether that convicts it."""
        record = self._find(key, now)
        if record is None:
            record = self._rows[key] = _Record(0.0)
            if len(self._rows) > _MOST_ROWS:
                self._rows.popitem(last=False)
        record.lost.add(replica_id)
        record.until = now + self.terms.refuse_s
        if record.convicted or not begun_alone or len(record.lost) < 2:
            return False
        record.convicted = True
        self.convictions += 1
        self._charge(tenant, len(record.lost), now)
        return True

    def lost_elsewhere(self, keys: Sequence[bytes], tenant: str, now: float) -> None:
        """Another version of the model lost a replica with these rows: one loss, for each."""
        for key in keys:
            self.lost(key, tenant, _ELSEWHERE, now, begun_alone=False)

    def answered_alone(self, sent: SentBatch) -> None:
        """Its replica lives."""
        for pending, (_, row) in zip(sent.members, sent.lease.rows, strict=True):
            (key,) = fingerprints(pending.rows.only([row]), sent.version)
            record = self._rows.get(key)
            if record is not None and not record.convicted:
                del self._rows[key]

    def check(self, keys: Sequence[bytes], tenant: str, now: float) -> bool:
        """Whether any of a newcomer's rows is suspect. Raises RowConvicted, OverOwnLimit."""
        if now >= self._swept_at + _SWEEP_S:
            self._sweep(now)
        wait_s = self._wait_s(tenant, now)
        if wait_s > 0.0:
            raise errors.OverOwnLimit(
                f"rows of this tenant have ended {self.terms.tenant_budget} replicas of the model "
                f"within {self.terms.refuse_s:g} s (crashes.tenant_budget); others may go on",
                retry_after_s=wait_s,
                reason=CRASH_BUDGET,
            )
        records = [record for key in keys if (record := self._find(key, now)) is not None]
        if any(record.convicted for record in records):
            raise self.conviction()
        return bool(records)

    def conviction(self) -> errors.RowConvicted:
        return errors.RowConvicted(
            "this input has ended two replicas of the model and is refused: do not send it again"
        )

    def _sweep(self, now: float) -> None:
        self._swept_at = now
        for key in [key for key, record in self._rows.items() if record.until <= now]:
            del self._rows[key]
        for tenant in list(self._spent):
            self._wait_s(tenant, now)

    def _find(self, key: bytes, now: float) -> _Record | None:
        record = self._rows.get(key)
        if record is None:
            return None
        if record.until <= now:
            del self._rows[key]
            return None
        self._rows.move_to_end(key)
        return record

    def _charge(self, tenant: str, replicas: int, now: float) -> None:
        spent = self._spent.setdefault(tenant, deque(maxlen=max(1, self.terms.tenant_budget)))
        spent.extend([now + self.terms.refuse_s] * replicas)
        self._spent.move_to_end(tenant)
        if len(self._spent) > _MOST_TENANTS:
            self._spent.popitem(last=False)

    def _wait_s(self, tenant: str, now: float) -> float:
        """Until the tenant has budget again, 0: it has."""
        spent = self._spent.get(tenant)
        if spent is None:
            return 0.0
        while spent and spent[0] <= now:
            spent.popleft()
        if not spent:
            del self._spent[tenant]
        full = self.terms.tenant_budget and len(spent) >= self.terms.tenant_budget
        return spent[0] - now if full else 0.0
