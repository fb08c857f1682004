"""Requests that generate: what they take, whose turn it is, where they go."""
