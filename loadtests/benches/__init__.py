"""Benchmarks: one module for each measured claim. `docs/benchmarks.md` is written from their
reports."""
