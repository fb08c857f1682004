"""Which rows have ended replicas, and whose they were.

A row is known by its fingerprint (`response_cache.row_keys`). One that was on a replica when that
was lost is *suspect*: it travels alone from then on. It is acquitted when it is answered alone, and
*convicted* when a second replica is lost after it had begun there alone: then it is refused for a
while. A tenant pays for each replica that its convicted rows have ended, and for those that one of
its rows alone may have ended (`unexplained_losses`); it is refused for a while once it has spent
its budget. Bounded in number, the least recently seen forgotten first. Of one model at one gateway,
which tells the others, and counts what they tell (`crash_exchange`). Prompts that stream have rules
of their own (`prompt_suspects`). For the event loop's thread alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import nlargest

import numpy as np

from deployments.contract import errors
from deployments.contract.crash_reports import CrashedInput, CrashReport
from deployments.contract.description import CrashTerms
from deployments.gateway.queues.batch_calls import SentBatch
from deployments.gateway.queues.crashes_elsewhere import CrashesElsewhere, latest
from deployments.gateway.queues.unexplained_losses import LostRow, UnexplainedLosses
from deployments.gateway.reuse.response_cache import row_keys
from deployments.gateway.rows.types import Rows

_MOST_ROWS = 4096
_MOST_TENANTS = 1024
CRASH_BUDGET = "crash_budget"  # why a tenant is refused
_ELSEWHERE = "another version's"
_SWEEP_S = 10.0  # how often what is over is forgotten, so that newcomers need no look again
_MOST_REPLICAS = 8  # of one input that others are told of
_LAG_S = 15.0
"""What was only heard is told on while it has longer left than a word may be on its way: two
gateways must not keep telling each other what is over."""


def fingerprints(rows: Rows, version: str) -> list[bytes]:
    """One a row, whatever outputs are asked for, the same at every gateway. Takes about 1 ns a
    byte."""
    return row_keys(replace(rows, outputs=None), version, (), secret=b"")


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
    """`lost`: replicas that were lost while the input was there. `own`: as this gateway has seen,
    not only heard."""

    until: float
    lost: set[str] = field(default_factory=set)
    convicted: bool = False
    own: bool = False


def _nobody() -> None:
    pass


class CrashRecords:
    """Times are seconds on the caller's monotonic clock. `convictions`: how many of this gateway's
    own, ever. `on_loss` is called when the others are to be told of something."""

    def __init__(self, terms: CrashTerms, ended: str = "replicas of the model") -> None:
        self.terms = terms
        self._ended = ended  # what the inputs have ended
        self.convictions = 0
        self.on_loss: Callable[[], None] = _nobody
        self.elsewhere = CrashesElsewhere()
        self._swept_at = 0.0
        self._rows: OrderedDict[bytes, _Record] = OrderedDict()
        self._spent: OrderedDict[str, dict[str, float]] = OrderedDict()
        self._unexplained = UnexplainedLosses()

    def __bool__(self) -> bool:
        """Whether anything is known of anybody, so that newcomers must be looked at."""
        return bool(self._rows or self._spent or self.elsewhere or self._unexplained)

    # ---- what this gateway sees ---------------------------------------------------------------

    def lost_with(self, sent: SentBatch, now: float) -> Iterator[tuple[Rows, int]]:
        """A replica was lost with this lease; the rows that this convicts. Who has left meanwhile
        has sent them all the same."""
        begun_alone = sent.lease.alone and sent.begun
        replica_id = sent.lease.replica_id
        there: list[LostRow] = []
        for pending, (_, row) in zip(sent.members, sent.lease.rows, strict=True):
            (key,) = fingerprints(pending.rows.only([row]), sent.version)
            tenant = pending.request.tenant
            if pending.answers[row] is None:  # else a copy has answered it
                there.append(LostRow(key, tenant, pending.request.request_id))
            if self.lost(key, tenant, replica_id, now, begun_alone=begun_alone):
                yield pending.rows, row
        self.lost_together(replica_id, there, now)

    def lost_together(self, replica_id: str, rows: Collection[LostRow], now: float) -> None:
        """A replica was lost while all of these were there, besides those said before: the tenant
        of one may have to pay although it is never convicted."""
        if self.terms.tenant_budget:
            self._unexplained.lost(replica_id, rows, now)

    def lost(
        self, key: bytes, tenant: str, replica_id: str, now: float, *, begun_alone: bool
    ) -> bool:
        """A replica was lost while this row was there; whether it is convicted."""
        replicas = self.note(key, tenant, replica_id, now)
        if not self.is_convicted(key) and begun_alone and len(replicas) >= 2:
            self.convict(key, tenant, now)
        return self.is_convicted(key)

    def note(self, key: bytes, tenant: str, replica_id: str, now: float) -> frozenset[str]:
        """A replica was lost while this input was there; all that were, at other gateways too."""
        record = self._find(key, now) or self._add(key)
        known = self.elsewhere.replicas(key, now)
        if record.convicted and replica_id not in record.lost:
            self._charge(tenant, [replica_id], now)
        record.lost.add(replica_id)
        record.until, record.own = now + self.terms.refuse_s, True
        self.on_loss()
        return known | record.lost

    def convict(self, key: bytes, tenant: str, now: float) -> None:
        """Of an input that a loss was noted for."""
        record = self._rows[key]
        record.lost |= self.elsewhere.replicas(key, now)
        record.convicted = True
        self.convictions += 1
        self._charge(tenant, record.lost, now)

    def is_convicted(self, key: bytes) -> bool:
        record = self._rows.get(key)
        return record is not None and record.convicted

    def lost_elsewhere(self, keys: Sequence[bytes], tenant: str, now: float) -> None:
        """Another version of the model lost a replica with these rows: one loss, for each."""
        for key in keys:
            self.lost(key, tenant, f"{_ELSEWHERE} {key.hex()}", now, begun_alone=False)

    def answered_alone(self, sent: SentBatch) -> None:
        """Its replica lives."""
        for pending, (_, row) in zip(sent.members, sent.lease.rows, strict=True):
            (key,) = fingerprints(pending.rows.only([row]), sent.version)
            self.acquit(key)

    def answered_among_others(self, sent: SentBatch) -> None:
        """Its replica lives: none of these has ended another. Only rows of requests that were sent
        before can have been lost: to look at every row of every batch would take milliseconds of
        the loop."""
        if not self._unexplained:
            return
        for pending, (_, row) in zip(sent.members, sent.lease.rows, strict=True):
            if pending.sent_again:
                (key,) = fingerprints(pending.rows.only([row]), sent.version)
                self._unexplained.answered(key)

    def acquit(self, key: bytes) -> None:
        """It was answered: what was lost with it before had another cause."""
        if not self.is_convicted(key):
            self._rows.pop(key, None)
            self._unexplained.answered(key)
            self.elsewhere.answered(key)

    # ---- what others see ----------------------------------------------------------------------

    def told(self, most: int, now: float) -> CrashReport:
        """What other gateways are to hear: at most so many inputs, the newest, and tenants."""
        known = [(r.until, key) for key, r in self._rows.items() if _is_told(r, now)]
        inputs = [self._as_told(key, now) for _, key in nlargest(most, known)]
        tenants = [*self._spent, *(self._unexplained.accused.keys() - self._spent.keys())]
        left = {t: self._left(t, now) for t in (tenants[-most:] if most else ())}
        return CrashReport(tuple(inputs), {tenant: each for tenant, each in left.items() if each})

    def _left(self, tenant: str, now: float) -> dict[str, float]:
        """Seconds that each replica counts yet."""
        accused = self._unexplained.accused.get(tenant, {})
        until = {r: at + self.terms.refuse_s for r, at in accused.items()}
        spent = latest(self._spent.get(tenant, {}), until)
        return {replica_id: u - now for replica_id, u in spent.items() if u > now}

    def hear(self, reports: Sequence[CrashReport], others: int, now: float) -> set[bytes]:
        """What other gateways have said last, `others` in number, those included that do not know
        the model; the inputs that are convicted by this."""
        self.elsewhere.hear(reports, others, now)
        said = [each for report in reports for each in report.inputs if each.convicted]
        fresh = [each for each in said if not self._knows_conviction(each.key, now)]
        for each in fresh:
            record = self._rows.get(each.key) or self._add(each.key)
            record.convicted = True
            record.lost |= set(each.replicas)
            record.until = now + min(each.left_s, self.terms.refuse_s)
        return {each.key for each in fresh}

    # ---- who comes ----------------------------------------------------------------------------

    def check(self, keys: Sequence[bytes], tenant: str, now: float) -> bool:
        """Whether any of a newcomer's rows is suspect. Raises RowConvicted, OverOwnLimit."""
        if now >= self._swept_at + _SWEEP_S:
            self._sweep(now)
        wait_s = self._wait_s(tenant, now)
        if wait_s > 0.0:
            raise errors.OverOwnLimit(
                f"{self.terms.tenant_budget} replicas of the model have ended with rows of this "
                f"tenant within {self.terms.refuse_s:g} s (crashes.tenant_budget); others may go "
                "on",
                retry_after_s=wait_s,
                reason=CRASH_BUDGET,
            )
        records = [record for key in keys if (record := self._find(key, now)) is not None]
        if any(record.convicted for record in records):
            raise self.conviction()
        return bool(records) or any(self.elsewhere.replicas(key, now) for key in keys)

    def conviction(self) -> errors.RowConvicted:
        return errors.RowConvicted(
            f"this input has ended several {self._ended} and is refused: do not send it again"
        )

    # ---- the books ----------------------------------------------------------------------------

    def _sweep(self, now: float) -> None:
        self._swept_at = now
        self.elsewhere.sweep(now)
        self._unexplained.sweep(now - self.terms.refuse_s)
        for key in [key for key, record in self._rows.items() if record.until <= now]:
            del self._rows[key]
        for tenant in list(self._spent):
            self._forget_paid(tenant, now)

    def _find(self, key: bytes, now: float) -> _Record | None:
        record = self._rows.get(key)
        if record is None:
            return None
        if record.until <= now:
            del self._rows[key]
            return None
        self._rows.move_to_end(key)
        return record

    def _add(self, key: bytes) -> _Record:
        record = self._rows[key] = _Record(0.0)
        if len(self._rows) > _MOST_ROWS:
            self._rows.popitem(last=False)
        return record

    def _knows_conviction(self, key: bytes, now: float) -> bool:
        record = self._find(key, now)
        return record is not None and record.convicted

    def _as_told(self, key: bytes, now: float) -> CrashedInput:
        record = self._rows[key]
        replicas = tuple(sorted(record.lost)[:_MOST_REPLICAS])
        return CrashedInput(key, replicas, record.until - now, record.convicted)

    def _charge(self, tenant: str, replicas: Collection[str], now: float) -> None:
        """Each replica once, whichever of the tenant's inputs were there."""
        spent = self._spent.setdefault(tenant, {})
        for replica_id in replicas:
            spent.setdefault(replica_id, now + self.terms.refuse_s)
        while len(spent) > max(1, self.terms.tenant_budget):
            del spent[next(iter(spent))]
        self._spent.move_to_end(tenant)
        if len(self._spent) > _MOST_TENANTS:
            self._spent.popitem(last=False)

    def _wait_s(self, tenant: str, now: float) -> float:
        """Until the tenant has budget again, 0: it has."""
        self._forget_paid(tenant, now)
        budget = self.terms.tenant_budget
        left = self._left(tenant, now)
        heard = {r: u - now for r, u in self.elsewhere.spent(tenant, now).items()}
        spent = sorted(latest(left, heard).values())
        return spent[-budget] if budget and len(spent) >= budget else 0.0

    def _forget_paid(self, tenant: str, now: float) -> None:
        known = self._spent.get(tenant)
        if known is None:
            return
        left = {replica_id: until for replica_id, until in known.items() if until > now}
        if left:
            self._spent[tenant] = left
        else:
            del self._spent[tenant]


def _is_told(record: _Record, now: float) -> bool:
    if record.own:
        return record.until > now
    return record.until > now + _LAG_S
