"""Inputs that a request names instead of carrying them, and outputs that it wants elsewhere."""
