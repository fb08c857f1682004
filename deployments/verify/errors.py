"""What keeps models from being compared, and what a comparison may end with."""

from __future__ import annotations

from runtimes.errors import LoadError


class CannotVerify(LoadError):
    """There is nothing to compare with, or what was asked for cannot be; says what would do."""


class NotAccepted(LoadError):
    """The model does not agree with its reference as its settings ask for; says where."""
