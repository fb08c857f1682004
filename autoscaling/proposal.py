"""One model's proposal: the replicas that it would have by itself, and why.

The budget that all models share is applied to proposals afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autoscaling.demand import DemandView
from autoscaling.envelope import Spike
from autoscaling.forecast import Plan
from autoscaling.types import Reason


@dataclass(frozen=True, slots=True)
class Proposal:
    """What one model proposes."""

    reason: Reason
    wanted: Mapping[str, int] = field(default_factory=dict)  # replicas by group
    targets: Mapping[str, int] = field(default_factory=dict)  # by group; empty: none is known yet

    # What it was decided by.
    view: DemandView = field(default_factory=DemandView)
    plan: Plan = field(default_factory=Plan)
    spike: Spike = field(default_factory=Spike)
    detail: str = ""  # what else the sentence for users says
