"""How well does dispatching work: how often are batches raced, and is staging in time?

Two losses are measured against each other, both from what answers report. The idle gap: device
seconds from the end of a batch to the start of the next, where that had been sent before or was
sent at once. The early-binding loss: seconds that a staged batch waited at its replica, in which
its rows could not be bound otherwise. Just-in-time staging is right when neither is worth naming.
"""

from __future__ import annotations

from dataclasses import dataclass

from routers.leases import Lease
from routers.types import Report

_GAIN = 0.05


@dataclass(slots=True)
class Tally:
    """Counts since the start, and the two EWMAs in seconds."""

    hedges: int = 0
    hedges_won: int = 0
    ties: int = 0
    probes: int = 0
    retries: int = 0
    pushed_out: int = 0
    preempted: int = 0
    idle_gap_s: float = 0.0
    early_binding_s: float = 0.0

    def answered(self, lease: Lease, report: Report, now: float) -> None:
        """To be called before the holder learns that the lease has closed."""
        if report.service_s <= 0.0 or lease.holder.streams:
            return
        holder = lease.holder
        ended = now - report.transport_s / 2.0
        started = ended - report.service_s
        if lease.staged:
            waited = max(0.0, now - lease.sent_at - report.transport_s - report.service_s)
            self.early_binding_s += _GAIN * (waited - self.early_binding_s)
        if lease.sent_at <= holder.answered_at and not report.served:
            gap = max(0.0, started - holder.idle_from)
            self.idle_gap_s += _GAIN * (gap - self.idle_gap_s)
        holder.answered_at, holder.idle_from = now, ended
