"""Which inputs have ended replicas, and whose they were.

`PoisonTracker` knows a row by its fingerprint (`rows.row_keys`). One that was on a replica when
that was lost is *suspect*: it travels alone from then on. It is released when it is answered alone,
and *quarantined* when a second replica is lost after it had begun there alone: then it is refused
for a while. Its tenant pays for each replica that its quarantined rows have ended.
`UnexplainedLosses` says who pays where no row is quarantined, `quarantines` judges prompts that
stream, `RemoteCrashes` holds what other gateways have reported (`crash_exchange`). Bounded in
number, the oldest forgotten first. Of one model at one gateway; for the event loop's thread alone;
times are seconds on the caller's monotonic clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from deployments.contract import errors
from deployments.contract.description import CrashTerms
from deployments.contract.registry import CrashedInput, CrashReport
from deployments.gateway.queues.lease_calls import SentBatch
from deployments.gateway.rows import Rows, row_keys

_MAX_LOSSES = 1024
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
    `accused`: when each replica was lost that counts for a tenant, by tenant.

    Rows that are not run again, because they must not be or their callers left, end one replica
    each and never a second one. Of all rows without an answer that a replica had when it was lost,
    those that are answered later were not the cause. When the rows of one request alone are left,
    its tenant is *accused*: the replica counts in its crash budget until one of them is answered,
    too. A machine that dies takes many replicas at once, which is no tenant's doing: what a tenant
    is accused of within `_AT_ONCE_S` counts once. Of one model at one gateway, which does not know
    what others had there. Bounded in number, the oldest forgotten first. For the event loop's
    thread alone.
    """

    def __init__(self) -> None:
        self.accused: dict[str, dict[str, float]] = {}
        self.losses: OrderedDict[str, _Loss] = OrderedDict()  # by replica, the oldest first
        self._replicas: dict[bytes, set[str]] = {}  # that a row was lost with

    def lost(self, replica_id: str, rows: Iterable[LostRow], now: float) -> None:
        """These rows were on the replica, besides those said before."""
        loss = self.losses.setdefault(replica_id, _Loss(now))
        for row in rows:
            loss.unanswered.setdefault(row.key, row)
            self._replicas.setdefault(row.key, set()).add(replica_id)
        self._judge(replica_id, loss)
        if not loss.unanswered:
            del self.losses[replica_id]
        if len(self.losses) > _MAX_LOSSES:
            self._forget(next(iter(self.losses)))

    def answered(self, key: bytes) -> None:
        """So it was not what ended the replicas that it was on."""
        for replica_id in self._replicas.pop(key, ()):
            loss = self.losses[replica_id]
            del loss.unanswered[key]
            self._judge(replica_id, loss)
            if not loss.unanswered:
                del self.losses[replica_id]

    def sweep(self, before: float) -> None:
        """Forgets what was lost until then."""
        while self.losses and next(iter(self.losses.values())).at <= before:
            self._forget(next(iter(self.losses)))

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
        loss = self.losses.pop(replica_id)
        self._discharge(replica_id, loss)
        for key in loss.unanswered:
            self._replicas[key].discard(replica_id)
            if not self._replicas[key]:
                del self._replicas[key]


_NO_REPLICAS: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Suspicion:
    """What other gateways say of one input."""

    until: float  # when it counts no more
    replicas: frozenset[str]  # lost with the input


class RemoteCrashes:
    """What other gateways have reported of one model."""

    def __init__(self) -> None:
        self.others: int | None = None  # gateways besides this one; None: not known yet
        self._suspicions: dict[bytes, _Suspicion] = {}  # by input
        # By input: replicas that were lost with it elsewhere before it was answered here.
        self._cleared: dict[bytes, frozenset[str]] = {}
        # By tenant: the replicas that its inputs have ended, and until when each counts.
        self._spent: dict[str, dict[str, float]] = {}

    def __bool__(self) -> bool:
        return bool(self._suspicions or self._spent)

    def on_report(self, reports: Sequence[CrashReport], others: int, now: float) -> None:
        """Take in the last reports of those other gateways that know the model. `others`: how many
        gateways there are besides this one."""
        self.others = others
        said = [each for report in reports for each in report.inputs if not each.convicted]
        self._cleared = {k: self._cleared[k] for each in said if (k := each.key) in self._cleared}
        self._suspicions = {}
        for each in said:
            self._add_suspicion(each, now)
        self._spent = {}
        for report in reports:
            for tenant, left in report.spent.items():
                known = self._spent.get(tenant, {})
                self._spent[tenant] = latest(known, {r: now + left_s for r, left_s in left.items()})

    def replicas(self, key: bytes, now: float) -> frozenset[str]:
        """The replicas that other gateways have lost with this input and that nothing has cleared
        it of since."""
        found = self._suspicions.get(key)
        return found.replicas if found is not None and found.until > now else _NO_REPLICAS

    def answered(self, key: bytes) -> None:
        """The input was answered here: earlier losses had another cause."""
        found = self._suspicions.pop(key, None)
        if found is not None:
            self._cleared[key] = self._cleared.get(key, _NO_REPLICAS) | found.replicas

    def was_there(self, key: bytes, replicas: frozenset[str], most: int, now: float) -> bool:
        """Whether another input, at another gateway, was on all but at most `most` of these
        replicas."""
        return any(
            each.until > now and len(replicas - each.replicas) <= most
            for other, each in self._suspicions.items()
            if other != key
        )

    def spent(self, tenant: str, now: float) -> dict[str, float]:
        """The replicas that the tenant's inputs have ended at other gateways, each with the time
        until which it counts."""
        return {r: until for r, until in self._spent.get(tenant, {}).items() if until > now}

    def sweep(self, now: float) -> None:
        """Forget what counts no more; needed where no further report comes."""
        self._suspicions = {k: s for k, s in self._suspicions.items() if s.until > now}
        self._spent = {tenant: left for tenant in self._spent if (left := self.spent(tenant, now))}

    def _add_suspicion(self, said: CrashedInput, now: float) -> None:
        replicas = frozenset(said.replicas) - self._cleared.get(said.key, _NO_REPLICAS)
        known = self._suspicions.get(said.key)
        until = now + said.left_s
        if known is not None:
            known.replicas, known.until = known.replicas | replicas, max(known.until, until)
        elif replicas:
            self._suspicions[said.key] = _Suspicion(until, replicas)


def latest(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """The replicas of both, each with the later of its times."""
    return {**one, **{r: max(until, one.get(r, until)) for r, until in other.items()}}


ALONE, BESIDE, ANYWAY = 2, 3, 5  # losses that quarantine
OTHERS_MISSED = 1  # another gateway's prompt that was on all but so many of them may be the cause


@dataclass(frozen=True, slots=True)
class PromptSuspect:
    """A prompt on a replica that was lost."""

    key: bytes  # its fingerprint
    tenant: str
    lost: frozenset[str]  # all replicas that were lost with it, this one included
    reading: bool  # no token of its answer had come


def quarantines(suspect: PromptSuspect, there: Sequence[PromptSuspect], *, sole: bool) -> bool:
    """Whether the loss quarantines this prompt. `there`: all prompts of this gateway on the
    replica, this one included. `sole`: no other gateway can have had anything on the replica.

    An answer clears a prompt. A prompt is quarantined by the second loss, where it was alone on the
    replica; by the third, where the others there had been on fewer lost replicas, or had tokens
    already while it had none; by the fifth, whoever was there. Where another gateway may have had
    something on the replica, no prompt counts as alone. Changes nothing.
    """
    losses = len(suspect.lost)
    if sole and len(there) == 1:
        return losses >= ALONE
    if losses < BESIDE or losses >= ANYWAY:
        return losses >= ANYWAY
    others = [each for each in there if each.key != suspect.key and len(each.lost) >= losses]
    return not others or (suspect.reading and not any(each.reading for each in others))


_MAX_ROWS = 4096
_MAX_TENANTS = 1024
CRASH_BUDGET = "crash_budget"  # why a tenant is refused
_ELSEWHERE = "another version's"
_SWEEP_S = 10.0  # how often what is over is forgotten, so that newcomers need no look again
_MAX_REPLICAS = 8  # of one input that others are told of
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
    quarantined: bool = False
    own: bool = False


def _nobody() -> None:
    pass


class PoisonTracker:
    """Times are seconds on the caller's monotonic clock. `quarantined_total`: how many of this
    gateway's own, ever. `on_loss` is called when the others are to be told of something."""

    def __init__(self, terms: CrashTerms, ended: str = "replicas of the model") -> None:
        self.terms = terms
        self._ended = ended  # what the inputs have ended
        self.quarantined_total = 0
        self.on_loss: Callable[[], None] = _nobody
        self.elsewhere = RemoteCrashes()
        self._swept_at = 0.0
        self._rows: OrderedDict[bytes, _Record] = OrderedDict()
        self._spent: OrderedDict[str, dict[str, float]] = OrderedDict()
        self._unexplained = UnexplainedLosses()

    def __bool__(self) -> bool:
        """Whether anything is known of anybody, so that newcomers must be looked at."""
        return bool(self._rows or self._spent or self._unexplained.losses or self.elsewhere)

    # ---- what this gateway sees ---------------------------------------------------------------

    def lost_with(self, sent: SentBatch, now: float) -> Iterator[tuple[Rows, int]]:
        """A replica was lost with this lease; the rows that this quarantines. Who has left
        meanwhile has sent them all the same."""
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
        of one may have to pay although it is never quarantined."""
        if self.terms.tenant_budget:
            self._unexplained.lost(replica_id, rows, now)

    def lost(
        self, key: bytes, tenant: str, replica_id: str, now: float, *, begun_alone: bool
    ) -> bool:
        """A replica was lost while this row was there; whether it is quarantined."""
        replicas = self.note(key, tenant, replica_id, now)
        if not self.is_quarantined(key) and begun_alone and len(replicas) >= 2:
            self.quarantine(key, tenant, now)
        return self.is_quarantined(key)

    def note(self, key: bytes, tenant: str, replica_id: str, now: float) -> frozenset[str]:
        """A replica was lost while this input was there; all that were, at other gateways too."""
        record = self._find(key, now) or self._add(key)
        known = self.elsewhere.replicas(key, now)
        if record.quarantined and replica_id not in record.lost:
            self._charge(tenant, [replica_id], now)
        record.lost.add(replica_id)
        record.until, record.own = now + self.terms.refuse_s, True
        self.on_loss()
        return known | record.lost

    def quarantine(self, key: bytes, tenant: str, now: float) -> None:
        """Of an input that a loss was noted for."""
        record = self._rows[key]
        record.lost |= self.elsewhere.replicas(key, now)
        record.quarantined = True
        self.quarantined_total += 1
        self._charge(tenant, record.lost, now)

    def is_quarantined(self, key: bytes) -> bool:
        record = self._rows.get(key)
        return record is not None and record.quarantined

    def lost_elsewhere(self, keys: Sequence[bytes], tenant: str, now: float) -> None:
        """Another version of the model lost a replica with these rows: one loss, for each."""
        for key in keys:
            self.lost(key, tenant, f"{_ELSEWHERE} {key.hex()}", now, begun_alone=False)

    def answered_alone(self, sent: SentBatch) -> None:
        """Its replica lives."""
        for pending, (_, row) in zip(sent.members, sent.lease.rows, strict=True):
            (key,) = fingerprints(pending.rows.only([row]), sent.version)
            self.release(key)

    def answered_among_others(self, sent: SentBatch) -> None:
        """Its replica lives: none of these has ended another. Only rows of requests that were sent
        before can have been lost: to look at every row of every batch would take milliseconds of
        the loop."""
        if not self._unexplained.losses:
            return
        for pending, (_, row) in zip(sent.members, sent.lease.rows, strict=True):
            if pending.sent_again:
                (key,) = fingerprints(pending.rows.only([row]), sent.version)
                self._unexplained.answered(key)

    def release(self, key: bytes) -> None:
        """It was answered: what was lost with it before had another cause."""
        if not self.is_quarantined(key):
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

    def on_report(self, reports: Sequence[CrashReport], others: int, now: float) -> set[bytes]:
        """What other gateways have said last, `others` in number, those included that do not know
        the model; the inputs that are quarantined by this."""
        self.elsewhere.on_report(reports, others, now)
        said = [each for report in reports for each in report.inputs if each.convicted]
        fresh = [each for each in said if not self._knows_quarantine(each.key, now)]
        for each in fresh:
            record = self._rows.get(each.key) or self._add(each.key)
            record.quarantined = True
            record.lost |= set(each.replicas)
            record.until = now + min(each.left_s, self.terms.refuse_s)
        return {each.key for each in fresh}

    # ---- who comes ----------------------------------------------------------------------------

    def check(self, keys: Sequence[bytes], tenant: str, now: float) -> bool:
        """Whether any of a newcomer's rows is suspect. Raises RowQuarantined, OverOwnLimit."""
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
        if any(record.quarantined for record in records):
            raise self.quarantine_error()
        return bool(records) or any(self.elsewhere.replicas(key, now) for key in keys)

    def quarantine_error(self) -> errors.RowQuarantined:
        return errors.RowQuarantined(
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
        if len(self._rows) > _MAX_ROWS:
            self._rows.popitem(last=False)
        return record

    def _knows_quarantine(self, key: bytes, now: float) -> bool:
        record = self._find(key, now)
        return record is not None and record.quarantined

    def _as_told(self, key: bytes, now: float) -> CrashedInput:
        record = self._rows[key]
        replicas = tuple(sorted(record.lost)[:_MAX_REPLICAS])
        return CrashedInput(key, replicas, record.until - now, record.quarantined)

    def _charge(self, tenant: str, replicas: Collection[str], now: float) -> None:
        """Each replica once, whichever of the tenant's inputs were there."""
        spent = self._spent.setdefault(tenant, {})
        for replica_id in replicas:
            spent.setdefault(replica_id, now + self.terms.refuse_s)
        while len(spent) > max(1, self.terms.tenant_budget):
            del spent[next(iter(spent))]
        self._spent.move_to_end(tenant)
        if len(self._spent) > _MAX_TENANTS:
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
