"""The registry of models, gateways and rollouts: one named actor."""
