"""Metrics pages of real servers under load, kept for dashboards and rules to be tried on."""
