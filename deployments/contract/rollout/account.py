"""A rollout as `headrace rollout status` shows it: plain values, for people and programs."""

from __future__ import annotations

from typing import TypedDict


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
    phase: str  # `control.registry.rollout.RolloutPhase`
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
