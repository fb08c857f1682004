"""Schedules batches: what serves models whose replicas answer a batch at once."""
