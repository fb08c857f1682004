"""Models that are Python classes of the operator's own."""
