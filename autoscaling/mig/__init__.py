"""Packs replicas onto MIG-partitioned GPUs: which slices fit together, and where replicas go."""
