"""What batches of a model's versions cost, as a new version is held to it."""

from __future__ import annotations

from dataclasses import dataclass

from deployments.contract.codec import MessageCodec

Profile = tuple[tuple[int, int, float], ...]
Fit = tuple[float, float, float, float]
"""Seconds of a batch: constant, for each row, for each token, for each token times the width."""


@dataclass(frozen=True, slots=True)
class LiveCosts:
    """What batches of the live version take: `profile` as a replica measured them when it started,
    `fits` as each gateway predicts them by now."""

    profile: Profile
    fits: tuple[Fit, ...] = ()


LIVE_COSTS = MessageCodec[LiveCosts | None](LiveCosts | None)


@dataclass(frozen=True, slots=True)
class CostBounds:
    """What a new version that changes at once is held to."""

    slo_s: float
    max_ratio: float  # to the live version's time; 0: not compared
