"""What a row's length is, from the settings and what the model declares.

The settings may name an input, an axis, a mask and a longest length; whatever they leave out is as
the model declares. An input that the model does not have, or a longest length that it cannot take,
is a `LoadError` in the words of the settings file, at the start and not at the first long row. The
backend finds what the model declares.
"""

from __future__ import annotations

from dataclasses import replace

from runtimes.errors import LoadError
from runtimes.types import Limits, RuntimeSettings


def longest(settings: RuntimeSettings, taken: int | None) -> int | None:
    """The longest row to declare; `taken`: what the model can take, None where it does not say."""
    configured = settings.max_length
    if configured is None:
        return taken
    if taken is not None and configured > taken:
        raise LoadError(
            f"lengths.max is {configured}, the model takes {taken} at most: set lengths.max "
            f"to {taken} or less"
        )
    return configured


def axis(settings: RuntimeSettings) -> int:
    """The batch is axis 0, and a row's length is the axis after it unless the settings say."""
    return 1 if settings.length_axis is None else settings.length_axis


def settled(limits: Limits, settings: RuntimeSettings) -> Limits:
    """For a model whose length is where it is: `limits` with the settings' longest row."""
    _refuse_other("input", settings.length_input, limits.length_input)
    _refuse_other("axis", settings.length_axis, limits.length_axis)
    _refuse_other("mask", settings.mask_input, limits.mask_input)
    return replace(limits, max_length=longest(settings, limits.max_length))


def _refuse_other(name: str, configured: str | int | None, own: str | int | None) -> None:
    if configured not in (None, own):
        own_words = "which has none" if own is None else f"where it is {own}"
        raise LoadError(f"lengths.{name} is {configured} for a model {own_words}: leave it out")
