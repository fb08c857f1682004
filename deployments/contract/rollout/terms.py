"""What a new version of a model is held to before it takes the place of the live one.

Written in the settings (`rollout`), carried to the registry, which decides. Plain data.
"""

from __future__ import annotations

from dataclasses import dataclass

_MARK = "@canary"


@dataclass(frozen=True, slots=True)
class AgreementTerms:
    """When a row of the canary's agrees with the live version's, by each output: `cosine`, of
    numbers, at least; `max_abs`, the largest difference of any number, at most; `top1`, the same
    largest number. None: not asked. `least`: share of a request's rows that must agree, and of the
    requests, 0..1."""

    cosine: float | None = None
    max_abs: float | None = None
    top1: bool = False
    least: float = 0.99

    @property
    def asked(self) -> bool:
        return self.cosine is not None or self.max_abs is not None or self.top1


@dataclass(frozen=True, slots=True)
class RolloutTerms:
    """`shares`: of the requests, 0..1, ascending, that the canary gets step by step; 0 first where
    copies of requests (`shadow`, a share of them, 0..1) come before any of its own. hold_s,
    least_requests: how long a step lasts, and how many requests of its own (at share 0: copies)
    the canary has answered by then, at least. The rest is what ends a rollout: failures beyond the
    live version's share by `max_errors` (0..1), latency beyond `max_latency_ratio` times the live
    version's, measured costs beyond `max_cost_ratio` times, too few rows that agree, and no
    replica for `away_s`."""

    shares: tuple[float, ...] = (0.05, 0.25, 0.5)
    hold_s: float = 60.0
    least_requests: int = 100
    shadow: float = 0.0
    max_errors: float = 0.01
    max_latency_ratio: float = 1.5
    max_cost_ratio: float = 1.5
    agreement: AgreementTerms = AgreementTerms()
    away_s: float = 15.0


def canary_of(model: str) -> str:
    """The name under which a model's canary is served: no name that a user may give."""
    return model + _MARK


def is_canary(name: str) -> bool:
    return name.endswith(_MARK)


def model_of(name: str) -> str:
    """The inverse of `canary_of`; a name that is no canary's as it is."""
    return name.removesuffix(_MARK)
