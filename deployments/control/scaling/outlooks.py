"""What gateways and operators are told of the autoscaler's decisions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from autoscaling.settings import ModelTerms
from autoscaling.types import Decisions, GroupReading, ModelDecision, Reason
from deployments.contract.scaling.messages import ModelOutlook


def outlook(
    terms: ModelTerms,
    decision: ModelDecision,
    groups: Iterable[GroupReading],
    begun_s: float = 0.0,
) -> ModelOutlook:
    """What gateways are told of a model. `groups`: the readings that the decision was made from;
    `begun_s`: seconds since the next replica to come was ordered."""
    runs = list(groups)
    starting = sum(each.starting for each in runs)
    may_sleep = terms.may_sleep and not decision.observed and not _is_held_at_none(decision)
    return ModelOutlook(
        may_sleep=may_sleep,
        wakes=may_sleep and not any(each.hot or each.starting for each in runs),
        ready_in_s=max(0.0, decision.time_to_capacity_s - (begun_s if starting else 0.0)),
        targets={each.name: each.target for each in decision.groups},
        wanted={each.name: each.wanted for each in decision.groups},
        starting=starting,
        reason=decision.reason.value,
        offered_s=decision.offered_s,
        planned_s=decision.planned_s,
        forecast_s=decision.forecast_s,
        forecast_trusted=decision.forecast_trusted,
    )


def _is_held_at_none(decision: ModelDecision) -> bool:
    """Whether the operator or a freeze keeps it at no replicas, so that no request can wake it."""
    held = decision.reason in (Reason.FROZEN, Reason.MANUAL)
    return held and bool(decision.groups) and not any(each.target for each in decision.groups)


def changes(before: Decisions, after: Decisions) -> list[str]:
    """A sentence for each model whose targets or reason have changed."""
    said = []
    for name, decision in after.models.items():
        old = before.models.get(name)
        targets = [each.target for each in decision.groups]
        if old is None or targets != [each.target for each in old.groups]:
            was = "?" if old is None else _numbers(old)
            said.append(f"{name}: {was} -> {_numbers(decision)} replicas, {_why(decision)}")
        elif old.reason is not decision.reason:
            said.append(f"{name}: {_numbers(decision)} replicas, {_why(decision)}")
    if after.pool.replicas != before.pool.replicas:
        said.append(f"pool: {before.pool.replicas} -> {after.pool.replicas}: {after.pool.text}")
    return said


def _why(decision: ModelDecision) -> str:
    only = " (observed, not done)" if decision.observed else ""
    return f"{decision.reason.value}{only}: {decision.text}"


def _numbers(decision: ModelDecision) -> str:
    named = [f"{each.name} {each.target}" if each.name else f"{each.target}"
             for each in decision.groups]  # fmt: skip
    return ", ".join(named) or "no"


def as_plain(decision: ModelDecision, groups: Iterable[GroupReading]) -> dict[str, Any]:
    """The decision as plain values for `status`, each group with what runs of it."""
    runs = {each.name: each for each in groups}
    plain = asdict(decision)
    plain["reason"] = decision.reason.value
    for group in plain["groups"]:
        reading = runs.get(group["name"], GroupReading())
        group |= {
            "serve_target": reading.target, "running": reading.hot, "starting": reading.starting,
            "draining": reading.draining, "unplaced_s": reading.unplaced_s,
            "missing": reading.missing,
        }  # fmt: skip
    return plain
