"""How much work were we asked for, whatever became of it?

Counters that only grow, for autoscaling: late binding hides the queue from every other observer,
and refusals hide demand. Unit: seconds of a full replica of the reference group. A request is
priced as its part of a batch of the planned size. A request to a model that generates is priced by
weighted tokens, at what a token costs on a full replica.

Offered is every first arrival, before queue bounds and admission control. Not offered are our own
retries and copies, requests that a cheaper model takes as another's fallback, and requests that no
replica could change (too long, expired, or over the tenant's own bound). A request refused before
its body was read counts as the mean of its flow's requests. Work: O(1) a request.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from routers.api.requests import Reason
from routers.api.snapshot import OfferedSnapshot

_LOAD: Final = frozenset(
    each.value for each in (Reason.QUEUE_FULL, Reason.LATE, Reason.SHED, Reason.EXPIRED)
)
_MEAN_GAIN: Final = 0.05  # of the moving average of a flow's requests


class MeanWork:
    """Mean work of one flow's requests, seconds (EWMA); 0.0 until one was seen."""

    def __init__(self) -> None:
        self.seconds = 0.0


_LENGTHS: Final = 64  # intervals of lengths, by powers of two: all lengths are below 2**64


@dataclass(slots=True)
class OfferedWork:
    """The counters of one model at one gateway. The caller decides what counts as offered."""

    # At the planned batch size: priced by small batches, more replicas would make every row dearer
    # and so ask for still more.
    work_s: float = 0.0
    sq_s2: float = 0.0  # sum of the squares of requests' work, for their variance
    requests: int = 0
    served_s: float = 0.0
    came: int = 0  # all requests, those that are not offered included
    refused_for_load: int = 0  # of these, rejected or evicted
    refused: dict[str, int] = field(default_factory=dict)  # by reason
    longer_s: dict[int, float] = field(default_factory=dict)  # work of rows longer than a bound
    _by_length: list[float] = field(default_factory=lambda: [0.0] * _LENGTHS)

    def add(self, work_s: float, length: int, flow: MeanWork | None) -> None:
        """Count a request that was read and asks for this work. `length`: tokens. `flow`: the mean
        of its flow, which is updated; None: not known."""
        self.work_s += work_s
        self.sq_s2 += work_s * work_s
        self.requests += 1
        self._by_length[(length - 1).bit_length() if length > 1 else 0] += work_s
        if flow is not None:
            known_s = flow.seconds
            flow.seconds = known_s + _MEAN_GAIN * (work_s - known_s) if known_s else work_s

    def add_longer(self, bound: int, work_s: float) -> None:
        """Count work, which was or will be counted by `add`, as that of rows longer than `bound`,
        at which a group of replicas ends."""
        self.longer_s[bound] = self.longer_s.get(bound, 0.0) + work_s

    def add_unread(self, flow: MeanWork | None) -> None:
        """Count a request that was turned away before it was known what it takes. `flow`: None if
        the flow is new."""
        if self.work_s > 0.0:
            work_s = 0.0 if flow is None else flow.seconds
            work_s = work_s or self.work_s / self.requests
            self.sq_s2 += work_s * self.sq_s2 / self.work_s  # as varied as the requests read
            for bound, longer_s in self.longer_s.items():
                self.longer_s[bound] = longer_s * (1.0 + work_s / self.work_s)  # and as long
            self.work_s += work_s
        self.requests += 1

    def refuse(self, reason: str) -> None:
        """Count a refusal by its reason."""
        if reason in _LOAD:
            self.refused_for_load += 1
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def snapshot(self) -> OfferedSnapshot:
        """The counters as they are; lengths by the upper end of their interval."""
        by_length = [(1 << at, work_s) for at, work_s in enumerate(self._by_length) if work_s]
        refused = tuple(self.refused.items())
        return OfferedSnapshot(
            self.work_s, self.sq_s2, self.requests, self.served_s, refused, tuple(by_length),
            tuple(self.longer_s.items()),
        )  # fmt: skip
