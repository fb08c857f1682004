"""What does each model's scaling policy do? `headrace check` prints it for a valid file."""

from __future__ import annotations

from collections.abc import Iterator

from autoscaling.sentences import explain
from deployments.control.scaling.scaling_terms import scaling_document
from deployments.settings.model import ModelSettings
from deployments.settings.scaling import ModelScalingSettings
from deployments.settings.tree import Settings


def scaling_lines(settings: Settings) -> Iterator[str]:
    """Lines about each model that has a range of replicas or a `scaling` section. A fixed number
    needs no explanation."""
    terms = scaling_document(settings).settings.models
    for name, model in settings.models.items():
        if _is_scaled(model):
            yield f"{name}:"
            yield from (f"  {sentence}" for sentence in explain(terms[name]))


def _is_scaled(model: ModelSettings) -> bool:
    views = model.views() or {"": model}
    decided = any(view.replicas.least < view.replicas.most for view in views.values())
    return decided or model.scaling != ModelScalingSettings()
