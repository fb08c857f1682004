"""Backends that are nothing but time: for tests, benches and trying things out."""
