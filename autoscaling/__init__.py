"""Policies that map a snapshot of load to a number of replicas (pure; no cluster, no clock)."""
