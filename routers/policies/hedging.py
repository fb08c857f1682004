"""When has a batch, or a first token, taken so long that another replica should be asked as well?

At a quantile (95 % unless set) of measured over predicted seconds in its bucket and group, times
its own prediction: of batches that take as long as predicted one in twenty is copied, whatever the
prediction is worth. Time counts from the batch's own predicted start, or from when the engine began
with the prompt: waiting behind a running batch is not slowness, waiting behind a straggler is. A
lease far beyond its prediction is overdue, and so is its replica, whether or not a copy is sent.

`core.hedger` and `core.stream_hedger` carry it out, and `Budget` pays. Sources: Dean and Barroso,
The Tail at Scale (CACM'13); a fixed delay as gRPC's hedgingDelay (A6).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import inf

from routers.api.settings import HedgeParameters
from routers.estimates.averages import RatioHistogram
from routers.state.replica_state import Lease

_MIN_S = 0.001  # the shortest delay
_OVERDUE = 3.0  # times the prediction
_MAX_BUCKETS = 64  # whose ratios are kept
MAX_READ = 512
"""Tokens of a prompt that a copy may have to read. With prompts of 1,100 tokens, copies made the
p99 of first tokens 119 ms instead of 81, since all others wait while prompts are read again."""


def copy_delay_s(
    settings: HedgeParameters, predicted_s: float, ratios: RatioHistogram | None
) -> float | None:
    """Seconds after which a copy is due; None: never, as far as is known now. `predicted_s`: of
    this batch, or to this first token; `ratios`: measured over predicted seconds of its bucket in
    its group, None: none was measured. A bucket with too few measurements is not hedged."""
    if settings.fixed_delay_s is not None:
        return settings.fixed_delay_s
    if ratios is None or ratios.samples < settings.min_samples:
        return None
    return ratios.quantile(settings.quantile) * predicted_s


class Finding(Enum):
    """What a look at a lease has found."""

    EARLY = "early"  # nothing yet
    RACE = "race"  # from now on another replica should be asked
    OVERDUE = "overdue"
    BEHIND = "behind"  # it waits behind a slow lease, and is not slow itself


class Hedging:
    """Measured over predicted seconds of batches, by group and bucket, and what they say of a
    lease."""

    def __init__(self, settings: HedgeParameters) -> None:
        self.settings = settings
        self.frozen = False
        self._ratios: dict[tuple[str, int], RatioHistogram] = {}

    def observe(self, lease: Lease, now: float) -> None:
        """The lease took until now, or longer: one that was given up after its delay counts as
        slow."""
        if self.frozen or lease.predicted_s <= 0.0 or lease.replica.streams:
            return
        kind = lease.replica.group.name, lease.batch.edge
        ratios = self._ratios.get(kind)
        if ratios is None:
            if len(self._ratios) >= _MAX_BUCKETS:
                del self._ratios[next(iter(self._ratios))]
            ratios = self._ratios[kind] = RatioHistogram()
        ratios.observe((now - expected_start(lease)) / lease.predicted_s)

    def delay_s(self, lease: Lease) -> float | None:
        """Seconds from its start after which to race it; None: never."""
        if self.settings.mode == "off":
            return None
        delay_s = copy_delay_s(self.settings, lease.predicted_s, self._ratios_of(lease))
        return None if delay_s is None else max(_MIN_S, delay_s)

    def ratio(self, lease: Lease, quantile: float) -> float | None:
        """The quantile of measured over predicted seconds of batches in the lease's group and
        bucket; None: too few were measured."""
        ratios = self._ratios_of(lease)
        if ratios is None or ratios.samples < self.settings.min_samples:
            return None
        return ratios.quantile(quantile)

    def _ratios_of(self, lease: Lease) -> RatioHistogram | None:
        return self._ratios.get((lease.replica.group.name, lease.batch.edge))

    def check_at(self, lease: Lease) -> float:
        """When to look at the lease: it will be due for a copy then, or overdue."""
        delay_s = None if lease.hedge_due else self.delay_s(lease)
        if delay_s is None:
            delay_s = max(_MIN_S, _OVERDUE * lease.predicted_s)
        return expected_start(lease) + delay_s

    def judge(self, lease: Lease, now: float) -> Finding:
        """What is to be done about the lease, now that it is looked at."""
        if self.check_at(lease) > now:
            return Finding.EARLY
        if not lease.hedge_due and self.delay_s(lease) is not None:
            return Finding.RACE
        return Finding.OVERDUE if lease.replica.head() is lease else Finding.BEHIND


def expected_start(lease: Lease) -> float:
    """When the time of its answer begins to count. If the replica reported the start, that report
    was under way as long as the answer will be; otherwise the whole transport is added."""
    return lease.starts_at if lease.opened else lease.starts_at + (lease.replica.transport_s or 0.0)


# -- streams: a copy goes where there is room for all of it, where its prompt need not wait behind
# long prompts, and where its first token could still be in time. A copy costs what is done twice
# until one of the two has produced a token: reading the prompt, and that token.


@dataclass(frozen=True, slots=True)
class FirstTokenWait:
    """How long one lease waits for its first token."""

    since: float  # when its replica began with it
    predicted_s: float  # from there to its first token
    ratios: RatioHistogram | None  # measured over predicted seconds of its bucket; None: unmeasured
    is_long: bool = False  # its prompt takes long to read, on any replica


@dataclass(frozen=True, slots=True)
class CopyOffer:
    """A replica that could take the copy."""

    has_room: bool  # for all of it
    reads: bool  # its prompt may be read beside the long prompts there
    first_s: float  # predicted seconds to its first token there
    cost_s: float  # predicted seconds of what would be done twice


def race_at(wait: FirstTokenWait, settings: HedgeParameters) -> float:
    """When to send a copy; inf: never, as far as is known now."""
    if settings.mode == "off" or wait.is_long:
        return inf
    delay_s = copy_delay_s(settings, wait.predicted_s, wait.ratios)
    return inf if delay_s is None else wait.since + max(_MIN_S, delay_s)


def may_take(offer: CopyOffer, deadline: float, budget_s: float, now: float) -> bool:
    """Whether the copy may be sent there. `deadline`: of its first token; `budget_s`: what copies
    may cost at the moment."""
    if not (offer.has_room and offer.reads):
        return False
    return offer.cost_s <= budget_s and now + offer.first_s < deadline
