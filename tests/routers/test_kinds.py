"""A model has one kind: its scheduler refuses replicas, settings and requests of the other."""

from __future__ import annotations

import pytest

from routers.api.errors import BadRequestEvent, BadSettings
from routers.api.events import Reconfigure, Replicas
from routers.api.requests import Generation, Replica, ReplicaKind
from routers.api.settings import DispatcherSettings, GenerationParameters
from routers.batch.scheduler import BatchScheduler
from routers.schedulers import scheduler_of
from routers.stream.scheduler import StreamScheduler

BATCHES = DispatcherSettings((32,))
STREAMS = DispatcherSettings((32,), generation=GenerationParameters())
OTHER = {ReplicaKind.BATCH: ReplicaKind.STREAM, ReplicaKind.STREAM: ReplicaKind.BATCH}


def test_the_settings_say_which_scheduler_serves_a_model():
    assert isinstance(scheduler_of(BATCHES), BatchScheduler)
    assert isinstance(scheduler_of(STREAMS), StreamScheduler)


def test_a_scheduler_refuses_settings_of_the_other_kind():
    with pytest.raises(BadSettings, match="generation must not be set"):
        BatchScheduler(STREAMS)
    with pytest.raises(BadSettings, match="generation must be set"):
        StreamScheduler(BATCHES)


@pytest.mark.parametrize(
    ("settings", "kind"), [(BATCHES, ReplicaKind.BATCH), (STREAMS, ReplicaKind.STREAM)]
)
def test_a_replica_of_the_other_kind_is_refused_and_all_stays_as_it_was(settings, kind):
    scheduler = scheduler_of(settings)
    scheduler.step(Replicas((Replica("a", 4.0, kind),)), 0.0)
    before = scheduler.snapshot(0.0)
    for listed in (("a", "b"), ("b",)):
        with pytest.raises(BadSettings, match=f"must be of kind {kind.value}"):
            scheduler.step(Replicas(tuple(Replica(n, 4.0, OTHER[kind]) for n in listed)), 0.0)
    assert scheduler.snapshot(0.0) == before


def test_a_model_keeps_its_kind(start):
    for settings, other in ((BATCHES, STREAMS), (STREAMS, BATCHES)):
        with pytest.raises(BadSettings):
            scheduler_of(settings).step(Reconfigure(other), 0.0)


def test_what_generates_is_refused_by_batches(start):
    with pytest.raises(BadRequestEvent, match="generates; this model does not"):
        start().arrive(1, 10, generation=Generation(5))
