"""Runs models on OpenVINO, on processors only."""
