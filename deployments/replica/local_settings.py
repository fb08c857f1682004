"""Turns the settings that a replica was sent into settings for this node."""

from __future__ import annotations

import copy
from typing import Any

from deployments.settings.model import ModelSettings
from deployments.settings_files.load import make_paths_absolute
from deployments.settings_files.sources import sources_folder


def settings_here(written: dict[str, Any], replicas: int) -> ModelSettings:
    """The settings as the user wrote them, with paths as on this node. `replicas`: the number that
    share the model's resources."""
    models = {"model": copy.deepcopy(written)}
    folder = sources_folder()
    if folder is not None:
        make_paths_absolute(models, folder)
    settings = ModelSettings.model_validate(models["model"])
    fixed = {"count": max(1, replicas), "min": None, "max": None}
    counted = settings.replicas.model_copy(update=fixed)
    return settings.model_copy(update={"replicas": counted})
