"""From a model's settings: its canary as a model of its own, and the terms of its rollout.

The canary is served under a name that no user may give (`canary_of`). Its replicas run beside the
live version's, as many as its largest share needs: a fixed number, or between bounds if the
autoscaler decides the live version's number. What belongs to the model's name is not the canary's:
it has no place in the pool, has no rollout, is not optional and never sleeps. All other settings
are as they will be, so that what its replicas measure is known by their digest later.
"""

from __future__ import annotations

from math import ceil

from deployments.contract.rollout.terms import AgreementTerms, RolloutTerms
from deployments.settings.model import ModelSettings
from deployments.settings.replicas import ReplicaSettings
from deployments.settings.rollout import AgreementSettings, RolloutSettings

_COUNTS = ("count", "min", "max", "spare", "survive", "groups")  # the canary has its own numbers


def canary_settings(model: ModelSettings) -> ModelSettings:
    """The canary's settings, for a model with a `rollout`. If the model has groups, the canary runs
    the first."""
    assert model.rollout is not None
    one = next(iter(model.views().values()), model)
    written = one.model_dump(mode="json", exclude_unset=True)
    for section in ("rollout", "optional"):
        written.pop(section, None)
    replicas = {n: v for n, v in written.get("replicas", {}).items() if n not in _COUNTS}
    replicas |= _numbers(model.rollout, one.replicas)
    return ModelSettings.model_validate(written | {"replicas": replicas})


def _numbers(rollout: RolloutSettings, live: ReplicaSettings) -> dict[str, int]:
    if rollout.replicas is not None:
        return {"count": rollout.replicas}
    share = max(rollout.steps_percent[-1], rollout.shadow_percent) / 100
    least, most = (max(1, ceil(number * share)) for number in (live.least, live.most))
    return {"count": most} if least == most else {"min": least, "max": most}


def rollout_terms(rollout: RolloutSettings) -> RolloutTerms:
    """The rollout's terms. A step of copies, if the settings ask for one, comes first."""
    shares = tuple(percent / 100 for percent in rollout.steps_percent)
    return RolloutTerms(
        shares=(0.0, *shares) if rollout.shadow_percent else shares,
        hold_s=rollout.hold_s,
        least_requests=rollout.min_requests,
        shadow=rollout.shadow_percent / 100,
        max_errors=rollout.max_errors_percent / 100,
        max_latency_ratio=rollout.max_latency_ratio,
        max_cost_ratio=rollout.max_latency_ratio,
        agreement=_agreement(rollout.agreement),
    )


def _agreement(given: AgreementSettings) -> AgreementTerms:
    return AgreementTerms(given.cosine, given.max_abs, given.top1)
