"""Replicas of the shared pool: one process serves several models, as the autoscaler orders."""
