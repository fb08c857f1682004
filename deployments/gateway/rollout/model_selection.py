"""Which model takes a request: the requested one, or the cheaper one that it names as its fallback?

For a model under rollout also: which version? The canary takes its share; the live version takes
the rest, and what the canary does not answer.

The fallback takes what the requested model refuses because of load, or cannot take because it is
not ready. It does not take requests that failed or that a tenant's own bound refuses. It takes
nothing from a tenant that may not use it or a caller who asks for a version, and nothing whose
input or expected answer would mean something else to it. There is one hop: what the fallback
refuses as well gets the requested model's refusal. The fallback's queue, admission and cache are
its own; the SLO (deadline and timeout, from the request's arrival) stays the requested
model's.
"""

from __future__ import annotations

from math import inf

from msgspec.structs import replace

from deployments.contract import errors
from deployments.contract.description import ModelDescription, Scheduling
from deployments.gateway.models.catalogue import Catalogue
from deployments.gateway.models.served_model import ServedModel
from deployments.gateway.queues.dispatcher_driver import QueueRequest
from deployments.gateway.recording.recorder import Recorder
from deployments.gateway.rollout.canary_assignment import CanaryAssignment, Submitted
from deployments.gateway.rows import Rows
from deployments.gateway.tenancy.tenants import Tenant
from routers.api.requests import Reason
from runtimes.types import TensorSpec

# Reasons of refusals after which the fallback may take the request.
_TURNED_AWAY = frozenset(
    reason.value for reason in (Reason.QUEUE_FULL, Reason.LATE, Reason.SHED, Reason.CLOSED)
) | {errors.NotReady.code}
# Errors that say that the fallback did not take the request: then the requested model's refusal is
# what the caller is told.
_NOT_TAKEN = (errors.BadRequest, errors.NotReady, errors.Overloaded)


class ModelSelection:
    """Where one request goes at the moment: to `model`, under the requested model's
    `scheduling`."""

    __slots__ = (
        "_models",
        "_name",
        "_pinned",
        "_refusal",
        "_requested",
        "_tenant",
        "assignment",
        "model",
    )  # fmt: skip

    def __init__(
        self,
        models: Catalogue,
        tenant: Tenant,
        name: str,
        version: str | None,
        assignment: CanaryAssignment | None = None,
    ) -> None:
        """Raises NotFound, and NotReady where no fallback takes the request."""
        self.assignment = assignment  # None: the model is not under rollout
        self._models, self._tenant, self._name = models, tenant, name
        self._pinned = version is not None
        # The requested model's, once the request went to the fallback.
        self._refusal: errors.HeadraceError | None = None
        self._requested: ModelDescription | None = None
        if assignment is not None and assignment.canary is not None:
            self.model = assignment.canary
            self._requested = models.served.get(name, self.model).description
        else:
            self._find_requested(version)

    def _find_requested(self, version: str | None) -> None:
        """Select the requested model, or its fallback. Raises NotFound and NotReady."""
        try:
            self.model = self._models.find(self._name, version)
            self._requested = self.model.description
        except errors.NotReady as refusal:
            known = self._models.served.get(self._name)
            if known is not None:
                self._requested = known.description
                known.queue.missed(self._tenant.name)
            self.fall_back(refusal)

    @property
    def on_canary(self) -> bool:
        """Whether a canary has the request."""
        return self.assignment is not None and self.assignment.canary is not None

    @property
    def lost_at_canary(self) -> bool:
        """Whether a canary had the request before, and lost a replica with it."""
        return self.assignment is not None and self.assignment.lost

    @property
    def candidate_versions(self) -> list[ModelDescription]:
        """The selected version; with a canary also the live one, which may still answer."""
        own = self.model.description
        return [own, self._requested] if self.on_canary and self._requested else [own]

    def asks(self, demand: QueueRequest) -> QueueRequest:
        """The demand for the selected model's queue. What fell back is no first request there. A
        canary's queue has less time, so that the live version can still answer
        (`CanaryAssignment.asks`)."""
        if self.assignment is not None:
            # A stream keeps its whole time: it must not be ended half-way.
            streams = self.model.description.generating is not None
            demand = self.assignment.asks(demand, inf if streams else self.scheduling.slo_s)
        return demand if self._refusal is None else replace(demand, is_first=False)

    def begins(self) -> None:
        """The selected version gets the request now."""
        if self.assignment is not None:
            self.assignment.begins()

    def submitted(self, pending: Submitted | None) -> None:
        """The request waits in the selected version's queue; None: it left the queue unrun."""
        if self.assignment is not None:
            self.assignment.pending = pending

    def answered(
        self,
        rank: int,
        lengths: tuple[int, ...],
        latency_s: float | None = None,
        *,
        token_s: float | None = None,
        ran: bool = True,
    ) -> None:
        """Count an answer of the selected version. `rank`: of the request's priority; `lengths`: of
        its rows; the rest as of `CanaryAssignment.answered`. What a canary answers counts as
        demand of the live version too."""
        assignment = self.assignment
        if assignment is None or self._refusal is not None:
            return
        assignment.answered(max(lengths), latency_s, token_s=token_s, ran=ran)
        live = self._models.served.get(self._name)
        if assignment.canary is not None and live is not None:
            of_rows = () if live.description.generating is not None else lengths
            live.queue.served_elsewhere(self._tenant.name, rank, of_rows)

    @property
    def lengths_recorder(self) -> Recorder | None:
        """The recorder of a request that generates, the live version's also for a canary's; None:
        it is not recorded."""
        model = self._models.served.get(self._name) if self.on_canary else self.model
        return model.recorder if model is not None and self._tenant.record else None

    def record(self, rows: Rows) -> None:
        """Record rows that the canary has answered, with the live version's recorder."""
        live = self._models.served.get(self._name)
        if not self.on_canary or live is None or live.recorder is None or not self._tenant.record:
            return
        if live.queue.terms.take(self.model.queue.terms):
            live.recorder.offer(self._tenant.name, rows)

    def failed(self, error: errors.HeadraceError) -> None:
        """Count a failure after part of an answer was sent."""
        if self.assignment is not None and self._refusal is None:
            self.assignment.failed(error)

    @property
    def scheduling(self) -> Scheduling:
        """The requested model's deadline and timeout; the fallback's own while those are not known,
        because the requested model was never ready."""
        return (self._requested or self.model.description).scheduling

    @property
    def fallback(self) -> str:
        """The fallback's name once the request has gone there, else ""."""
        return "" if self._refusal is None else self.model.description.name

    def check_room(self, demand: QueueRequest) -> None:
        """Fall back, or raise the refusal, if the selected model's queue has no room. Not checked
        for a model that reuses answers: the request may not need the queue."""
        if self.model.reuse is not None:
            return
        try:
            self.model.queue.check_room(self.asks(demand))
        except (errors.Overloaded, errors.OverOwnLimit) as refusal:
            self.fall_back(refusal)
            self.check_room(demand)

    def fall_back(self, refusal: errors.HeadraceError) -> None:
        """After a refusal: select the live version or the fallback, or raise what the caller is to
        be told."""
        if self._refusal is not None:
            raise self._refusal if isinstance(refusal, _NOT_TAKEN) else refusal
        assignment = self.assignment
        if assignment is not None and assignment.goes_on(refusal):
            self._find_requested(None)
            return
        if assignment is not None:
            assignment.failed(refusal)
        cheaper = self._cheaper() if refusal.reason in _TURNED_AWAY else None
        if cheaper is None:
            raise refusal
        self.model, self._refusal = cheaper, refusal

    def check_same_meaning(self, *, texts: bool, named: bool) -> None:
        """Raises the requested model's refusal if the request would mean something else to the
        fallback. `texts`: the model makes the tokens; `named`: answers name the model's tensors."""
        if self._refusal is None:
            return
        if not _same_meaning(self._requested, self.model.description, texts, named):
            raise self._refusal

    def require_requested(self) -> None:
        """Raises the requested model's refusal if the request has come to the fallback, for what no
        fallback can serve (an adapter)."""
        if self._refusal is not None:
            raise self._refusal

    def _cheaper(self) -> ServedModel | None:
        """The fallback, if it may and can take the request."""
        name = self._models.fallback_of(self._name)
        if not name or self._pinned or not self._tenant.may_use(name):
            return None
        try:
            return self._models.find(name)
        except (errors.NotFound, errors.NotReady):
            return None


def _same_meaning(
    requested: ModelDescription | None, cheaper: ModelDescription, texts: bool, named: bool
) -> bool:
    if not texts and (requested.tokenizer_digest if requested else "") != cheaper.tokenizer_digest:
        return False  # token ids of another vocabulary
    if requested is None:
        return True
    if not named:
        return _given(requested) == _given(cheaper)
    given = {spec.name: spec for spec in cheaper.outputs}
    return requested.task == cheaper.task and all(
        spec.name in given and _alike(spec, given[spec.name]) for spec in requested.outputs
    )


def _given(d: ModelDescription) -> tuple[object, ...]:
    """What answers have that name no tensors: labels, or vectors: dense of a width that may be
    cut, or sparse over a vocabulary."""
    choices = d.embedding
    cut = (choices.default_dimensions, choices.dimensions) if choices else (0, ())
    words = d.tokenizer_digest if d.kind == "sparse" else ""  # what its indices are of
    return d.kind, words, d.embed_width, cut, _labels(d)


def _labels(d: ModelDescription) -> tuple[str, ...]:
    return () if d.classes is None else d.classes.labels


def _alike(one: TensorSpec, other: TensorSpec) -> bool:
    return one.datatype == other.datatype and one.shape[1:] == other.shape[1:]
