"""A rollout as `headrace rollout status` shows it: plain values for people and programs."""

from __future__ import annotations

from typing import TypedDict

from deployments.contract.description import ModelDescription
from deployments.contract.rollout.latencies import median_s, whole
from deployments.contract.rollout.observations import VersionObservations
from deployments.contract.rollout.rollout import Rollout


class VersionAccount(TypedDict):
    """median_ms: of all answers, "up to"; None of none."""

    version: str
    answered: int
    failed: int
    median_ms: float | None


class RolloutAccount(TypedDict):
    """phase: `Rollout.phase`; share: of the requests that the canary gets now, 0..1. step of steps,
    counted from 1; in it for held_s of at least hold_s. why: of an abort, or what is waited for.
    copies: what the canary did with copied requests; agreed of compared rows."""

    model: str
    number: int
    phase: str
    share: float
    step: int
    steps: int
    held_s: float
    hold_s: float
    why: str
    live: VersionAccount
    canary: VersionAccount
    copies: VersionAccount
    compared: int
    agreed: int


class RolloutRecord(RolloutAccount):
    """What the host keeps and shows of it. id: the number of its canary; over: whether it has
    ended."""

    id: int
    over: bool


def account(
    rollout: Rollout, now: float, live: ModelDescription | None, canary: ModelDescription | None
) -> RolloutAccount:
    """`now`: on the registry's clock; `live`, `canary`: as announced."""
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
