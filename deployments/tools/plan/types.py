"""What a plan is asked for and what came of it. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autoscaling.mig.types import Plan
from deployments.tools.plan.needs import MARGIN, Need


@dataclass(frozen=True, slots=True)
class MigRequest:
    """gpus: how many there are, None: as many as it takes. need_mib, profiles: by model; usable:
    MiB by profile, as a node says. margin: share on top of what nobody measured. surge: slices for
    the replicas that start beside others while a model changes. values: of the chart, in force."""

    gpu: str
    gpus: int | None = None
    per_node: int = 8
    need_mib: Mapping[str, int] = field(default_factory=dict)
    profiles: Mapping[str, str] = field(default_factory=dict)
    usable: Mapping[str, int] = field(default_factory=dict)
    margin: float = MARGIN
    surge: bool = False
    values: Path | None = None


@dataclass(frozen=True, slots=True)
class MigPlan:
    """What came of a request: all that is shown, and the files. pods: of each worker group, what
    one asks for, for who has no chart."""

    request: MigRequest
    needs: tuple[Need, ...]
    plan: Plan
    remarks: tuple[str, ...]
    files: Mapping[str, Any]
    pods: tuple[Mapping[str, Any], ...]

    @property
    def complete(self) -> bool:
        """Whether every replica that wants a slice has one."""
        return not self.plan.rejected and not any(need.unknown for need in self.needs)
