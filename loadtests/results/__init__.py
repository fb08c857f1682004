"""What came of it: counts, percentiles, shares, tables."""
