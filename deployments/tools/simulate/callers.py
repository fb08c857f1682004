"""Translates a scenario's requests for the simulator, and their outcomes for the summary.

It stands between `loadtests.traffic.plan` and `loadtests.results.summary` on one side and
`routers.simulation.simulator` on the other, and decides nothing. A refused caller gets
`Retry-After` in whole seconds, as in HTTP. Latencies include the scenario's `network_ms`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from math import inf

from deployments.contract.errors import OverOwnLimit, whole_seconds
from deployments.gateway.tenancy.rates import Rates
from deployments.settings.key import RateSettings
from deployments.tools.simulate.sim_setup import SimSetup
from loadtests.results.summary import Ending, MeasuredBatch, Summary
from loadtests.traffic.plan import Planned, TrafficPlan
from routers.api.requests import Reason
from routers.simulation.traffic import Arrival, SimLease, SimOutcome

_CALLERS_FAULT = {Reason.TOO_LONG, Reason.TOO_LARGE}  # asking again would not help
_REFUSED = {Reason.QUEUE_FULL, Reason.TENANT_FULL, Reason.LATE}
_LEFT = "left"
_NO_RATE = RateSettings()


class Callers:
    """Requests come as planned, are held to their tenants' rates at the door, and when they have
    ended are followed by retries and by a loop's next."""

    def __init__(self, plan: TrafficPlan, setup: SimSetup) -> None:
        self._plan = plan
        self._setup = setup
        self._now = 0.0
        self._rates = [Rates(setup.gateways, lambda: self._now) for _ in range(setup.gateways)]

    @property
    def are_limited(self) -> bool:
        return any(each.tenant.rate != _NO_RATE for each in self._setup.terms.values())

    def door(self, arrival: Arrival, now: float) -> float:
        """See `routers.simulation.traffic.Door`; as the gateways keep rates."""
        self._now = now
        tenant = self._setup.terms[arrival.tenant].tenant
        try:
            self._rates[arrival.gateway].take_request(tenant)
            self._rates[arrival.gateway].take_tokens(tenant, sum(arrival.lengths))
        except OverOwnLimit as refusal:
            return refusal.retry_after_s
        return 0.0

    def arrivals(self) -> Iterator[Arrival]:
        return map(self._arrival, (each for each in self._plan.requests() if not each.malformed))

    def follow(self, outcome: SimOutcome, now: float) -> Arrival | None:
        planned = outcome.arrival.caller
        assert isinstance(planned, Planned)
        following = None
        if outcome.reason is not None and outcome.reason not in _CALLERS_FAULT:
            following = self._plan.again(planned, now, _header_s(outcome.retry_after_s))
        following = following or self._plan.next_in_loop(planned, now)
        return None if following is None else self._arrival(following)

    def _arrival(self, planned: Planned) -> Arrival:
        terms, longest = self._setup.terms[planned.tenant], self._setup.longest
        lengths = planned.lengths
        if longest is not None and max(lengths) > longest:
            lengths = tuple([min(length, longest) for length in lengths])
        prompts, generation, output = self._setup.prompts, None, 0
        if prompts is not None:
            lengths = lengths[:1]
            generation, output = prompts.asked(planned, lengths[0])
        return Arrival(
            planned.at_s,
            lengths,
            terms.slo_s,
            terms.timeout_s,
            inf if planned.leave_s is None else planned.at_s + planned.leave_s,
            planned.tenant,
            terms.priority,
            terms.weight,
            terms.tenant_rows,
            planned.session,
            terms.retryable,
            planned.gateway,
            planned.attempt,
            planned,
            generation,
            output,
        )


class SummaryObserver:
    """The observer that fills a summary. `on_progress(now, requests)`: every thousandth request."""

    def __init__(
        self,
        summary: Summary,
        setup: SimSetup,
        network_s: float,
        on_progress: Callable[[float, int], None],
    ) -> None:
        self._summary = summary
        self._setup = setup
        self._network_s = network_s
        self._on_progress = on_progress
        self._row_cost_s = lru_cache(maxsize=65_536)(setup.row_cost_s)
        self._requests = 0

    def arrived(self, outcome: SimOutcome, now: float) -> None:
        arrival = outcome.arrival
        self._summary.sent(arrival.tenant, arrival.at, self._cost_s(arrival), arrival.attempt)
        self._requests += 1
        if self._requests % 1000 == 0:
            self._on_progress(now, self._requests)

    def ended(self, outcome: SimOutcome, now: float) -> None:
        arrival = outcome.arrival
        ending = Ending(
            arrival.tenant, arrival.at, max(arrival.lengths), arrival.slo_s, self._cost_s(arrival)
        )
        if outcome.answered_at is not None:
            ending.latency_s = outcome.answered_at - arrival.at + self._network_s
            started_at = now if outcome.started_at is None else outcome.started_at
            ending.wait_s = started_at - arrival.at
            if outcome.first_at is not None:
                ending.first_s = outcome.first_at - arrival.at + self._network_s
                ending.per_token_s = outcome.token_s
        else:
            ending.reason = _LEFT if outcome.reason is None else outcome.reason.value
            ending.refused = outcome.reason in _REFUSED
        self._summary.ended(ending, now)

    def sent(self, sim_lease: SimLease, now: float) -> None:
        pass

    def served(self, sim_lease: SimLease, service_s: float, now: float) -> None:
        lease = sim_lease.dispatch
        whole_s = sum([seconds for _, _, seconds in lease.charges])
        batch = MeasuredBatch(
            len(sim_lease.members),
            sim_lease.tokens,
            sim_lease.padded_tokens,
            service_s,
            bool(lease.copy_of),
        )
        if whole_s > 0.0:
            batch.paid = [(who, service_s * part / whole_s) for _, who, part in lease.charges]
        self._summary.batch(batch, now)

    def _cost_s(self, arrival: Arrival) -> float:
        lengths = arrival.lengths
        if arrival.generation is not None:
            return self._setup.generation_cost_s(lengths[0], arrival.output)
        if len(lengths) == 1:
            return self._row_cost_s(lengths[0])
        return sum(map(self._row_cost_s, lengths))


def _header_s(retry_after_s: float) -> float:
    """What the `Retry-After` header says; 0: there is none."""
    return float(whole_seconds(retry_after_s)) if retry_after_s > 0.0 else 0.0
