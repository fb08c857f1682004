"""Turns texts and images into a model's input, with one code for all that feed models."""
