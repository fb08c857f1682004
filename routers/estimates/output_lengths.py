"""How many tokens will a request's output have?

Quantiles of the lengths that outputs have lately had for prompts of about the same length from the
same tenant; while fewer than eight of those are known, from all tenants; while those are not known
either, all that the request may have (`max_tokens`). An output that is longer than predicted is
predicted anew from the outputs that got as far; beyond all of those, twice what it has. Requests
whose caller left teach nothing. Memory is bounded: histories used least recently are forgotten, and
in one history about the last two hundred outputs count. Unit: tokens of one sequence.

Source: quantile prediction for scheduling and reserving, as in SSJF (2024).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from math import ceil, log2
from typing import Final

_BINS: Final = 8  # to a doubling: within 9 %
_LEAST: Final = 8  # outputs before a history is used
_SPAN: Final = 200.0  # about so many outputs count
_MOST: Final = 1024  # histories
_HEAVIEST: Final = 1e12  # weight at which all weights are divided


@dataclass(slots=True)
class _History:
    """Outputs of one kind: weights by bin, a newer output a little heavier than the one before."""

    bins: list[float] = field(default_factory=list)
    weight: float = 1.0
    outputs: int = 0

    def learn(self, tokens: float) -> None:
        place = _bin(tokens)
        if place >= len(self.bins):
            self.bins += [0.0] * (place + 1 - len(self.bins))
        self.bins[place] += self.weight
        self.outputs += 1
        self.weight *= 1.0 + 1.0 / _SPAN
        if self.weight > _HEAVIEST:
            self.bins = [each / self.weight for each in self.bins]
            self.weight = 1.0

    def quantile(self, quantile: float, beyond: float) -> float | None:
        """The quantile of the outputs longer than `beyond`; None where hardly any was."""
        start = _bin(beyond + 1.0) if beyond > 0.0 else 0
        above = sum(self.bins[start:])
        if above < self.weight:
            return None
        left = quantile * above
        for place in range(start, len(self.bins)):
            left -= self.bins[place]
            if left <= 0.0:
                return _middle(place)
        return _middle(len(self.bins) - 1)


class OutputLengths:
    """Histories of output lengths, by tenant and prompt length. `fixed`: so many tokens are
    expected of each request, and nothing is learnt."""

    def __init__(self, fixed: int | None = None) -> None:
        self.fixed = fixed
        self.frozen = False
        self._known: OrderedDict[tuple[str, int], _History] = OrderedDict()
        self._all: dict[int, _History] = {}  # by class of prompt lengths, over all tenants

    def __len__(self) -> int:
        return len(self._known)

    def learn(self, tenant: str, length: int, tokens: float) -> None:
        """A prompt of this length and tenant has had an output of so many tokens."""
        if self.frozen or self.fixed is not None or tokens < 1.0:
            return
        kind = _class(length)
        self._all.setdefault(kind, _History()).learn(tokens)
        history = self._known.get((tenant, kind))
        if history is None:
            history = self._known[tenant, kind] = _History()
            if len(self._known) > _MOST:
                self._known.popitem(last=False)
        self._known.move_to_end((tenant, kind))
        history.learn(tokens)

    def predict(
        self, tenant: str, length: int, most: float, quantile: float, so_far: float = 0.0
    ) -> float:
        """The quantile of the tokens in all: at most `most`, and more than `so_far` (unless that is
        `most`)."""
        if so_far >= most or quantile >= 1.0:
            return most
        if self.fixed is not None:
            return min(most, max(float(self.fixed), _further(so_far)))
        kind = _class(length)
        for history in (self._known.get((tenant, kind)), self._all.get(kind)):
            if history is None or history.outputs < _LEAST:
                continue
            found = history.quantile(quantile, so_far)
            return min(most, _further(so_far) if found is None else max(found, so_far + 1.0))
        return most


def _further(so_far: float) -> float:
    """The guess for an output that is longer than all known ones."""
    return 2.0 * so_far


def _class(length: int) -> int:
    """Class of a prompt's length: within a factor of four, prompts are alike."""
    return (max(1, length).bit_length() + 1) // 2


def _bin(tokens: float) -> int:
    return int(_BINS * log2(tokens)) if tokens > 1.0 else 0


def _middle(place: int) -> float:
    return float(ceil(2.0 ** ((place + 0.5) / _BINS)))
