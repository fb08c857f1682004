"""Why is a target what it is? One sentence with the numbers, for `headrace status` and the log."""

from __future__ import annotations

from collections.abc import Mapping

from autoscaling.proposal import Proposal
from autoscaling.types import GroupReading, Reason
from autoscaling.wake import Waking

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
    how = f" by {plan.method}" if plan.trusted else ""
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
