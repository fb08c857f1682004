"""What will be done to a model's inputs here, in the words of a fingerprint?

One mapping of everything between a request and the tensors that the runtime gets: the gateway's
tokeniser, and whatever else the model's settings ask for. It is compared with what is stored beside
the artifact (`runtimes.fingerprint`) before a replica loads it, and by `headrace check`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deployments.settings.model import ModelSettings
from runtimes import fingerprint


def done_here(model: ModelSettings, source: Path | None) -> dict[str, Any]:
    """Field to value; empty for a model that gets its tensors as they come."""
    return {**fingerprint.tokenizer(source)}


def check(model: ModelSettings, source: Path | None) -> None:
    """Raises `LoadError` where the model was made for other inputs than it would get here."""
    if source is not None:
        fingerprint.check(source, done_here(model, source))
