"""Which encoder of a Hugging Face folder is served, where the folder reads images or sounds?

CLIP and SigLIP have an encoder of images and one of texts: the first is served where the model's
settings say `image`, else the second. ViT reads images. Of Whisper the encoder is served; it reads
log-mel features. A row of an image or of features has one shape, which the configuration says.

This module reads the configuration alone; `runtimes.torch.towers` makes the networks.
Source: transformers 5 (CLIP, SigLIP, ViT, Whisper).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from runtimes.errors import LoadError

Reads = Literal["texts", "images", "sounds"]
PIXELS, FEATURES = "pixel_values", "input_features"
PREPARED = ("preprocessor_config.json", "processor_config.json")  # how images become rows
LABELLED = "ForImageClassification"
_SIDE = 224  # of an image, where the configuration does not say
_MELS, _FRAMES_A_POSITION = 80, 2
_POSITIONS = {"clip": 77, "siglip": 64, "whisper": 1500}  # where it does not say
_FAMILIES: Mapping[str, tuple[Reads, ...]] = {
    "clip": ("texts", "images"),
    "siglip": ("texts", "images"),
    "vit": ("images",),
    "whisper": ("sounds",),
}
FAMILIES = frozenset(_FAMILIES)
POOLED = frozenset({"clip", "siglip", "vit"})  # the network itself makes one vector of a row
_MODES: Mapping[str, Collection[str]] = {
    "vit": ("cls", "max", "mean"),
    "whisper": ("max", "mean"),
}  # of `runtimes.folder.MODES`, those that can take the place of the network's own
_TASKS: Mapping[Reads, Collection[str]] = {
    "texts": ("tensors", "embed"),
    "images": ("tensors", "embed", "classify"),
    "sounds": ("tensors", "embed"),
}


@dataclass(frozen=True, slots=True)
class Tower:
    """row: the shape of one row, of texts (); positions: tokens of the longest text."""

    family: str
    reads: Reads
    row: tuple[int, ...]
    positions: int | None = None


def tower_of(config: Mapping[str, Any], images: bool) -> Tower | None:
    """None for a family that reads texts alone. `images`: whether the settings say `image`. Raises
    `LoadError` for sizes that are none."""
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        return None
    kinds = _FAMILIES[family]
    reads = "images" if images and "images" in kinds else kinds[0]
    if reads == "sounds":
        frames = _FRAMES_A_POSITION * _whole(config, "max_source_positions", _POSITIONS[family])
        return Tower(family, reads, (_whole(config, "num_mel_bins", _MELS), frames))
    if reads == "texts":
        return Tower(family, reads, (), positions(config))
    own = config if family == "vit" else _part(config, "vision_config")
    side = own.get("image_size")
    if isinstance(side, list) and len(side) == 2:
        sides = [_whole({"image_size": each}, "image_size", _SIDE) for each in side]
    else:
        sides = [_whole(own, "image_size", _SIDE)] * 2
    return Tower(family, reads, (_whole(own, "num_channels", 3), *sides))


def positions(config: Mapping[str, Any]) -> int | None:
    """Of the encoder of texts; None where there is none. Raises `LoadError`."""
    family = config.get("model_type")
    if not isinstance(family, str) or "texts" not in _FAMILIES.get(family, ()):
        return None
    own = _part(config, "text_config")
    return _whole(own, "max_position_embeddings", _POSITIONS[family])


def no_images(file: Path, family: str) -> LoadError:
    """For a model whose settings say `image`. `file`: the configuration."""
    return LoadError(f"{file} is of {family}, which reads no images; leave the setting image out")


def check(
    file: Path, config: Mapping[str, Any], task: str, sizes: Collection[tuple[int, int]] | None
) -> None:
    """Raises `LoadError` for what is not supported. `file`: the configuration. `sizes`: the
    images' (height, width), None where the settings do not say `image`."""
    tower = tower_of(config, sizes is not None)
    assert tower is not None
    family = tower.family
    if tower.reads == "images" and sizes is None:
        raise LoadError(
            f"{file} is of {family}, which reads images; the model needs the setting image, such "
            "as image: {} for what preprocessor_config.json says"
        )
    if sizes is not None and tower.reads != "images":
        raise no_images(file, family)
    if task not in _TASKS[tower.reads]:
        raise LoadError(
            f"{file} is of {family}; its encoder of {tower.reads} has the tasks "
            f"{', '.join(_TASKS[tower.reads])}, not {task}"
        )
    channels, *shape = tower.row if tower.reads == "images" else (3,)
    if channels != 3:
        raise LoadError(f"{file}: num_channels is {channels}; only 3 is supported")
    other = [size for size in sizes or () if size != tuple(shape)]
    if other:
        raise LoadError(
            f"{file}: the network reads images of {' x '.join(map(str, shape))} pixels, image.size "
            f"makes {' x '.join(map(str, other[0]))}"
        )


def check_pooling(folder: Path, config: Mapping[str, Any], modes: Collection[str]) -> None:
    """`modes`: the pooling of the option, () where there is none. Raises `LoadError`."""
    family = str(config.get("model_type"))
    allowed = _MODES.get(family, ())
    unknown = [mode for mode in modes if mode not in allowed]
    if unknown:
        right = f"it can be {', '.join(allowed)}" if allowed else "leave it out"
        raise LoadError(
            f"{folder} is of {family}, and the option pooling is {unknown[0]}; {right}"
            + (", or left out" if family in POOLED and allowed else "")
        )


def _whole(config: Mapping[str, Any], name: str, unsaid: int) -> int:
    said = config.get(name)
    if said is None:
        return unsaid
    if type(said) is not int or said < 1:
        raise LoadError(f"config.json: {name} is {said!r}; it must be a whole number from 1")
    return said


def _part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = config.get(name)
    return part if isinstance(part, Mapping) else {}
