"""One rollout of one model: step by step more requests for the canary, until it takes over or goes.

    checking -> steps (shares of the requests) -> promoting -> promoted
         |          |                               |
         +----------+---------- aborted <-----------+

It is judged by the same bounds as long as the canary has a share: also while the new version starts
in the live one's place. What does not run there is aborted, too. At either end the canary gets no
more requests.

The registry keeps it and decides; gateways route by `route` and say what they see; the driver puts
the new version in the live one's place, or takes the canary away. Pure state, given the time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from deployments.contract.description import ModelDescription
from deployments.contract.rollout.account import RolloutAccount, VersionAccount
from deployments.contract.rollout.observations import Observations, VersionObservations, summed
from deployments.contract.rollout.terms import RolloutRoute, RolloutTerms, canary_of
from deployments.control.registry.judge import complaint, median_s, whole
from deployments.process.cost_gate import too_costly

RolloutPhase = Literal["checking", "step", "promoting", "promoted", "aborted"]


@dataclass(slots=True)
class Rollout:
    """`number`: grows with every rollout of the cluster. `step`: index of the share in force.
    since_s, away_since_s: on the registry's clock. why: of an abort, or of what is waited for.
    reached: whether a gateway has seen a replica of the canary yet; until then one that is promoted
    by hand is not missed."""

    model: str
    number: int
    terms: RolloutTerms
    since_s: float
    phase: RolloutPhase = "checking"
    step: int = 0
    why: str = ""
    away_since_s: float | None = None
    reached: bool = False
    seen: Observations = field(default_factory=lambda: Observations(0, 0))

    @property
    def canary(self) -> str:
        return canary_of(self.model)

    @property
    def ended(self) -> bool:
        return self.phase in ("promoted", "aborted")

    @property
    def route(self) -> RolloutRoute | None:
        """None while the canary gets nothing."""
        if self.phase not in ("step", "promoting"):
            return None
        share = self.terms.shares[min(self.step, len(self.terms.shares) - 1)]
        shadow = self.terms.shadow if self.phase == "step" else 0.0
        return RolloutRoute(self.number, self.step, self.canary, share, shadow, self.terms)

    def look(
        self,
        now: float,
        live: ModelDescription | None,
        canary: ModelDescription | None,
        said: Iterable[Observations],
    ) -> bool:
        """Decides by what is known now; whether gateways must hear of it. `live`, `canary`: as
        announced, None of what is not; `said`: by each gateway, last."""
        if self.phase == "checking":
            return self._check(now, live, canary)
        if self.phase not in ("step", "promoting"):
            return False
        self.seen = summed(self.number, self.step, said)
        if self._is_away(now, canary) and self.away_since_s is not None:
            if now - self.away_since_s < self.terms.away_s:
                return False
            return self._abort(f"it has had no replica for {self.terms.away_s:g} s")
        if why := complaint(self.seen, self.terms, self.terms.shares[self.step]):
            return self._abort(why)
        return self.phase == "step" and self._go_on(now)

    def promote(self, now: float) -> bool:
        """By hand, or after the last step. False where it is decided already."""
        if self.phase not in ("checking", "step"):
            return False
        self.phase, self.since_s, self.why = "promoting", now, ""
        return True

    def finish(self) -> bool:
        """The new version runs in the live one's place."""
        if self.phase != "promoting":
            return False
        self.phase = "promoted"
        return True

    def abort(self, why: str) -> bool:
        """By hand, or because the new version does not run in the live one's place. False where it
        has ended already."""
        return not self.ended and self._abort(why)

    def _check(
        self, now: float, live: ModelDescription | None, canary: ModelDescription | None
    ) -> bool:
        """What it costs, once it has said so; without a live version there is nothing to hold it
        to."""
        if canary is None:
            return False
        if live is not None and (why := too_costly(live, canary, self.terms)):
            return self._abort(why)
        self.phase, self.since_s = "step", now
        return True

    def _is_away(self, now: float, canary: ModelDescription | None) -> bool:
        """`away_since_s` is None while it is not; gateways need a moment after each step."""
        there = canary is not None and self.seen.reached > 0
        self.reached = self.reached or there
        if there or (self.phase == "promoting" and not self.reached):
            self.away_since_s = None
            return False
        if self.away_since_s is None:
            self.away_since_s = now
        return True

    def _go_on(self, now: float) -> bool:
        held_s = now - self.since_s
        own = self.seen.canary if self.terms.shares[self.step] else self.seen.copies
        lacks = self.terms.least_requests - own.requests
        self.why = f"waits for {lacks} more requests" if lacks > 0 else ""
        if held_s < self.terms.hold_s or lacks > 0:
            return False
        if self.step + 1 == len(self.terms.shares):
            return self.promote(now)
        self.step, self.since_s = self.step + 1, now
        self.seen = Observations(self.number, self.step, reached=self.seen.reached)
        return True

    def _abort(self, why: str) -> bool:
        self.phase, self.why = "aborted", why
        return True


def account(
    rollout: Rollout, now: float, live: ModelDescription | None, canary: ModelDescription | None
) -> RolloutAccount:
    """`now`: on the registry's clock; `live`, `canary`: the two versions as announced, or None."""
    seen, route, terms = rollout.seen, rollout.route, rollout.terms
    return RolloutAccount(
        model=rollout.model,
        number=rollout.number,
        phase=rollout.phase,
        share=route.share if route else 0.0,
        step=rollout.step + 1,
        steps=len(terms.shares),
        held_s=now - rollout.since_s,
        hold_s=terms.hold_s,
        why=rollout.why,
        live=_version(live, seen.live),
        canary=_version(canary, seen.canary),
        copies=_version(canary, seen.copies),
        compared=seen.compared,
        agreed=seen.agreed,
    )


def _version(description: ModelDescription | None, seen: VersionObservations) -> VersionAccount:
    half_s = median_s(whole(seen.latencies))
    return VersionAccount(
        version=description.version if description else "",
        answered=seen.answered,
        failed=seen.failed,
        median_ms=None if half_s is None else half_s * 1000,
    )
