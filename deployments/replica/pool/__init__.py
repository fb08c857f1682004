"""Replicas of the shared pool: one process that serves several models, as it is told."""
