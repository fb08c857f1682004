"""How does this version of Headrace prepare a model's inputs?

The answer is one mapping (a fingerprint) of everything between a request and the tensors that the
runtime gets: the gateway's tokeniser, and the model's `image` section. It is compared with the
fingerprint stored beside the artifact (`runtimes.fingerprint`), before a replica loads the artifact
and by `headrace check`. What `image` leaves out is as the model's folder says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from deployments.settings.image import ImageSettings, TransformersImageSettings
from deployments.settings.model import ModelSettings
from runtimes import fingerprint, folder, image_processor, towers
from runtimes.errors import LoadError


def with_image(model: ModelSettings, source: Path | None) -> ModelSettings:
    """The settings with what `preprocessor_config.json` says of images: always where the model is a
    Hugging Face folder, else where `image.size` is left out. Raises `LoadError` for settings that
    say another thing, and where nothing says how large images are."""
    image = model.image
    if image is None or source is None:
        return model
    configured = (source / "config.json").is_file()
    if image.size is not None and not configured:
        return model
    found = image_processor.stored(source)
    if found is None and image.size is None:
        family = folder.configuration(source).get("model_type") if configured else None
        if family in folder.FAMILIES:
            raise towers.no_images(source / "config.json", family)
        raise LoadError(
            f"{source} has no preprocessor_config.json, which would say how images are prepared; "
            "add it, or set image.size and the other fields of image as in the model's training"
        )
    return model if found is None else model.model_copy(update={"image": _joined(image, *found)})


def _joined(image: ImageSettings, file: Path, said: dict[str, Any]) -> ImageSettings:
    done = image_processor.fields(file, said)
    size = done["size"]
    written = done | {"size": size if isinstance(size, int) else "{}x{}".format(*size)}
    given = {name: getattr(image, name) for name in image.model_fields_set}
    given = {name: value for name, value in given.items() if value is not None}
    try:
        joined = TransformersImageSettings.model_validate(written).model_copy(update=given)
    except ValidationError as error:
        raise LoadError(f"{file}: {error.errors()[0]['msg']}") from error
    wrong = fingerprint.differences(done, {"shorter_side": None, **image_fingerprint(joined)})
    if wrong:
        raise fingerprint.Mismatch(f"{file}: {'; '.join(wrong)}; leave it out of image")
    return joined


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
    """Raises `LoadError` if the model was made for inputs that are prepared differently. `model`:
    as `with_image` completes it."""
    if source is not None:
        fingerprint.check(source, supported_preprocessing(model, source))
