"""A rollout as `headrace rollout status` shows it: plain values, for people and programs."""

from __future__ import annotations

from typing import TypedDict

from deployments.contract.description import ModelDescription
from deployments.contract.rollout.latencies import median_s, whole
from deployments.contract.rollout.observations import VersionObservations
from deployments.contract.rollout.rollout import Rollout


class VersionAccount(TypedDict):
    """One version in a rollout."""

    version: str
    answered: int
    failed: int
    median_ms: float | None  # of all answers, rounded up to a histogram step; None: no answers


class RolloutAccount(TypedDict):
    """One rollout."""

    model: str
    number: int
    phase: str  # `Rollout.phase`
    share: float  # of the requests that the canary gets now, 0..1
    step: int  # counted from 1
    steps: int
    held_s: float  # since this step began
    hold_s: float  # the least that a step lasts
    why: str  # why it was aborted, or what it waits for
    live: VersionAccount
    canary: VersionAccount
    copies: VersionAccount  # what the canary did with copied requests
    compared: int  # copied requests that both versions answered
    agreed: int  # of those, how many agree


class RolloutRecord(RolloutAccount):
    """A rollout as the host process keeps and shows it."""

    id: int  # the number of its canary
    over: bool  # it has ended


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
