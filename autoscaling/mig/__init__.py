"""Capacity on MIG-partitioned GPUs: which slices fit together, and whose replica goes where."""
