"""What keeps a model from being profiled, in a sentence for whoever asked."""

from __future__ import annotations


class WrongArguments(ValueError):
    """The arguments name what is not there; the message says what is."""


class CannotProfile(RuntimeError):
    """The model does not load or does not run; the message is its backend's."""
