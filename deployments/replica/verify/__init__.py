"""Compares a model with its reference before it may serve."""
