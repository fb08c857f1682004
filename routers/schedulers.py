"""The scheduler of a model: of streams where it generates, else of batches."""

from __future__ import annotations

from routers.api.settings import DispatcherSettings
from routers.batch.scheduler import BatchScheduler
from routers.stream.scheduler import StreamScheduler

AnyScheduler = BatchScheduler | StreamScheduler


def scheduler_of(settings: DispatcherSettings) -> AnyScheduler:
    """A new scheduler. Raises `BadSettings`."""
    return BatchScheduler(settings) if settings.generation is None else StreamScheduler(settings)
