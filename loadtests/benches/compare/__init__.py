"""Compares Headrace with the servers that one would use instead: same work, client and run."""
