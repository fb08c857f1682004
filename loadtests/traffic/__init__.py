"""The traffic of a load test: scenarios, the requests drawn from them, recorded traces."""
