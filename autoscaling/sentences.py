"""What will a model's scaling policy do, and why is a target what it is? Sentences for people.

`explain` says what a policy will do, for `headrace check`, from the settings alone; `decision` why
a target is what it is, with the numbers, for `headrace status` and the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autoscaling.demand import DemandView
from autoscaling.envelope import Spike
from autoscaling.forecast import Plan
from autoscaling.hysteresis import Terms
from autoscaling.observation import UNMEASURED_S
from autoscaling.settings import GroupTerms, Mode, ModelTerms, PolicySettings
from autoscaling.types import GroupReading, Reason
from autoscaling.wake import Waking


@dataclass(frozen=True, slots=True)
class Proposal:
    """What one model proposes."""

    reason: Reason
    wanted: Mapping[str, int] = field(default_factory=dict)  # replicas by group
    targets: Mapping[str, int] = field(default_factory=dict)  # by group; empty: none is known yet

    # What it was decided by.
    view: DemandView = field(default_factory=DemandView)
    plan: Plan = field(default_factory=Plan)
    spike: Spike = field(default_factory=Spike)
    detail: str = ""  # what else the sentence for users says


_CONSTANT = {
    Reason.FIXED: "the settings fix the number",
    Reason.FROZEN: "frozen, so the number holds",
    Reason.FIRST: "a first replica must describe the model",
    Reason.ASLEEP: "asleep until a request comes",
}


def decision(
    proposal: Proposal, reason: Reason, targets: Mapping[str, int], hot: int, bound: str
) -> str:
    """The sentence. `hot`: replicas that serve. `bound`: the resource that is too short."""
    if not targets:
        return f"No number yet: {proposal.detail or 'running replicas have not been reported'}."
    why = _why(proposal, reason, bound)
    return f"{_replicas(sum(targets.values()))}, {hot} hot: {why}."


def _why(proposal: Proposal, reason: Reason, bound: str) -> str:
    wanted = sum(proposal.wanted.values())
    match reason:
        case Reason.FIXED | Reason.FROZEN | Reason.FIRST | Reason.ASLEEP:
            return _CONSTANT[reason]
        case Reason.MANUAL:
            return "set by hand"
        case Reason.UNKNOWN:
            return f"held, because {proposal.detail}"
        case Reason.BUDGET:
            return f"{wanted} are wanted and there is no more {bound or 'room'}"
        case Reason.HELD:
            return f"{wanted} would do for {_work(proposal)}, held because {proposal.detail}"
        case Reason.DOWN:
            return f"fewer have been enough for {_work(proposal)}"
        case Reason.STEADY:
            return f"enough for {_work(proposal)}"
        case Reason.FORECAST if proposal.spike.expected:
            return _expected(proposal)
        case Reason.FORECAST:
            return f"for {_work(proposal)}, expected in {proposal.plan.horizon} min"
        case Reason.SPIKE | Reason.BACKLOG:
            return _spike(proposal)
        case Reason.AWAKE | Reason.UNPLACED:
            return proposal.detail


def _work(proposal: Proposal) -> str:
    plan = proposal.plan
    how = " by its season" if plan.trusted else ""
    return f"{plan.planned_s:.2f} s of work a second planned{how}"


def _spike(proposal: Proposal) -> str:
    spike, planned_s = proposal.spike, proposal.plan.planned_s
    if not spike.window_s:
        waits = proposal.view.backlog_s
        return f"{waits:.2f} s of work wait too long, {spike.rate:.2f} a second would clear them"
    return (
        f"{spike.rate:.2f} s of work a second came in {spike.window_s:g} s,"
        f" {planned_s:.2f} were planned"
    )


def _expected(proposal: Proposal) -> str:
    return (
        f"{proposal.spike.rate:.2f} s of work a second came at this time before,"
        f" {proposal.plan.planned_s:.2f} are planned otherwise"
    )


def waking(waking: Waking) -> str:
    return (
        f"a request woke it; {waking.waiting_s:.2f} s of work wait, sized for"
        f" {waking.work:.2f} s a second"
    )


def unplaced(reading: GroupReading) -> str:
    missing = reading.missing or "a place that fits"
    return (
        f"one has waited {reading.unplaced_s:.0f} s for {missing}, so no further ones are asked for"
    )


def _replicas(count: int) -> str:
    return f"{count} replica" if count == 1 else f"{count} replicas"


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
