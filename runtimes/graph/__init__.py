"""What all backends share that run a stored graph, and the networks that are built as one."""
