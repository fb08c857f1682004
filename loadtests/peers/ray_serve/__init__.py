"""The comparison's work, served by Ray Serve."""
