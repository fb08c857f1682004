"""How many replicas should one model have, before the shared budget is applied?

In each decision: a number that must not change (fixed, set by hand, frozen, unknown) holds; a model
that is asleep stays asleep until a request comes; else replicas are sized for the forecast's plan
and for a spike, and each group's number follows by its hysteresis. `propose` returns the number;
`settle` takes what the budget left of it. Keeps the state of one model and knows no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autoscaling import sentences
from autoscaling.budget import Claim, Grant
from autoscaling.demand import LONGEST_WINDOW_S, Demand, DemandView
from autoscaling.envelope import MIN_SLACK_S, RATE_WINDOW_S, Backlog, Envelope, Spike, windows
from autoscaling.forecast import Plan, Planning
from autoscaling.hysteresis import FIRM, RELAXED, Hysteresis, Terms, Wants
from autoscaling.observation import Observation, StartTimes
from autoscaling.sentences import Proposal
from autoscaling.settings import GroupTerms, Mode, ModelTerms
from autoscaling.sizing import Option, Service, Sizing
from autoscaling.types import GroupReading, GroupTarget, ModelDecision, Reason
from autoscaling.wake import Wake

_MIN_SPAN_S = 4.0
_ORDER_SEEN_S = 10.0
_MIN_PATIENCE_S = 600.0


class ModelScaler:
    """Scales one model. Owner and only writer: `Autoscaler`.

    `targets`: replicas by group, as last decided. `runs`: the replicas that there are. `pins`:
    numbers set by hand, by group. `described`: whether a replica has ever described the model;
    None: not known yet.
    """

    def __init__(self, terms: ModelTerms, now: float) -> None:
        self.terms = terms
        self.demand = Demand()
        self.starts = StartTimes()
        self.sizing = Sizing()
        self.envelope = Envelope()
        # Of the work of rows longer than a length at which groups end, by that length.
        self._longer: dict[int, Envelope] = {}
        self.wake = Wake()
        self.planning = Planning(terms.policy, now)
        self.runs = Observation()
        self.targets: dict[str, int] = {}
        self.pins: dict[str, int] = {}
        self.described: bool | None = None
        self._hysteresis: dict[str, Hysteresis] = {}
        self._asleep_since = now

    def adopt(self, terms: ModelTerms) -> None:
        """Go on under new terms; groups that they no longer list are forgotten."""
        self.terms = terms
        names = {group.name for group in terms.groups}
        self.runs.keep(names)
        self.targets = {name: each for name, each in self.targets.items() if name in names}
        self.pins = {name: each for name, each in self.pins.items() if name in names}
        self.planning.adopt(terms.policy)

    def observe(self, groups: tuple[GroupReading, ...], now: float) -> None:
        """Take the replicas as they are now. Groups that the terms do not list are ignored."""
        known = {group.name for group in self.terms.groups}
        self.runs.take(groups, known, now)
        for name, reading in self.runs.readings.items():
            self.targets.setdefault(name, max(0, reading.target))

    @property
    def is_fixed(self) -> bool:
        groups = self.terms.groups
        off = self.terms.policy.mode is Mode.OFF
        return off or all(group.min == group.max for group in groups)

    @property
    def is_observed(self) -> bool:
        """Whether decisions are shown and not carried out. A number set by hand is carried out."""
        return self.terms.policy.mode is Mode.OBSERVE and not self.pins

    @property
    def slack_s(self) -> float:
        """Seconds of the SLO that may be spent waiting, for the first group's batches."""
        return self.runs.slack_s(self.terms.slo_s, self.terms.groups[0].name)

    def view(self, now: float) -> DemandView:
        short = windows(self.terms.policy, self.starts.time_to_capacity_s())
        return self.demand.view(sorted({*short, RATE_WINDOW_S, LONGEST_WINDOW_S}), now)

    # -- the proposal

    def propose(self, frozen: bool, now: float) -> Proposal:
        held = self._held()
        if self.is_fixed and not self.pins:
            return Proposal(Reason.FIXED, held, held)
        if frozen:
            reason = Reason.MANUAL if self.pins else Reason.FROZEN
            return Proposal(reason, held, self._pinned(held))
        decides = not self.is_fixed and self.terms.policy.mode is not Mode.OBSERVE
        if self.pins and (not decides or len(self.pins) == len(self.terms.groups)):
            pinned = self._pinned(held)
            return Proposal(Reason.MANUAL, pinned, pinned)
        if self.described is False and held and not sum(held.values()):
            first = {**held, self.terms.groups[0].name: min(1, self.terms.groups[0].max)}
            return Proposal(Reason.FIRST, first, first)
        view = self.view(now)
        unknown = self._unknown(view, held, now)
        if unknown:
            return Proposal(Reason.UNKNOWN, held, self._pinned(held), view, detail=unknown)
        return self._decided(held, view, now)

    def _held(self) -> dict[str, int]:
        """The targets as they are, within bounds; empty while one group's is unknown. In mode
        OBSERVE with a number set by hand, the other groups' targets are those of the cluster."""
        held: dict[str, int] = {}
        targets = self.targets
        if self.pins and self.terms.policy.mode is Mode.OBSERVE:
            targets = {name: each.target for name, each in self.runs.readings.items()}
        for group in self.terms.groups:
            known = group.min if self.is_fixed else targets.get(group.name)
            if known is None:
                return {}
            held[group.name] = _within(known, group)
        return held

    def _pinned(self, targets: Mapping[str, int]) -> dict[str, int]:
        bounds = {group.name: group for group in self.terms.groups}
        pins = {name: _within(pin, bounds[name]) for name, pin in self.pins.items()}
        return {**targets, **pins}

    def _unknown(self, view: DemandView, held: Mapping[str, int], now: float) -> str:
        """What is not known, for the sentence; "": everything is known."""
        if not held or self.runs.is_stale(now):
            return "running replicas have not been reported for 5 s"
        if not view.fresh:
            return "no gateway has reported its demand for 5 s"
        if view.span_s < _MIN_SPAN_S and not view.waits and any(held.values()):
            return "demand has been counted for less than 4 s"
        return ""

    def _decided(self, held: dict[str, int], view: DemandView, now: float) -> Proposal:
        plan = self.planning.step(view, self.demand, self.starts.time_to_capacity_s(), now)
        if not self.envelope.holds(now):
            self.sizing.update_dispersion(self.planning.dispersion_s)
        self.sizing.adopt(self.terms, self._options())
        if self.terms.may_sleep and not self.pins:
            if not sum(held.values()) or self.wake.woken_at is not None:
                woken = self._woken(held, view, plan, now)
                if woken is not None:
                    return woken
            elif self._falls_asleep(view, now):
                none = dict.fromkeys(held, 0)
                return Proposal(Reason.ASLEEP, none, none, view, plan)
        return self._scaled(held, view, plan, now)

    # -- zero

    def _falls_asleep(self, view: DemandView, now: float) -> bool:
        idle = self.wake.is_idle(view, self.terms.policy.idle_s, now)
        return idle and self.described is not False and not self._starts(now)

    def _woken(
        self, held: dict[str, int], view: DemandView, plan: Plan, now: float
    ) -> Proposal | None:
        """The proposal while no replica is hot; None: one is, and scaling goes on as usual."""
        if not self.wake.wakes(view, self._asleep_since, now) and not sum(held.values()):
            return Proposal(Reason.ASLEEP, held, held, view, plan)
        if self.runs.hot:
            self.wake.asleep()
            self.envelope.hold(now + self.terms.policy.hold_s)
            return None
        woken_at = self.wake.woken_at if self.wake.woken_at is not None else now
        offered_s = self.demand.work_since(woken_at - 2.0, now)
        waking = self.wake.waking(view, offered_s, self.slack_s, now)
        work = max(waking.work, plan.planned_s)
        wanted = self._awake(self.sizing.size(work, longer=self._longer_parts(view, work)))
        targets = {name: max(count, wanted[name]) for name, count in held.items()}
        detail = sentences.waking(waking)
        return Proposal(Reason.AWAKE, wanted, targets, view, plan, detail=detail)

    def _awake(self, counts: Mapping[str, int]) -> dict[str, int]:
        """The counts, with at least one replica of the first group that is no reserve."""
        if sum(counts.values()) or not self.terms.groups:
            return dict(counts)
        first = min(self.terms.groups, key=lambda group: group.reserve)
        return {**counts, first.name: min(1, first.max)}

    # -- some

    def _scaled(self, held: dict[str, int], view: DemandView, plan: Plan, now: float) -> Proposal:
        spike = self.envelope.spike(
            view, plan.planned_s, self._backlog(view, self.runs.speed), self.terms.policy, now
        )
        if spike.rate <= plan.planned_s:
            spike = Spike()
        parts = self._longer_parts(view, plan.planned_s)
        spike, longer = self._longer_spikes(spike, parts, view, plan.planned_s, now)
        if spike.rate:
            self.envelope.hold(now + self.terms.policy.hold_s)
        recent = max(plan.planned_s, view.rate(LONGEST_WINDOW_S))
        works = (plan.planned_s, FIRM * plan.planned_s, RELAXED * recent)
        sizes = [
            self._awake(self.sizing.size(work, longer=_times(parts, work, plan.planned_s)))
            for work in works
        ]
        if spike.rate:
            sizes.append(self._awake(self.sizing.size(spike.rate, in_spike=True, longer=longer)))
        wants = {name: Wants(*[size[name] for size in sizes]) for name in held}
        targets = self._pinned(self._follow(held, wants, view, now))
        wanted = {name: want.now for name, want in wants.items()}
        reason = self._reason(held, targets, wanted, spike, plan)
        detail = self._held_by(view, now) if reason is Reason.HELD else self._missing()
        return Proposal(reason, wanted, targets, view, plan, spike, detail)

    # -- rows that not all groups take

    def _longer_parts(self, view: DemandView, work: float) -> dict[int, float]:
        """Of so much work a second, that of rows longer than each length at which groups end: their
        share of the last minute, or their own rate where that has risen since. While no replica
        that takes them serves, also what waits of them."""
        parts: dict[int, float] = {}
        for length in self.terms.bounds:
            own = view.longer.get(length)
            if own is None:
                continue
            whole = view.rate(LONGEST_WINDOW_S)
            share = min(1.0, own.rate(LONGEST_WINDOW_S) / whole) if whole > 0.0 else 0.0
            parts[length] = max(share * work, own.recent_rate())
            if not self.runs.speed_above(length, self.terms.groups):
                parts[length] += own.backlog_s / max(MIN_SLACK_S, self.slack_s)
        return parts

    def _longer_spikes(
        self,
        spike: Spike,
        parts: Mapping[int, float],
        view: DemandView,
        planned_s: float,
        now: float,
    ) -> tuple[Spike, dict[int, float]]:
        """The spike, if there is one, in all of the work or in that of longer rows alone, which all
        of it may hide; and the longer rows' parts in it. `planned_s`: all the work, and `parts` of
        it that is longer, for which replicas are sized."""
        longer = _times(parts, spike.rate, planned_s)
        for length, part in parts.items():
            own, envelope = view.longer[length], self._longer.setdefault(length, Envelope())
            speed = self.runs.speed_above(length, self.terms.groups)
            found = envelope.spike(own, part, self._backlog(own, speed), self.terms.policy, now)
            if found.rate > part:
                longer[length] = max(longer[length], found.rate)
                whole = replace(found, rate=planned_s + found.rate - part)
                spike = max(spike, whole, key=lambda each: each.rate)
        return spike, longer

    # -- following

    def _follow(
        self, held: dict[str, int], wants: Mapping[str, Wants], view: DemandView, now: float
    ) -> dict[str, int]:
        terms = Terms.of(self.terms.policy, self.starts.time_to_capacity_s())
        free, holds = not (self._starts(now) or view.partial), self.envelope.holds(now)
        targets = {}
        for name, target in held.items():
            own = self._hysteresis.setdefault(name, Hysteresis(now))
            own.record(wants[name], terms, now)
            raised = own.up(target, wants[name], now)
            if self._is_unplaced(name):
                needed = max(wants[name].relaxed, wants[name].spike)
                raised = min(target, max(needed, self.runs.readings[name].hot))
            elif free and raised == target and (own.in_spike or not holds):
                raised = own.down(target, wants[name], terms, now)
            targets[name] = raised
        return targets

    def _backlog(self, view: DemandView, speed: float) -> Backlog:
        wait_s = view.backlog_s / speed if speed else view.backlog_s * 1e9
        return Backlog(view.backlog_s, wait_s, self.slack_s, self.starts.time_to_capacity_s())

    def _is_unplaced(self, name: str) -> bool:
        return self.runs.is_unplaced(name, self.terms.policy.pending_limit_s)

    def _starts(self, now: float) -> bool:
        """Whether a replica starts, or was ordered a moment ago. Replicas that wait for a node, or
        have been starting for so long that they may never end, do not count."""
        patience_s = max(_MIN_PATIENCE_S, 4.0 * self.starts.time_to_capacity_s())
        for name, reading in self.runs.readings.items():
            if self._is_unplaced(name):
                continue
            own = self._hysteresis.get(name)
            ordered = own is not None and now - own.changed_at < _ORDER_SEEN_S
            starting = reading.starting and self.runs.start_s(name, now) <= patience_s
            if starting or (ordered and reading.target < self.targets.get(name, 0)):
                return True
        return False

    def _options(self) -> tuple[Option, ...]:
        options = []
        for group in self.terms.groups:
            maximum, counts = group.max, None
            reading = self.runs.readings.get(group.name)
            if group.name in self.pins:
                maximum = _within(self.pins[group.name], group)
                group = replace(group, min=maximum, max=maximum)
            elif reading is not None and self._is_unplaced(group.name):
                maximum, counts = max(group.min, self.targets[group.name]), reading.hot
            options.append(Option(group, Service.of(reading), maximum, counts))
        return tuple(options)

    # -- why

    def _reason(
        self, held: Mapping[str, int], targets: Mapping[str, int], wanted: Mapping[str, int],
        spike: Spike, plan: Plan,
    ) -> Reason:  # fmt: skip
        up = Reason.FORECAST if plan.trusted else Reason.STEADY
        if spike.rate and not spike.expected:
            up = Reason.SPIKE if spike.window_s else Reason.BACKLOG
        elif spike.expected:
            up = Reason.FORECAST
        if self.pins:
            return Reason.MANUAL
        if any(targets[name] > count for name, count in held.items()):
            return up
        if self._missing():
            return Reason.UNPLACED
        if any(targets[name] < count for name, count in held.items()):
            return Reason.DOWN
        if any(wanted[name] < count for name, count in targets.items()):
            return Reason.HELD
        return up if spike.rate else Reason.STEADY

    def _held_by(self, view: DemandView, now: float) -> str:
        if self._starts(now):
            return "a replica starts"
        if self.envelope.holds(now):
            return "a spike was a moment ago"
        if view.partial:
            return "a gateway is silent"
        return "demand needed more lately, or a little more demand would"

    def _missing(self) -> str:
        """What the replica lacks that has waited longest for a node, for the sentence; "": none
        waits too long."""
        longest = self.runs.longest_unplaced(self.terms.policy.pending_limit_s)
        return sentences.unplaced(longest) if longest is not None else ""

    # -- after the budget was applied

    def claims(self, proposal: Proposal) -> list[Claim]:
        """The model's claims on the budget. In mode OBSERVE it claims what the cluster is asked for
        already, so that no other model gets that."""
        claims = []
        for group in self.terms.groups:
            reading = self.runs.readings.get(group.name, GroupReading(group.name))
            asked = proposal.targets.get(group.name, reading.target)
            minimum = group.min
            if self.is_observed:
                asked = minimum = reading.target
            claims.append(
                Claim(
                    self.terms.name, group.name, group.needs, asked, minimum, reading.draining,
                    self.terms.priority,
                )
            )  # fmt: skip
        return claims

    def settle(
        self, proposal: Proposal, grants: Mapping[tuple[str, str], Grant], now: float
    ) -> ModelDecision:
        """The decision, after the budget. Without targets nothing is known, and the cluster keeps
        its numbers."""
        name, reason = self.terms.name, proposal.reason
        observed = self.is_observed
        bound, targets = "", dict(proposal.targets)
        for group, target in proposal.targets.items() if not observed else ():
            grant = grants[name, group]
            if grant.count < target:
                targets[group], reason, bound = grant.count, Reason.BUDGET, grant.bound
        self._commit(targets, now)
        text = sentences.decision(proposal, reason, targets, self.runs.hot, bound)
        return ModelDecision(
            model=name,
            groups=tuple(
                GroupTarget(group, proposal.wanted.get(group, target), target)
                for group, target in targets.items()
            ),
            reason=reason,
            text=text,
            offered_s=proposal.view.rate(RATE_WINDOW_S) if proposal.view.rates else 0.0,
            planned_s=max(proposal.plan.planned_s, proposal.spike.rate),
            forecast_s=proposal.plan.forecast_s if proposal.plan.trusted else 0.0,
            forecast_trusted=proposal.plan.trusted,
            time_to_capacity_s=self.starts.time_to_capacity_s(),
            observed=observed,
        )

    def _commit(self, targets: dict[str, int], now: float) -> None:
        for group, target in targets.items():
            if target != self.targets.get(group, target):
                self._hysteresis.setdefault(group, Hysteresis(now)).changed(now)
        if targets and sum(self.targets.values()) and not sum(targets.values()):
            self._asleep_since = now
            self.wake.asleep()
        if targets:
            self.targets = targets

    # -- state for a successor

    def save(self, now: float) -> dict[str, Any]:
        return {
            "pins": dict(self.pins),
            "described": self.described,
            "starts": self.starts.save(),
            "planning": self.planning.save(now),
            "dispersion_s": self.sizing.dispersion_s,
            "hold_s": None if self.envelope.hold_until is None else self.envelope.hold_until - now,
            "recurring": self.envelope.recurring.save(now),
            "wake": self.wake.save(now),
            "groups": {name: each.save(now) for name, each in self._hysteresis.items()},
        }

    def load(self, state: dict[str, Any], now: float) -> None:
        """Take over a saved state. Groups that are no longer listed are left out. Targets are not
        saved: they are read from the cluster."""
        names = {group.name for group in self.terms.groups}
        self.pins = {name: n for name, n in state["pins"].items() if name in names}
        self.described = state["described"]
        self.starts.load(state["starts"])
        self.planning.load(state["planning"], now)
        self.sizing.dispersion_s = state["dispersion_s"]
        if state["hold_s"] is not None:
            self.envelope.hold(now + state["hold_s"])
        self.envelope.recurring.load(state["recurring"], now)
        self.wake.load(state["wake"], now)
        for name, saved in state["groups"].items():
            if name in names:
                self._hysteresis[name] = Hysteresis(now)
                self._hysteresis[name].load(saved, now)


def _times(parts: Mapping[int, float], work: float, planned_s: float) -> dict[int, float]:
    """The parts of the planned work, as parts of so much work; never less."""
    factor = max(1.0, work / planned_s) if planned_s > 0.0 else 1.0
    return {length: factor * part for length, part in parts.items()}


def _within(count: int, group: GroupTerms) -> int:
    return max(group.min, min(count, group.max))
