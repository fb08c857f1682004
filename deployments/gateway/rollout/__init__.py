"""What a gateway does for a model's rollout: routes, counts, copies and compares."""
