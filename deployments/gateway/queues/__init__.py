"""A gateway's models: which are served, what waits for each, and the connections to replicas."""
