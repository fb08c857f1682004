"""How much of the forecasts' margin counts for a length, by its share of its flow's time?

In overload each length of a flow should have its fair share of the flow's device seconds: the
lesser of what the length asks for and an equal part of what the others leave. The unit is predicted
device seconds of rows served in time. Batches take turns to that end (`lanes.FlowQueue`), but a row
that was not let in gets no turn: a margin of so many milliseconds, the same for all lengths, leaves
a long row, which must start early, hardly any slack.

So the margin counts whole for a length that has its fair share, and not at all for a length that
has 0.7 of it or less. Forecasts for that length are then wrong more often, and it has its turns.
Lengths that are not refused have what they ask for, and do not enter into the fair share.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

MIN_SHARE: Final = 0.7  # of its fair share, up to which none of the margin counts
# Of its new requests called late, from which a length asks for more than it gets
_REFUSED: Final = 0.05


@dataclass(frozen=True, slots=True)
class LengthUse:
    """`given`: predicted device seconds a second that rows of the length were lately given.
    `refused`: the share of its new requests lately called late, 0..1."""

    given: float
    refused: float


def margin_part(own: LengthUse, all_lengths: Collection[LengthUse]) -> float:
    """The part of the margin that counts for the length `own`, 0..1. `all_lengths`: the flow's
    lengths that were lately asked for, `own` among them."""
    given = [each.given for each in all_lengths if each.refused >= _REFUSED]
    if own.refused < _REFUSED or len(given) < 2:
        return 1.0
    fair = sum(given) / len(given)
    if fair <= 0.0:
        return 1.0
    part = (own.given / fair - MIN_SHARE) / (1.0 - MIN_SHARE)
    return min(1.0, max(0.0, part))
