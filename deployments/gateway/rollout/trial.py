"""One request of a model under rollout: which version has it, and what is counted of it?

A request begins at the canary or at the live version, and moves at most once: to the live version,
where the canary did not answer it. What the canary did not answer counts as its failure if nobody
was at fault but itself: a bad request counts only where the live version then answers it. Callers
who leave, and bounds of a tenant's own, count for neither version.
"""

from __future__ import annotations

from collections import Counter
from time import monotonic
from typing import Protocol

from deployments.contract import errors
from deployments.contract.rollout.latencies import step_of
from deployments.contract.rollout.observations import (
    Observations,
    VersionObservations,
    length_bin,
)
from deployments.gateway.queues.core_loop import Demand
from deployments.gateway.queues.served_model import ServedModel
from routers.api.requests import Reason

_FAULT = 500  # statuses from here on are the server's own
_NOBODYS = (errors.CallerLeft, errors.ReaderTooSlow, errors.Unauthorized)
# Refusals of the gateway itself, whichever version has the request.
_NO_VERSIONS = frozenset(
    {"request_rate", "token_rate", "preprocess_full", "bodies_full", "gateway_full", "draining"}
)
_TENANT_FULL = Reason.TENANT_FULL.value


class Submitted(Protocol):
    """What waits in a queue. `sent`: it has been sent to a replica, once at least."""

    @property
    def sent(self) -> bool: ...


class Trial:
    """`seen`: where it is counted. `canary`: who has it first, None: the live version. `pinned`:
    its caller asked for the version, so that no other may answer. `pending`:
    in the queue of the version that has it. `lost`: a replica of the canary's was lost with it."""

    __slots__ = (
        "_refusal",
        "_repeatable",
        "_seen",
        "_since",
        "canary",
        "lost",
        "pending",
        "pinned",
    )

    def __init__(self, seen: Observations, canary: ServedModel | None, *, pinned: bool) -> None:
        self._seen = seen
        self.canary = canary
        self.pinned = pinned
        self.lost = False
        self.pending: Submitted | None = None
        self._refusal: errors.HeadraceError | None = None
        self._repeatable = True
        self._since = 0.0

    @property
    def began_live(self) -> bool:
        """Whether the canary has nothing to do with it."""
        return self.canary is None and self._refusal is None

    # ---- on its way ---------------------------------------------------------------------------

    def begins(self) -> None:
        """Its version gets it now."""
        self._since = monotonic()

    def asks(self, demand: Demand, slo_s: float) -> Demand:
        """What it may ask of the canary's queue: to end early enough for the live version to
        answer within its own SLO, where there is time for both; and to run again after a loss only
        where another replica of the canary could."""
        canary = self.canary
        if canary is None or self.pinned:
            return demand
        self._repeatable = demand.repeatable and canary.description.scheduling.retry
        left_s = demand.expires_s
        return demand._replace(
            expires_s=left_s - slo_s if left_s >= 2 * slo_s else left_s,
            repeatable=demand.repeatable and canary.replicas > 1,
        )

    def goes_on(self, refusal: errors.HeadraceError) -> bool:
        """Whether the live version answers what the canary did not, from now on. Never what the
        caller did to itself, nor what must not run twice and may have run."""
        if self.canary is None or self.pinned or isinstance(refusal, _NOBODYS):
            return False
        if refusal.reason in _NO_VERSIONS:
            return False
        if self.pending is not None and self.pending.sent and not self._repeatable:
            return False
        self.canary, self.pending, self._refusal = None, None, refusal
        self.lost = isinstance(refusal, errors.ReplicaLost | errors.RowConvicted)
        if _is_fault(refusal):
            count_failure(self._seen.canary, refusal.reason)
        return True

    # ---- how it ends --------------------------------------------------------------------------

    def answered(
        self,
        length: int,
        latency_s: float | None = None,
        *,
        token_s: float | None = None,
        ran: bool = True,
    ) -> None:
        """By the version that has it; `length`: of its longest row. `latency_s`: unless it is now.
        `token_s`: of a generation, the mean time from one of its tokens to the next.
        Not `ran`: others have run some of it, so that its time says nothing. Who asks for a version
        would choose what is compared: that counts for nothing."""
        if self.pinned:
            return
        refusal = self._refusal
        if refusal is not None and not _is_fault(refusal) and refusal.reason != _TENANT_FULL:
            # The live version takes what it called bad.
            count_failure(self._seen.canary, refusal.reason)
        took_s = monotonic() - self._since if latency_s is None else latency_s
        count_answer(self._version(), length, took_s if ran else None)
        if token_s is not None:
            self._version().token_s[step_of(token_s)] += 1

    def failed(self, error: errors.HeadraceError) -> None:
        """The version that has it did not answer, and no other version will."""
        if _is_fault(error) and not self.pinned:
            count_failure(self._version(), error.reason)

    def _version(self) -> VersionObservations:
        return self._seen.live if self.canary is None else self._seen.canary


def _is_fault(error: errors.HeadraceError) -> bool:
    return error.status >= _FAULT and error.reason not in _NO_VERSIONS


def count_answer(seen: VersionObservations, length: int, latency_s: float | None) -> None:
    """`length`: of its longest row; `latency_s` None: it says nothing of the version."""
    seen.answered += 1
    if latency_s is not None:
        seen.latencies.setdefault(length_bin(length), Counter())[step_of(latency_s)] += 1


def count_failure(seen: VersionObservations, reason: str) -> None:
    seen.failed += 1
    seen.reasons[reason] += 1
