"""The production autoscaler in a simulation: what it is told."""

from __future__ import annotations

from autoscaling.autoscaler import Autoscaler
from autoscaling.settings import GroupTerms, ModelTerms, PoolTerms, ScalingSettings
from deployments.tools.simulate.fleet import Fleet, SimPool
from deployments.tools.simulate.scaling import ScalingController, ScalingRecord, ScalingSetup
from routers.simulation.devices import SimDevice


def make(group, name, number, serves_s):
    return SimDevice(name, lambda rows, width: 0.01, joins_at=serves_s, group=group)


def test_pool_replica_that_has_gone_is_forgotten(monkeypatch):
    gone = []
    monkeypatch.setattr(Autoscaler, "pool_gone", lambda self, replica: gone.append(replica))
    terms = ModelTerms("m", 0.5, (GroupTerms("", 1, 2),), in_pool=True)
    settings = ScalingSettings({"m": terms}, pool=PoolTerms(min=1, max=2))
    pool = SimPool("m", make, lambda: 10.0, lambda: 2.0, memory_bytes=100)
    pool.begin(1)  # one more than the autoscaler wants
    fleet = Fleet(make, lambda: 10.0)
    controller = ScalingController(
        ScalingSetup("m", settings, {"": 1}), fleet, pool, ScalingRecord(0.0, 60.0)
    )
    list(controller.reconcile(0.0, ()))
    assert (pool.size, gone) == (1, [])
    list(controller.reconcile(1.0, ()))
    assert gone == ["pool-1"]
