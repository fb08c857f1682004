"""What a policy for bucket edges is shown, and what it answers.

It is asked once in a while, with the shares of the lengths that lately arrived. It changes nothing:
whether its answer comes into force is decided by `EdgeSolver`, from the waste of the edges in force
and of the best ones. A policy counts that waste in a unit of its own, but both in the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from routers.policies.edges.prices import BatchBounds, Cost, LengthShares


@dataclass(frozen=True, slots=True)
class EdgeView:
    """What edges are chosen by."""

    lengths: LengthShares  # edges are chosen from its points; the last is the longest row allowed
    edges: tuple[int, ...]  # in force; the last is the longest row allowed
    most: int  # edges at most, at least 1
    cost: Cost
    bounds: BatchBounds
    servers: float  # replicas that work for this gateway


@dataclass(frozen=True, slots=True)
class BestEdges:
    """The best edges, with the waste of the edges in force (`waste`) and of the best ones
    (`min_waste`). `capacity`: rows a second that the best ones serve; 0: the policy does not
    ask."""

    edges: tuple[int, ...]
    waste: float
    min_waste: float
    capacity: float = 0.0


class EdgePolicy(Protocol):
    def best(self, view: EdgeView) -> BestEdges | None:
        """At most `view.most` edges, ascending, the last one the longest row allowed; None: nothing
        can be said yet. Asked about its own answer it finds nothing better."""
        ...
