"""Decides how many replicas each model should have, from readings of load. No cluster, no clock."""
