"""What must hold of a new version of a model before it replaces the live one?

The terms are written in the settings (`rollout`) and carried to the registry, which decides. Plain
data.
"""

from __future__ import annotations

from dataclasses import dataclass

from deployments.contract.codec import MessageCodec

_MARK = "@canary"  # suffix of a canary's name


@dataclass(frozen=True, slots=True)
class AgreementTerms:
    """When a row of the canary's answer agrees with the live version's, output by output. None or
    False: not asked."""

    cosine: float | None = None  # least cosine similarity of numbers
    max_abs: float | None = None  # largest absolute difference of any number
    top1: bool = False  # the largest number is at the same place
    least: float = 0.99  # share of a request's rows that must agree, and of the requests, 0..1

    @property
    def asked(self) -> bool:
        """Whether agreement is asked for at all."""
        return self.cosine is not None or self.max_abs is not None or self.top1


@dataclass(frozen=True, slots=True)
class RolloutTerms:
    """When a rollout takes its next step, and what aborts it."""

    # The share of requests that the canary gets in each step, 0..1, ascending. A first step of 0
    # sends the canary copies of requests (`shadow`) before any request of its own.
    shares: tuple[float, ...] = (0.05, 0.25, 0.5)
    hold_s: float = 60.0  # the least that a step lasts
    least_requests: int = 100  # that the canary must answer in a step; at share 0, copies
    shadow: float = 0.0  # share of requests that are copied to the canary, 0..1

    # A rollout is aborted beyond these bounds.
    max_errors: float = 0.01  # share of failures above the live version's, 0..1
    max_latency_ratio: float = 1.5  # to the live version's latency
    max_cost_ratio: float = 1.5  # to the live version's measured costs
    agreement: AgreementTerms = AgreementTerms()  # else too few rows agree
    away_s: float = 15.0  # without any replica of the canary


TERMS = MessageCodec[RolloutTerms](RolloutTerms)


def canary_of(model: str) -> str:
    """The name under which a model's canary is served. No user may give a model such a name."""
    return model + _MARK


def is_canary(name: str) -> bool:
    return name.endswith(_MARK)


def model_of(name: str) -> str:
    """The inverse of `canary_of`; any other name is returned unchanged."""
    return name.removesuffix(_MARK)


@dataclass(frozen=True, slots=True)
class RolloutRoute:
    """What gateways do: `share` of the model's requests go to `canary`, copies of `shadow` of the
    others too, and rows of both compared by `terms`. `rollout`, `step`: what their counts are
    about."""

    rollout: int
    step: int
    canary: str
    share: float
    shadow: float
    terms: RolloutTerms
