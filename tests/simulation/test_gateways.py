"""Shares hold across gateways, however skewed the ingress: each tenant comes to one of them."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from routers.api.settings import DispatcherSettings
from routers.simulation.simulator import Arrival, SimDevice, World, run

SETTINGS = DispatcherSettings(bucket_edges=(32,), max_size=16, slo_s=0.2)
SECONDS = 10.0


class Served:
    """SimDevice seconds by tenant and by gateway, between start and end of the backlog."""

    def __init__(self) -> None:
        self.by_tenant: Counter[str] = Counter()
        self.by_gateway: Counter[int] = Counter()

    def arrived(self, outcome, now):
        pass

    def sent(self, load, now):
        pass

    def ended(self, outcome, now):
        pass

    def served(self, load, service_s, now):
        if 1.0 < now < SECONDS:
            arrival = load.members[0][0].arrival
            self.by_tenant[arrival.tenant] += service_s
            self.by_gateway[arrival.gateway] += service_s

    def share(self, tenant: str) -> float:
        return self.by_tenant[tenant] / self.by_tenant.total()


def skewed(*weights, rate=400.0, seed=1):
    """Tenant `n` of weight `weights[n]` comes to gateway `n` alone, with twice what is there."""
    rng, arrivals = random.Random(seed), []
    for gateway, weight in enumerate(weights):
        now = 0.0
        while (now := now + rng.expovariate(rate)) < SECONDS:
            lengths = (rng.randint(8, 32),)
            arrivals.append(
                Arrival(now, lengths, 0.2, 1.0, tenant=str(gateway), weight=weight, gateway=gateway)
            )
    return sorted(arrivals, key=lambda arrival: arrival.at)


def device(spread=0.0):
    """Takes 30 ms and a little, varying; about 450 rows a second."""
    rng = random.Random(2)
    return SimDevice(
        "r",
        lambda rows, longest: 0.030 + 0.0002 * rows,
        transport_s=0.003,
        drag=lambda now: rng.lognormvariate(0.0, spread),
    )


@pytest.mark.parametrize(
    ("weights", "spread"),
    [((4.0, 1.0), 0.0), ((4.0, 1.0), 0.2), ((1.0, 1.0), 0.2), ((4.0, 1.0, 1.0), 0.2)],
)
def test_each_tenant_gets_its_share_by_weight_wherever_it_comes_in(weights, spread):
    served = Served()
    run(SETTINGS, skewed(*weights), World((device(spread),), gateways=len(weights)), served)
    for tenant, weight in enumerate(weights):
        assert served.share(str(tenant)) == pytest.approx(weight / sum(weights), rel=0.05)


@pytest.mark.parametrize(("gateways", "rate"), [(2, 1000.0), (3, 250.0), (3, 1000.0)])
def test_tenant_that_comes_to_all_gateways_is_served_at_all_alike(gateways, rate):
    arrivals = [replace(each, tenant="one") for each in skewed(*[1.0] * gateways, rate=rate)]
    served = Served()
    run(SETTINGS, arrivals, World((device(0.1),), gateways=gateways), served)
    shares = [served.by_gateway[n] / served.by_gateway.total() for n in range(gateways)]
    assert shares == pytest.approx([1 / gateways] * gateways, rel=0.1)


def test_device_does_not_idle_for_the_choice():
    served = Served()
    run(SETTINGS, skewed(4.0, 1.0), World((device(),), gateways=2), served)
    assert served.by_tenant.total() > 0.99 * (SECONDS - 1.0)
