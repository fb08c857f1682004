"""How large can a body be that a model could take? What is larger is refused before it is read.

As many rows as may wait at once (`queue.max_rows`), each as long as the model takes
(`lengths.max`): so many numbers, or tokens of text. Prompts of what generates are bounded by the
tokens that a replica holds. Where the model says nothing (an axis of any size, BYTES, images, texts
that it cuts) there is no bound here, and those of `gateway.limits` stand alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, prod

from deployments.contract.description import ModelDescription
from deployments.contract.errors import BodyTooLarge

_NUMBER_BYTES = 32  # the longest FP64 has 24 characters; and a comma, and indentation
_SLACK_BYTES = 262_144  # names, shapes, parameters, outputs
_SLACK_NUMBERS = 4096
_PROMPT_BYTES, _BYTES_PER_TOKEN = 4 << 20, 64
_MOST_TEXTS, _TEXT_BYTES_PER_TOKEN = 2048, 16  # on average, of many texts; languages have 2 to 5


@dataclass(frozen=True, slots=True)
class BodyBound:
    """`numbers`: that a body of JSON may hold. `largest`: what follows, as a refusal calls it."""

    size_bytes: float = inf
    numbers: float = inf
    largest: str = ""

    def check_bytes(self, size: int) -> None:
        """Raises BodyTooLarge."""
        if size > self.size_bytes:
            raise BodyTooLarge(
                f"the body has {size} bytes, more than any request of {self.largest}: "
                f"{self.size_bytes:.0f}"
            )

    def check_numbers(self, count: int) -> None:
        """Raises BodyTooLarge."""
        if count > self.numbers:
            raise BodyTooLarge(
                f"the body holds {count} numbers or more, which is more than any request of "
                f"{self.largest}: {self.numbers:.0f}"
            )


UNBOUNDED = BodyBound()


def bound_of(d: ModelDescription, *, numbers: bool) -> BodyBound:
    """`numbers`: the body is a request of tensors; else of texts, or of lists of tokens."""
    if d.generating is not None:
        most = _PROMPT_BYTES + _BYTES_PER_TOKEN * d.generating.cache_tokens
        return BodyBound(most, inf, f"{d.generating.cache_tokens} tokens, which '{d.name}' holds")
    rows = d.scheduling.core.max_queue_rows
    largest = f"{rows} rows of {d.max_length}, which '{d.name}' takes (queue.max_rows, lengths.max)"
    if numbers:
        row = sum(_numbers(d, spec.datatype, spec.shape[1:]) for spec in d.inputs)
        numbers_in_all = rows * row + _SLACK_NUMBERS
        return BodyBound(_NUMBER_BYTES * numbers_in_all + _SLACK_BYTES, numbers_in_all, largest)
    if d.image is not None or d.truncate:
        return UNBOUNDED
    most = min(rows, _MOST_TEXTS) * d.max_length * _TEXT_BYTES_PER_TOKEN
    return BodyBound(most + _SLACK_BYTES, inf, largest)


def widest(models: Iterable[ModelDescription]) -> BodyBound:
    """For a body of texts that names its model itself: one of these."""
    bounds = [bound_of(d, numbers=False) for d in models]
    return max(bounds, key=lambda bound: bound.size_bytes, default=UNBOUNDED)


def _numbers(d: ModelDescription, datatype: str, axes: tuple[int, ...]) -> float:
    """Of one row of one input; inf: its shape does not say. Of images, callers may send others."""
    if datatype == "BYTES" or d.image is not None:
        return inf
    free = [axis for axis, size in enumerate(axes, 1) if size == -1]
    if free and (d.lengths_input is None or free != [d.lengths_axis]):
        return inf
    return prod(d.max_length if size == -1 else size for size in axes)
