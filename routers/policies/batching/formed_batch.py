"""What a replica can take now, and the batch that is formed for it: the content of a lease."""

from __future__ import annotations

from dataclasses import dataclass

from routers.estimates.groups import LengthRange, ReplicaGroup, ReplicaGroups
from routers.state.flows import Charge
from routers.state.rows import Row


@dataclass(frozen=True, slots=True)
class ReplicaCapacity:
    """What one replica can take now, as batching policies are told it."""

    replica_id: str
    group: ReplicaGroup  # whose costs hold for it
    idle: bool = True  # holds nothing
    trusted: bool = True  # its costs are known: it has answered, or was profiled
    last_edge: int = 0  # bucket of the last batch that it was sent; 0: none
    lengths: LengthRange | None = None  # of rows that it may take; None: all
    longest_beside: int = 0  # the longest row that another running replica takes; 0: none runs
    starts_in_s: float = 0.0  # predicted seconds until its device is free
    others_idle: bool = False  # another replica of its group holds nothing
    groups: ReplicaGroups | None = None  # all of them, where there are several

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
