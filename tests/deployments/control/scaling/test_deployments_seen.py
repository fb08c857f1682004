from __future__ import annotations

from typing import Any

from deployments.contract.scaling.messages import Observed
from deployments.control.scaling.readings import ServeObservations, Transition, running_ids

KEY = "model-a/model"


def details(*replicas: tuple[str, str, str | None]) -> dict[str, Any]:
    """As Serve has them: id, state and node of each."""
    found = [{"replica_id": i, "state": state, "node_id": node} for i, state, node in replicas]
    return {"model-a": {"deployments": {"model": {"replicas": found}}}}


def test_what_is_as_it_should_be_needs_no_second_look():
    seen = ServeObservations()
    seen.observe({KEY: Observed(2, 2)}, 0.0)
    assert seen.unsettled(1.0)  # it has only just been seen
    seen.observe({KEY: Observed(2, 2)}, 6.0)
    assert not seen.unsettled(6.0)
    seen.observe({KEY: Observed(2, 3)}, 7.0)
    assert seen.unsettled(100.0)


def test_one_that_goes_is_looked_at_until_it_is_gone():
    seen = ServeObservations()
    seen.observe({KEY: Observed(1, 1)}, 0.0)
    seen.detail(details(("r1", "RUNNING", "n"), ("r2", "STOPPING", "n")), 1.0)
    assert seen.pending[KEY] == Transition(0, 1, {})
    assert seen.unsettled(60.0)
    seen.detail(details(("r1", "RUNNING", "n")), 61.0)
    assert not seen.unsettled(61.0)


def test_a_replica_waits_for_its_place_from_when_it_was_first_seen_without_one():
    seen = ServeObservations()
    seen.observe({KEY: Observed(1, 3)}, 0.0)
    seen.detail(details(("r1", "RUNNING", "n"), ("r2", "STARTING", None)), 1.0)
    seen.detail(details(("r2", "STARTING", None), ("r3", "STARTING", None)), 5.0)
    assert seen.pending[KEY].starting == 2
    assert seen.pending[KEY].unplaced_s(11.0) == 10.0
    seen.detail(details(("r2", "STARTING", "n"), ("r3", "STARTING", None)), 12.0)
    assert seen.pending[KEY].unplaced_s(12.0) == 7.0
    seen.detail(details(("r2", "STARTING", "n"), ("r3", "RUNNING", "n")), 13.0)
    assert seen.pending[KEY].unplaced_s(13.0) == 0.0


def test_a_deployment_that_is_gone_is_forgotten():
    seen = ServeObservations()
    seen.observe({KEY: Observed(0, 1)}, 0.0)
    seen.detail(details(("r1", "STARTING", None)), 1.0)
    seen.observe({}, 10.0)
    assert (seen.pending, seen.unsettled(20.0)) == ({}, False)


def test_running_replicas_of_an_application():
    apps = details(("r1", "RUNNING", "n"), ("r2", "STARTING", "n"), ("r3", "RUNNING", "n"))
    assert running_ids(apps, "model-a") == {"r1", "r3"}
    assert running_ids(apps, "gateway") == set()
