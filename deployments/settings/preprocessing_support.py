"""What this version does to a model's inputs, in the words of a fingerprint.

One mapping of everything between a request and the tensors that the runtime gets: the gateway's
tokeniser, and whatever else the model's settings ask for. It is compared with what is stored beside
the artifact (`runtimes.fingerprint`) before a replica loads it, and by `headrace check`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deployments.settings.image import ImageSettings
from deployments.settings.model import ModelSettings
from runtimes import fingerprint


def supported_preprocessing(model: ModelSettings, source: Path | None) -> dict[str, Any]:
    """Field to value; empty for a model that gets its tensors as they come."""
    image = {} if model.image is None else image_fingerprint(model.image)
    return {**fingerprint.tokenizer(source), **image}


def image_fingerprint(image: ImageSettings) -> dict[str, Any]:
    """`size`: a square's side, else [height, width], else a list of those; `shorter_side` only
    where it is asked for."""
    height, width = image.sizes[0]
    single = height if height == width else [height, width]
    done: dict[str, Any] = {
        "resize": image.resize,
        "antialias": image.antialias,
        "size": single if len(image.sizes) == 1 else [list(sides) for sides in image.sizes],
        "mean": list(image.mean),
        "std": list(image.std),
        "layout": image.layout,
        "colour": image.colour,
        "rounded": image.rounded,
    }
    return done if image.shorter_side is None else {**done, "shorter_side": image.shorter_side}


def check(model: ModelSettings, source: Path | None) -> None:
    """Raises `LoadError` where the model was made for other inputs than it would get here."""
    if source is not None:
        fingerprint.check(source, supported_preprocessing(model, source))
