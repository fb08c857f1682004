"""Which version gets one request of a model under rollout, and what is counted of that request?

Of each block of `BLOCK` requests the canary gets its share, at places drawn anew for each block, so
that no pattern in the order of callers makes one caller always meet the same version. A request
moves at most once: to the live version, if the canary did not answer it.
- What the canary did not answer counts as its failure if the canary was at fault. A bad request
  counts only if the live version then answers it.
- Callers who leave, and a tenant's own bounds, count for neither version.
"""

from __future__ import annotations

from collections import Counter
from math import floor
from random import Random
from time import monotonic
from typing import Protocol

from msgspec.structs import replace

from deployments.contract import errors
from deployments.contract.rollout.observations import (
    Observations,
    VersionObservations,
    length_bin,
    step_of,
)
from deployments.gateway.models.served_model import ServedModel
from deployments.gateway.queues.dispatcher_driver import QueueRequest
from routers.api.requests import Reason

_FAULT = 500  # statuses from here on are the server's own
# Endings that the caller brings about: no version is at fault.
_CALLERS_OWN = (errors.CallerLeft, errors.ReaderTooSlow, errors.Unauthorized)
# Reasons of the gateway's own refusals, the same whichever version has the request.
_GATEWAYS_OWN = frozenset(
    {"request_rate", "token_rate", "preprocess_full", "bodies_full", "gateway_full", "draining"}
)
_TENANT_FULL = Reason.TENANT_FULL.value


class Submitted(Protocol):
    """A request in a queue."""

    @property
    def sent(self) -> bool:
        """Whether it was sent to a replica, once at least."""


class CanaryAssignment:
    """One request of a model under rollout."""

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
        self._seen = seen  # where the request is counted
        self.canary = canary  # that has the request now; None: the live version has it
        self.pinned = pinned  # the caller asked for this version: no other may answer
        self.lost = False  # a replica of the canary's was lost with the request
        self.pending: Submitted | None = None  # in the queue of the version that has the request
        self._refusal: errors.HeadraceError | None = None  # the canary's
        self._repeatable = True
        self._since = 0.0  # when the version that has the request got it

    @property
    def began_live(self) -> bool:
        """Whether the request went to the live version at once."""
        return self.canary is None and self._refusal is None

    # ---- on its way ---------------------------------------------------------------------------

    def begins(self) -> None:
        """The version that has the request gets it now; its latency counts from here."""
        self._since = monotonic()

    def asks(self, demand: QueueRequest, slo_s: float) -> QueueRequest:
        """The demand for the queue of the version that has the request. A canary's queue must end
        the request early enough for the live version to answer within its SLO, `slo_s`, if there is
        time for both. A canary may retry it only if it has another replica. Unchanged for a pinned
        request."""
        canary = self.canary
        if canary is None or self.pinned:
            return demand
        self._repeatable = demand.repeatable and canary.description.scheduling.retry
        _, left_s = demand.left_at(monotonic())  # some has passed since it was made
        return replace(
            demand,
            budget_s=demand.budget_s - (slo_s if left_s >= 2 * slo_s else 0.0),
            repeatable=demand.repeatable and canary.replicas > 1,
        )

    def goes_on(self, refusal: errors.HeadraceError) -> bool:
        """Whether the live version has the request from now on, after the canary's refusal. Not
        where the caller or the gateway itself ended it, nor where the request may have run and must
        not run twice."""
        if self.canary is None or self.pinned or isinstance(refusal, _CALLERS_OWN):
            return False
        if refusal.reason in _GATEWAYS_OWN:
            return False
        if self.pending is not None and self.pending.sent and not self._repeatable:
            return False
        self.canary, self.pending, self._refusal = None, None, refusal
        self.lost = isinstance(refusal, errors.ReplicaLost | errors.RowQuarantined)
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
        """Count an answer of the version that has the request. `length`: of its longest row.
        `latency_s`; None: since `begins`. `token_s`: of a request that generates, the mean time
        from one token to the next. Not `ran`: some of its rows were run for other requests, so its
        latency says nothing. A pinned request counts for nothing: its caller would choose what is
        compared."""
        if self.pinned:
            return
        refusal = self._refusal
        if refusal is not None and not _is_fault(refusal) and refusal.reason != _TENANT_FULL:
            # The canary called the request bad, and the live version has answered it.
            count_failure(self._seen.canary, refusal.reason)
        took_s = monotonic() - self._since if latency_s is None else latency_s
        count_answer(self._version(), length, took_s if ran else None)
        if token_s is not None:
            self._version().token_s[step_of(token_s)] += 1

    def failed(self, error: errors.HeadraceError) -> None:
        """Count a failure: the version that has the request did not answer, and no other one
        will."""
        if _is_fault(error) and not self.pinned:
            count_failure(self._version(), error.reason)

    def _version(self) -> VersionObservations:
        return self._seen.live if self.canary is None else self._seen.canary


def _is_fault(error: errors.HeadraceError) -> bool:
    return error.status >= _FAULT and error.reason not in _GATEWAYS_OWN


def count_answer(seen: VersionObservations, length: int, latency_s: float | None) -> None:
    """Count an answered request. `length`: of its longest row; `latency_s`, None: it says nothing
    about the version."""
    seen.answered += 1
    if latency_s is not None:
        seen.latencies.setdefault(length_bin(length), Counter())[step_of(latency_s)] += 1


def count_failure(seen: VersionObservations, reason: str) -> None:
    seen.failed += 1
    seen.reasons[reason] += 1


BLOCK = 20
_ROUNDING = 1e-9  # by how much a product of floats may be too small


class EvenShare:
    """One share of one model's requests."""

    def __init__(self, share: float, rng: Random) -> None:
        self._share = share  # 0..1
        self._rng = rng
        self._seen = 0  # requests
        self._places: frozenset[int] = frozenset()  # in the present block, that belong to it

    def takes(self) -> bool:
        """Whether the next request belongs to the share."""
        place = self._seen % BLOCK
        if not place:
            due = self._due_of(self._seen + BLOCK) - self._due_of(self._seen)
            self._places = frozenset(self._rng.sample(range(BLOCK), due))
        self._seen += 1
        return place in self._places

    def _due_of(self, requests: int) -> int:
        """How many of the first `requests` belong to the share."""
        return floor(requests * self._share + _ROUNDING)
