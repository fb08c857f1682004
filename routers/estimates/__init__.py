"""Estimates: what the core learns from measurements and predicts (costs, delays, lengths)."""
