"""How does this version of Headrace prepare a model's inputs?

The answer is one mapping (a fingerprint) of everything between a request and the tensors that the
runtime gets: the gateway's tokeniser, and the model's `image` section. It is compared with the
fingerprint stored beside the artifact (`runtimes.fingerprint`), before a replica loads the artifact
and by `headrace check`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deployments.settings.image import ImageSettings
from deployments.settings.model import ModelSettings
from runtimes import fingerprint


def supported_preprocessing(model: ModelSettings, source: Path | None) -> dict[str, Any]:
    """Field to value; empty for a model that gets its tensors unchanged from the request."""
    image = {} if model.image is None else image_fingerprint(model.image)
    return {**fingerprint.tokenizer(source), **image}


def image_fingerprint(image: ImageSettings) -> dict[str, Any]:
    """Field to value. `size`: the side of a square, or [height, width], or a list of these.
    `shorter_side` is there only if it is set."""
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
    """Raises `LoadError` if the model was made for inputs that are prepared differently."""
    if source is not None:
        fingerprint.check(source, supported_preprocessing(model, source))
