"""The autoscaler: one named actor, and what Serve's controller reads of it."""
