"""Which model takes a request: the one it asks for, or the cheaper one that this names as fallback?
And of one under rollout, which version: the canary for its share, and the live one for the rest and
for what the canary does not answer.

The cheaper one gets what the asked one turns away because of load, or cannot take because it is not
ready: not what failed, and not what a tenant's own bound refuses. One hop: whatever the cheaper one
turns away is refused as the asked one did. It takes nothing from a tenant that may not use it, from
a caller who asks for a version, or where what was sent, or is expected back, would mean something
else to it. Its queue, admission and cache are its own; the promise (deadline and timeout, counted
from the request's arrival) stays the asked one's.
"""

from __future__ import annotations

from math import inf

from deployments.contract import errors
from deployments.contract.description import ModelDescription, Scheduling
from deployments.gateway.queues.catalogue import Catalogue
from deployments.gateway.queues.core_loop import Demand
from deployments.gateway.queues.served_model import ServedModel
from deployments.gateway.recording.recorder import Recorder
from deployments.gateway.rollout.trial import Submitted, Trial
from deployments.gateway.rows.types import Rows
from deployments.gateway.tenancy.tenants import Tenant
from routers.api.requests import Reason
from runtimes.types import TensorSpec

_TURNED_AWAY = frozenset(
    reason.value for reason in (Reason.QUEUE_FULL, Reason.LATE, Reason.SHED, Reason.CLOSED)
) | {errors.NotReady.code}
# Those that say that the cheaper model did not take it, so that the asked one's refusal stands.
_NOT_TAKEN = (errors.BadRequest, errors.NotReady, errors.Overloaded)


class ModelSelection:
    """Where one request goes at the moment: `model`, under the `promise` of the requested one.
    `trial`: of a model under rollout."""

    __slots__ = ("_models", "_name", "_pinned", "_refusal", "_requested", "_tenant", "model",
                 "trial")  # fmt: skip

    def __init__(
        self,
        models: Catalogue,
        tenant: Tenant,
        name: str,
        version: str | None,
        trial: Trial | None = None,
    ) -> None:
        """Raises NotFound, and NotReady where no cheaper model stands in."""
        self.trial = trial
        self._models, self._tenant, self._name = models, tenant, name
        self._pinned = version is not None
        self._refusal: errors.HeadraceError | None = None
        known = models.served.get(name)
        self._requested = known.description if known is not None else None
        if trial is not None and trial.canary is not None:
            self.model = trial.canary
            self._requested = self._requested or self.model.description
        else:
            self._find_requested(version)

    def _find_requested(self, version: str | None) -> None:
        """Or the cheaper one. Raises NotFound and NotReady."""
        try:
            self.model = self._models.find(self._name, version)
            self._requested = self.model.description
        except errors.NotReady as refusal:
            known = self._models.served.get(self._name)
            if known is not None:
                known.queue.missed(self._tenant.name)
            self.fall_back(refusal)

    @property
    def on_canary(self) -> bool:
        return self.trial is not None and self.trial.canary is not None

    @property
    def lost_at_canary(self) -> bool:
        """Whether it comes from a canary that lost a replica with it."""
        return self.trial is not None and self.trial.lost

    @property
    def takers(self) -> list[ModelDescription]:
        """Those that may answer it, as far as it has come: the canary, and the live version."""
        own = self.model.description
        return [own, self._requested] if self.on_canary and self._requested else [own]

    def asks(self, demand: Demand) -> Demand:
        """As the queue is to count it: what another model was asked for is demand there. And for
        how long: of a canary's, until the live version must have it."""
        if self.trial is not None:
            flows = self.model.description.generating is not None  # and must not end on its way
            demand = self.trial.asks(demand, inf if flows else self.promise.slo_s)
        return demand if self._refusal is None else demand._replace(is_first=False)

    def begins(self) -> None:
        """The version that was selected gets the request now."""
        if self.trial is not None:
            self.trial.begins()

    def submitted(self, pending: Submitted | None) -> None:
        """It waits in the selected version's queue; None: it has left that unrun."""
        if self.trial is not None:
            self.trial.pending = pending

    def answered(
        self,
        rank: int,
        lengths: tuple[int, ...],
        latency_s: float | None = None,
        *,
        token_s: float | None = None,
        ran: bool = True,
    ) -> None:
        """By the version that was selected. `rank`: of the request's priority; the rest as of
        `Trial.answered`."""
        trial = self.trial
        if trial is None or self._refusal is not None:
            return
        trial.answered(max(lengths), latency_s, token_s=token_s, ran=ran)
        live = self._models.served.get(self._name)
        if trial.canary is not None and live is not None:
            of_rows = () if live.description.generating is not None else lengths
            live.queue.served_elsewhere(self._tenant.name, rank, of_rows)

    @property
    def lengths_recorder(self) -> Recorder | None:
        """Of a model that generates, the canary's with the live version's; None: nothing is kept
        of it."""
        model = self._models.served.get(self._name) if self.on_canary else self.model
        return model.recorder if model is not None and self._tenant.record else None

    def record(self, rows: Rows) -> None:
        """What the canary has answered, with what else callers send to the model."""
        live = self._models.served.get(self._name)
        if not self.on_canary or live is None or live.recorder is None or not self._tenant.record:
            return
        if live.queue.terms.take(self.model.queue.terms):
            live.recorder.offer(self._tenant.name, rows)

    def failed(self, error: errors.HeadraceError) -> None:
        """After some of an answer was given."""
        if self.trial is not None and self._refusal is None:
            self.trial.failed(error)

    @property
    def promise(self) -> Scheduling:
        """The cheaper model's own while the asked one's is not known: it was never ready."""
        return (self._requested or self.model.description).scheduling

    @property
    def fallback(self) -> str:
        """The cheaper model's name once the request has gone there, else ""."""
        return "" if self._refusal is None else self.model.description.name

    def check_room(self, demand: Demand) -> None:
        """Refuses, or falls back, by a look at the queue; a model that reuses answers is let on."""
        if self.model.reuse is not None:
            return
        try:
            self.model.queue.check_room(self.asks(demand))
        except (errors.Overloaded, errors.OverOwnLimit) as refusal:
            self.fall_back(refusal)
            self.check_room(demand)

    def fall_back(self, refusal: errors.HeadraceError) -> None:
        """Goes to the live version, or to the cheaper model, or raises what the caller is to be
        told."""
        if self._refusal is not None:
            raise self._refusal if isinstance(refusal, _NOT_TAKEN) else refusal
        trial = self.trial
        if trial is not None and trial.goes_on(refusal):
            self._find_requested(None)
            return
        if trial is not None:
            trial.failed(refusal)
        cheaper = self._cheaper() if refusal.reason in _TURNED_AWAY else None
        if cheaper is None:
            raise refusal
        self.model, self._refusal = cheaper, refusal

    def check_same_meaning(self, *, texts: bool, named: bool) -> None:
        """`texts`: the model makes the tokens; `named`: answers name the model's tensors."""
        if self._refusal is None:
            return
        if not _same_meaning(self._requested, self.model.description, texts, named):
            raise self._refusal

    def require_requested(self) -> None:
        """For what the cheaper model has no equal of: raises the requested one's refusal."""
        if self._refusal is not None:
            raise self._refusal

    def _cheaper(self) -> ServedModel | None:
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
        return requested.embed_width == cheaper.embed_width and _labels(requested) == _labels(
            cheaper
        )
    given = {spec.name: spec for spec in cheaper.outputs}
    return requested.task == cheaper.task and all(
        spec.name in given and _alike(spec, given[spec.name]) for spec in requested.outputs
    )


def _labels(d: ModelDescription) -> tuple[str, ...]:
    return () if d.classes is None else d.classes.labels


def _alike(one: TensorSpec, other: TensorSpec) -> bool:
    return one.datatype == other.datatype and one.shape[1:] == other.shape[1:]
