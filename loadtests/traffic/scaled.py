"""Scales a scenario to another rate: all callers call more or less often, in proportion.

The rate of a scenario is the number of first tries in its plan, per second of the measured time, so
bursts, ramps and recordings are counted as they are. Closed loops have no rate.
"""

from __future__ import annotations

from pathlib import Path

from loadtests.traffic.plan import TrafficPlan
from loadtests.traffic.scenario import Scenario, TenantPart
from loadtests.traffic.scenario_file import ScenarioErrors
from loadtests.traffic.scenario_traffic import ArrivalsPart


def rate_of(scenario: Scenario, folder: Path) -> float:
    """Requests a second. Raises ScenarioErrors where nobody calls at a rate, and TraceError."""
    arrivals = [scenario.arrivals_of(tenant) for _, tenant in scenario.callers()]
    if any(each is not None and each.process == "closed" for each in arrivals):
        raise ScenarioErrors("a closed loop has no rate; give the scenario arrivals that have one")
    planned = TrafficPlan(scenario, folder).requests()
    count = sum(each.at_s >= scenario.warmup_s for each in planned)
    if not count:
        raise ScenarioErrors("the scenario sends nothing in its measured time")
    return count / scenario.duration_s


def scaled(scenario: Scenario, factor: float) -> Scenario:
    tenants = {name: _tenant(tenant, factor) for name, tenant in scenario.tenants.items()}
    arrivals = scenario.arrivals and _arrivals(scenario.arrivals, factor)
    return scenario.model_copy(update={"arrivals": arrivals, "tenants": tenants})


def _tenant(tenant: TenantPart, factor: float) -> TenantPart:
    arrivals = tenant.arrivals and _arrivals(tenant.arrivals, factor)
    return tenant.model_copy(update={"arrivals": arrivals})


def _arrivals(arrivals: ArrivalsPart, factor: float) -> ArrivalsPart:
    steps = [s.model_copy(update={"rate": s.rate * factor}) for s in arrivals.steps]
    return arrivals.model_copy(
        update={
            "rate": None if arrivals.rate is None else arrivals.rate * factor,
            "speed": arrivals.speed * factor if arrivals.process == "trace" else arrivals.speed,
            "steps": tuple(steps),
            "plus": tuple(_arrivals(each, factor) for each in arrivals.plus),
        }
    )
