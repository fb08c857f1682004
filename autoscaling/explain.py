"""What will a model's scaling policy do? Sentences for `headrace check`, from the settings alone.

They state the bounds, when replicas are added and removed, when the model sleeps, and what it costs
at most. They state nothing that needs a measurement.
"""

from __future__ import annotations

from autoscaling.hysteresis import Terms
from autoscaling.settings import GroupTerms, Mode, ModelTerms, PolicySettings
from autoscaling.start_times import UNMEASURED_S


def explain(model: ModelTerms) -> list[str]:
    """The sentences, in reading order."""
    policy = model.policy
    if policy.mode is Mode.OFF or all(group.min == group.max for group in model.groups):
        return [f"{_bounds(model)} The number is fixed; nothing is decided.", *_costs(model)]
    sentences = [_bounds(model), *_mode(policy), _size(model), *_plan(policy), _down(policy)]
    return [*sentences, *_sleep(model), *_places(model), *_costs(model)]


def _bounds(model: ModelTerms) -> str:
    return " ".join([_group(group, model.policy.mode) for group in model.groups])


def _group(group: GroupTerms, mode: Mode) -> str:
    most = group.min if mode is Mode.OFF else group.max
    name = f"Group {group.name}" if group.name else "The model"
    count = f"{group.min}" if group.min == most else f"{group.min} to {most}"
    reserve = ", used when the other groups are at their most" if group.reserve else ""
    return f"{name} has {count} {'replica' if most == 1 else 'replicas'}{reserve}."


def _mode(policy: PolicySettings) -> list[str]:
    if policy.mode is Mode.OBSERVE:
        return ["Decisions are shown and not done (mode: observe)."]
    return []


def _size(model: ModelTerms) -> str:
    policy = model.policy
    also = []
    if policy.survive:
        also.append(f"also with {policy.survive} of them lost")
    if policy.spare:
        also.append(f"and {policy.spare} more {'stays' if policy.spare == 1 else 'stay'} hot")
    head = (
        f"As many run as keep {100 * model.percentile:g} % of requests within"
        f" {1000 * model.slo_s:g} ms, none planned to be busy more than {100 * policy.knee:g} %"
    )
    return ", ".join([head, *also]) + "."


def _plan(policy: PolicySettings) -> list[str]:
    if policy.forecast:
        season = (
            f"a season of {_span(policy.season_s)} after two of them, if that helps"
            if policy.season_s
            else "no season"
        )
        planned = (
            f"Demand is forecast for when a new replica would serve, with {season}; planned for the"
            f" {100 * policy.quantile:g}th percentile of its error."
        )
    else:
        planned = "Demand is not forecast: the last minutes' is planned for, and its error."
    if not policy.instant:
        return [planned, "Bursts are not answered before the plan follows (instant: false)."]
    known = [
        "A burst that came at the same time of the last hours or days is started for before it."
    ]
    return [
        planned,
        *(known if policy.forecast else []),
        f"A burst beyond that starts replicas at once: work in a window of"
        f" {min(policy.windows_s):g} to {max(policy.windows_s):g} s"
        f" {policy.spike_sigmas:g} sigmas above the plan, or a backlog of half the slack.",
    ]


def _down(policy: PolicySettings) -> str:
    terms = Terms.of(policy, UNMEASURED_S)
    longer = " (longer where a start takes long)" if policy.down_window_s is None else ""
    return (
        f"Replicas go when none of the last {_span(terms.down_window_s)}{longer} needed them,"
        f" {100 * policy.down_step:g} % or one at a time; a burst's go {_span(policy.hold_s)} after"
        " it."
    )


def _sleep(model: ModelTerms) -> list[str]:
    if not model.may_sleep:
        return []
    return [
        f"After {_span(model.policy.idle_s)} without a request the last replica goes; the next"
        " request wakes it, and waits for a start."
    ]


def _places(model: ModelTerms) -> list[str]:
    limit = _span(model.policy.pending_limit_s)
    said = [f"A replica that finds no place for {limit} is the last that is asked for."]
    if model.in_pool:
        said.append("The shared pool takes its bursts while its own replicas start.")
    return said


def _costs(model: ModelTerms) -> list[str]:
    off = model.policy.mode is Mode.OFF
    most = sum((g.min if off else g.max) * g.needs.cost_per_hour for g in model.groups)
    least = sum(group.min * group.needs.cost_per_hour for group in model.groups)
    if not most:
        return []
    return [f"It costs {least:g} to {most:g} an hour."]


def _span(seconds: float) -> str:
    """In the largest unit that divides it."""
    for unit, name in ((86_400, "day"), (3_600, "h"), (60, "min")):
        if seconds >= unit and seconds % unit == 0:
            count = seconds / unit
            plural = "s" if name == "day" and count != 1 else ""
            return f"{count:g} {name}{plural}"
    return f"{seconds:g} s"
