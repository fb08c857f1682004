"""Generates files of the Helm chart from the settings and from the chart's own values."""
