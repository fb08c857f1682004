"""One module for each measured claim; `docs/benchmarks.md` is written from what they record."""
