"""Costs: how long a batch takes, predicted, measured and corrected."""
