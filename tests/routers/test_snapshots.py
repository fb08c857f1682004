"""A snapshot says what waits, and who was served what, by flow."""

from __future__ import annotations

import pytest


def flows(core):
    found = core.dispatcher.snapshot(core.now).flows
    return {(flow.tenant, flow.priority): flow for flow in found}


def test_each_tenant_and_priority_has_what_waits_and_what_it_was_served(start):
    core = start(initial_cost_s=0.01)
    core.arrive(1, 10, 10, tenant="a", weight=3.0)
    core.arrive(2, 10, tenant="a", priority=2)
    core.arrive(3, 10, tenant="b", slo_s=-1.0)
    found = flows(core)
    assert [(flow.rows, flow.late_rows) for flow in found.values()] == [(2, 0), (1, 0), (0, 1)]
    assert found["a", 0].weight == 3.0
    assert found["a", 0].waiting_s == pytest.approx(2 * found["a", 2].waiting_s)
    assert found["b", 0].waiting_s == 0.0


def test_device_seconds_of_a_batch_are_its_flows_together(start):
    core = start(initial_cost_s=0.01)
    (lease,) = [*core.arrive(1, 10, 10, 10, tenant="a"), *core.replicas("r")]
    core.arrive(2, 10, tenant="b")
    (other,) = core.close(lease, service_s=0.03)
    core.close(other, service_s=0.01)
    served = {key: flow.served_s for key, flow in flows(core).items()}
    assert served == {("a", 0): pytest.approx(0.03), ("b", 0): pytest.approx(0.01)}
