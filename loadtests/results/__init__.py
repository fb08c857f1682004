"""The results of a load test: counts, percentiles, shares, tables."""
