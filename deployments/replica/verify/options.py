"""What is asked of a comparison: the model's `accept` section, and what the command line says over
it.

Bounds given on the command line replace all of the section's, so that what was not asked for there
does not come from elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deployments.replica.verify.agreement import MEASURES, Tolerances
from deployments.replica.verify.verification import Asked
from deployments.settings import AcceptSettings, source_path


def of_settings(accept: AcceptSettings) -> Asked:
    """Raises SourceError where a file that is named is not here."""
    return Asked(
        against=accept.against,
        artifact=_path(accept.artifact),
        file=_path(accept.samples_file),
        count=accept.samples,
        tolerances=Tolerances(**{name: getattr(accept, name) for name in MEASURES}),
    )


def of_command_line(accept: AcceptSettings, given: Mapping[str, Any]) -> Asked:
    """`given`: the options by name, None where left out."""
    base = of_settings(accept)
    bounds = {name: given[name] for name in MEASURES}
    stated = any(bound is not None for bound in bounds.values())
    return Asked(
        against=given["against"] or base.against,
        artifact=given["artifact"] or base.artifact,
        file=given["samples_file"] or base.file,
        count=given["samples"] or base.count,
        seed=given["seed"] or base.seed,
        tolerances=Tolerances(**bounds) if stated else base.tolerances,
    )


def _path(named: str | None) -> Path | None:
    return None if named is None else source_path(named)
