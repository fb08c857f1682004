"""How much work were we asked for, whatever became of it?

Counters that only grow, for whoever decides how many replicas there should be: late binding hides
the queue from everybody else, and refusals hide demand. Work is seconds of a full replica of the
reference group, each request priced as its part of a batch of the planned size: at the price of
small batches more replicas would make every row dearer, and ask for more replicas. Of a model that
generates it is weighted tokens at what one is worth on a full replica. Offered is every first
arrival, before bounds and feasibility: no retries and copies of ours, nothing that a cheaper model
takes for another, nothing that no replica could change (too long, over, or its tenant's own bound).
One that was refused unread counts as what its flow's requests take on average. O(1) a request.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from routers.api.snapshot import OfferedSnapshot

_MEAN_GAIN = 0.05


@dataclass(slots=True)
class MeanWork:
    """Of one flow's requests, seconds (EWMA); 0.0 while none was seen."""

    seconds: float = 0.0


_LENGTHS = 64  # intervals: lengths are below 2 to the power of it


@dataclass(slots=True)
class OfferedWork:
    """The counters of one model at one gateway; who calls says what counts as offered."""

    work_s: float = 0.0
    sq_s2: float = 0.0
    requests: int = 0
    served_s: float = 0.0
    refused: dict[str, int] = field(default_factory=dict)
    _by_length: list[float] = field(default_factory=lambda: [0.0] * _LENGTHS)

    def add(self, work_s: float, length: int, flow: MeanWork | None) -> None:
        """A request was read and asks for so much; `flow`: of its tenant and priority."""
        self.work_s += work_s
        self.sq_s2 += work_s * work_s
        self.requests += 1
        self._by_length[(length - 1).bit_length() if length > 1 else 0] += work_s
        if flow is not None:
            known_s = flow.seconds
            flow.seconds = known_s + _MEAN_GAIN * (work_s - known_s) if known_s else work_s

    def add_unread(self, flow: MeanWork | None) -> None:
        """A request was turned away before anybody knew what it takes; None: its flow is new."""
        if self.work_s > 0.0:
            work_s = 0.0 if flow is None else flow.seconds
            work_s = work_s or self.work_s / self.requests
            self.sq_s2 += work_s * self.sq_s2 / self.work_s  # scattered as what was read
            self.work_s += work_s
        self.requests += 1

    def refuse(self, reason: str) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def snapshot(self) -> OfferedSnapshot:
        by_length = [(1 << at, work_s) for at, work_s in enumerate(self._by_length) if work_s]
        refused = tuple(self.refused.items())
        return OfferedSnapshot(
            self.work_s, self.sq_s2, self.requests, self.served_s, refused, tuple(by_length)
        )
