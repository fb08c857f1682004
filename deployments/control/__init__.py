"""The control plane: what starts, changes, watches and scales the processes that serve."""
