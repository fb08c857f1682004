"""What `preprocessor_config.json` says of images, in the fields of `preprocessing.json`.

transformers writes that file beside a model that reads images; newer versions write it into
`processor_config.json`. What cannot be done here exactly as it says is refused. An image is resized
by Pillow, to whole levels, as transformers does without torchvision. A rescaling by another factor
than 1/255 becomes part of the mean and the standard deviation.

Source: transformers 5 (CLIPImageProcessor, SiglipImageProcessor, ViTImageProcessor).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtimes import fingerprint
from runtimes.errors import LoadError
from runtimes.folder import read
from runtimes.towers import PREPARED

_HALF = [0.5, 0.5, 0.5]
_SQUARE = {"height": 224, "width": 224}
_OF_CLIP = {
    "size": {"shortest_edge": 224},
    "crop_size": _SQUARE,
    "do_center_crop": True,
    "resample": 3,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {  # of what a file leaves out
    "CLIP": _OF_CLIP,
    "Siglip": {"size": _SQUARE, "resample": 3, "image_mean": _HALF, "image_std": _HALF},
    "ViT": {"size": _SQUARE, "resample": 2, "image_mean": _HALF, "image_std": _HALF},
}
_KINDS = ("ImageProcessorFast", "ImageProcessorPil", "ImageProcessor", "FeatureExtractor")
_OF_FAMILIES = {"clip": "CLIP", "siglip": "Siglip", "vit": "ViT"}  # where a file names no type
_RESIZES = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers
_OTHERS = {0: "nearest", 1: "lanczos", 4: "box", 5: "hamming"}
_LEVELS = 255.0


def stored(source: Path) -> tuple[Path, dict[str, Any]] | None:
    """The file that says how images are prepared for the model at `source`, and what it says of
    them; None where there is none. Raises `LoadError`."""
    for name in PREPARED:
        file = fingerprint.beside(source, name)
        said = {} if file is None else read(file)
        if file is None or not isinstance(said, dict):
            continue
        own = said.get("image_processor", said if name == PREPARED[0] else None)
        if isinstance(own, dict):
            return file, own
    return None


def fields(file: Path, said: Mapping[str, Any]) -> dict[str, Any]:
    """`said`: as `stored` found it in `file`. Raises `LoadError` for what is not done here."""
    kind = str(said.get("image_processor_type") or said.get("feature_extractor_type") or "")
    if not kind and (config := file.with_name("config.json")).is_file():
        kind = _OF_FAMILIES.get(str(read(config).get("model_type")), "")
    family = next((kind.removesuffix(end) for end in _KINDS if kind.endswith(end)), kind)
    if family not in _DEFAULTS:
        known = ", ".join(f"{each}ImageProcessor" for each in _DEFAULTS)
        raise LoadError(f"{file}: image_processor_type {kind!r} is not supported; {known} are")
    given = {**_DEFAULTS[family], **{key: v for key, v in said.items() if v is not None}}
    if given.get("do_resize") is False or given.get("do_pad"):
        what = "do_pad is true" if given.get("do_pad") else "do_resize is false"
        raise LoadError(f"{file}: {what}; images have to be resized to one size")
    try:
        return {**_shape(file, given, family), **_levels(file, given)}
    except (TypeError, ValueError, KeyError) as error:
        raise LoadError(
            f"{file}: size, crop_size, image_mean, image_std or rescale_factor is not as "
            f"transformers writes it: {error!r}"
        ) from error


def _shape(file: Path, given: Mapping[str, Any], family: str) -> dict[str, Any]:
    resample = given["resample"]
    if resample not in _RESIZES:
        name = _OTHERS.get(resample, "unknown")
        raise LoadError(
            f"{file}: resample is {resample!r} ({name}); only 2 (bilinear) and 3 (bicubic) are "
            "supported"
        )
    done = {"resize": _RESIZES[resample], "antialias": True, "rounded": True}
    size = _sides(given["size"], square=family == "ViT")
    crop = _sides(given["crop_size"], square=True) if given.get("do_center_crop") else size
    if len(crop) == 1:
        raise LoadError(
            f"{file}: size has shortest_edge alone and do_center_crop is not true, so images keep "
            "their shapes; they have to be of one size"
        )
    if size == crop:
        return {**done, "size": _written(crop), "shorter_side": None}
    if len(size) == 2 or size[0] < max(crop):
        raise LoadError(
            f"{file}: crop_size {_written(crop)} can only be cut from images whose shorter side "
            f"(size.shortest_edge) is at least as long; size is {given['size']}"
        )
    return {**done, "size": _written(crop), "shorter_side": size[0]}


def _sides(size: Any, *, square: bool) -> tuple[int, ...]:
    """(height, width), or the shorter side alone."""
    if isinstance(size, int):
        size = {"height": size, "width": size} if square else {"shortest_edge": size}
    said = {name: int(side) for name, side in dict(size).items() if side is not None}
    if said.keys() == {"shortest_edge"}:
        return (said["shortest_edge"],)
    if said.keys() != {"height", "width"} or min(said.values()) < 1:
        raise ValueError(f"size {size}")
    return said["height"], said["width"]


def _written(sides: tuple[int, ...]) -> int | list[int]:
    return sides[0] if sides[0] == sides[1] else list(sides)


def _levels(file: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    scale = float(given.get("rescale_factor", 1 / _LEVELS)) * _LEVELS
    if given.get("do_rescale") is False:
        scale = _LEVELS
    mean, std = [0.0] * 3, [1.0] * 3
    if given.get("do_normalize") is not False:
        mean, std = (_channels(given[name]) for name in ("image_mean", "image_std"))
    if scale <= 0 or min(std) <= 0:
        raise LoadError(f"{file}: rescale_factor and image_std have to be above 0")
    if abs(scale - 1) > fingerprint.CLOSE:
        mean, std = ([each / scale for each in numbers] for numbers in (mean, std))
    return {"mean": mean, "std": std, "colour": "RGB", "layout": "NCHW"}


def _channels(numbers: Any) -> list[float]:
    found = [float(each) for each in (numbers if isinstance(numbers, list) else [numbers] * 3)]
    if len(found) != 3:
        raise ValueError(f"{len(found)} channels")
    return found
