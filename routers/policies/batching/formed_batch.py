"""What a replica can take now, and the batch that is formed for it: the content of a lease."""

from __future__ import annotations

from routers.estimates.groups import LengthRange, ReplicaGroup, ReplicaGroups
from routers.state.flows import Charge
from routers.state.rows import Row


class ReplicaCapacity:
    """What one replica can take now, as batching policies are told it. Whoever makes one sets what
    differs from an idle replica; policies only read it."""

    replica_id: str
    group: ReplicaGroup  # whose costs hold for it
    idle: bool  # holds nothing
    trusted: bool  # its costs are known: it has answered, or was profiled
    last_edge: int  # bucket of the last batch that it was sent; 0: none
    lengths: LengthRange | None  # of rows that it may take; None: all
    longest_beside: int  # the longest row that another running replica takes; 0: none runs
    starts_in_s: float  # predicted seconds until its device is free
    others_idle: bool  # another replica of its group holds nothing
    groups: ReplicaGroups | None  # all of them, where there are several

    def __init__(self, replica_id: str, group: ReplicaGroup) -> None:
        self.replica_id, self.group = replica_id, group
        self.idle = self.trusted = True
        self.last_edge, self.lengths, self.longest_beside = 0, None, 0
        self.starts_in_s, self.others_idle, self.groups = 0.0, False, None

    def allows(self, row: Row) -> bool:
        """Whether the row may go to this replica. To the one that it avoids it goes only where no
        other replica runs that takes rows of its length."""
        if self.lengths is not None and row.edge not in self.lengths:
            return False
        return row.avoid != self.replica_id or row.edge > self.longest_beside


class FormedBatch:
    """The content of a lease: rows in order, and what they are predicted to take.

    `width`: tokens a row that costs are predicted for: the longest row, or the mean if packed;
    `edge`: of the bucket that leads.
    """

    def __init__(self, rows: list[Row], width: int, edge: int, charge: Charge) -> None:
        self.rows, self.width, self.edge, self.charge = rows, width, edge, charge
