"""A model's settings as its replica was sent them, made those of this node."""

from __future__ import annotations

import copy
from typing import Any

from deployments.settings.load import make_paths_absolute
from deployments.settings.model import ModelSettings
from deployments.settings.sources import sources_folder


def settings_here(written: dict[str, Any], replicas: int) -> ModelSettings:
    """What the user wrote, with its paths as this node has them and how many replicas share it."""
    models = {"model": copy.deepcopy(written)}
    folder = sources_folder()
    if folder is not None:
        make_paths_absolute(models, folder)
    settings = ModelSettings.model_validate(models["model"])
    fixed = {"count": max(1, replicas), "min": None, "max": None}
    counted = settings.replicas.model_copy(update=fixed)
    return settings.model_copy(update={"replicas": counted})
