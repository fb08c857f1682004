"""The request for a MIG plan, and the plan with everything that is shown of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autoscaling.mig.packing import Plan
from deployments.tools.plan.needs import MARGIN, Need


@dataclass(frozen=True, slots=True)
class MigRequest:
    """The options of `headrace plan mig`."""

    gpu: str  # the GPUs' model
    gpus: int | None = None  # how many there are; None: as many as the plan needs
    per_node: int = 8  # GPUs of one node
    need_mib: Mapping[str, int] = field(default_factory=dict)  # measured memory, by model or group
    profiles: Mapping[str, str] = field(default_factory=dict)  # slices to take, by model or group
    usable: Mapping[str, int] = field(default_factory=dict)  # a slice's MiB by profile
    margin: float = MARGIN  # share that is added to memory not in `need_mib`
    surge: bool = False  # plan slices for new replicas beside old ones while a model changes
    values: Path | None = None  # the chart's values in force


@dataclass(frozen=True, slots=True)
class MigPlan:
    """A plan with the needs that it serves and the files that describe it to a cluster."""

    request: MigRequest
    needs: tuple[Need, ...]
    plan: Plan
    remarks: tuple[str, ...]
    files: Mapping[str, Any]  # content by file name
    pods: tuple[Mapping[str, Any], ...]  # a pod of each worker group, for users without the chart

    @property
    def complete(self) -> bool:
        """Whether every replica that needs a slice has one."""
        return not self.plan.rejected and not any(need.unknown for need in self.needs)
