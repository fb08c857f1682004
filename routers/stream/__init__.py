"""Schedules streams: what serves models that generate, whose engines batch by themselves."""
