"""Alerts and dashboards of a running Headrace: one description, and the files made from it."""
