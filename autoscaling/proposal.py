"""What one model would have, and from what that was decided, before others' claims are heard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autoscaling.demand import DemandView
from autoscaling.envelope import Spike
from autoscaling.forecast import Plan
from autoscaling.types import Reason


@dataclass(frozen=True, slots=True)
class Proposal:
    """wanted and targets: replicas by group; targets is empty where nothing is known to hold.
    view, plan, spike: by which it was decided; detail: what else the sentence says."""

    reason: Reason
    wanted: Mapping[str, int] = field(default_factory=dict)
    targets: Mapping[str, int] = field(default_factory=dict)
    view: DemandView = field(default_factory=DemandView)
    plan: Plan = field(default_factory=Plan)
    spike: Spike = field(default_factory=Spike)
    detail: str = ""
