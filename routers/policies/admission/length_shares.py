"""How much of the forecasts' margin counts for a length, by what it has had of its flow's time?

In overload each length of a flow should have its fair share of the flow's device seconds: the
lesser of what it asks for and an equal part of what the others leave, counted in predicted seconds
of its rows, those in time. Batches take turns so (`lanes.FlowQueue`), but a row gets no turn that
was never let in, and a margin of so many milliseconds, sized for all, leaves a long row, which must
start early, hardly any of its time. So the margin counts whole for a length that has its share,
not at all for one that has 0.7 of it: that one's forecasts are then wrong more often, and it has
its turns. Lengths that are not refused have what they ask for and set nobody's share.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

LEAST_SHARE = 0.7  # of its fair share, at which none of the margin counts
_REFUSED = 0.05  # of its new requests lately, from which a length asks for more than it gets


@dataclass(frozen=True, slots=True)
class LengthUse:
    """`given`: predicted device seconds a second that the length's rows were lately given;
    `refused`: the share of its new requests lately called late, 0..1."""

    given: float
    refused: float


def margin_part(own: LengthUse, all_lengths: Collection[LengthUse]) -> float:
    """0..1, for the length `own`, one of the flow's lengths that were lately asked for."""
    given = [each.given for each in all_lengths if each.refused >= _REFUSED]
    if own.refused < _REFUSED or len(given) < 2:
        return 1.0
    fair = sum(given) / len(given)
    if fair <= 0.0:
        return 1.0
    part = (own.given / fair - LEAST_SHARE) / (1.0 - LEAST_SHARE)
    return min(1.0, max(0.0, part))
