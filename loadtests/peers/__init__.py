"""Other servers that do the same work, for comparison, each in a Python environment of its own."""
