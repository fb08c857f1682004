"""`image`: how an encoded image is prepared for the model, and how large it may be.

A model that has this section takes images: each image becomes one row of the model's image input.
Every field but `max_pixels` must be exactly as in the model's training; what is left out is as the
model's folder says (`preprocessor_config.json`), if it has such a file. An image's length is its
number of patches of 16 x 16 pixels after it was resized to `size`.
"""

from __future__ import annotations

import re
import sys
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from yaml_document.section import Section, listed, wrong

PATCH = 16
MAX_SIDE = 8192
MAX_SIZES = 32
_HEIGHT_WIDTH = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})")
_SIZE_SHAPE = f"a side such as 224, or height x width such as '224x288', 1 to {MAX_SIDE} each"
_LEVELS = "must be a number or a list of 1 or 3 numbers, of levels from 0 to 1"


def _sizes(value: Any) -> Any:
    sizes = listed(value)
    sizes = sizes if isinstance(sizes, tuple) else (sizes,)
    if not 1 <= len(sizes) <= MAX_SIZES:
        raise wrong(f"has {len(sizes)} entries; must have 1 to {MAX_SIZES}")
    for position, size in enumerate(sizes):
        sides = _sides(size)
        if sides is None or not all(1 <= side <= MAX_SIDE for side in sides):
            raise wrong(f"is {size!r}; must be {_SIZE_SHAPE}", position)
        if position and _pixels(size) <= _pixels(sizes[position - 1]):
            raise wrong(f"is {size} after {sizes[position - 1]}; sizes must grow", position)
    return sizes


def _sides(size: Any) -> tuple[int, int] | None:
    if isinstance(size, int) and not isinstance(size, bool):
        return size, size
    found = _HEIGHT_WIDTH.fullmatch(size) if isinstance(size, str) else None
    return None if found is None else (int(found[1]), int(found[2]))


def _pixels(size: Any) -> int:
    height, width = _sides(size) or (0, 0)
    return height * width


def _channels(value: Any) -> Any:
    """The numbers as a tuple; a single number is for all channels."""
    numbers = listed(value)
    numbers = numbers if isinstance(numbers, tuple) else (numbers,)
    if len(numbers) not in (1, 3):
        raise wrong(_LEVELS)
    for position, number in enumerate(numbers):
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise wrong(_LEVELS)
        if not abs(number) <= sys.float_info.max:
            raise wrong("must be a finite number", position)
    return tuple(float(number) for number in numbers)


Sizes = Annotated[
    tuple[int | str, ...],
    BeforeValidator(_sizes, json_schema_input_type=int | str | list[int | str]),
]
Channels = Annotated[
    tuple[float, ...], BeforeValidator(_channels, json_schema_input_type=float | list[float])
]


class ImageSettings(Section):
    size: Sizes | None = Field(
        default=None,
        examples=["224, or [64, 128, '128x256']"],
        description="Size that images are resized to: the side of a square, or height x width. "
        "From a list, the smallest size that holds the image is taken, or the last. Images are "
        f"batched by length: their number of patches of {PATCH} x {PATCH} pixels. Unset: as "
        "`preprocessor_config.json` beside the model says, and so what else is left out here.",
    )
    resize: Literal["bilinear", "bicubic"] = Field(
        default="bilinear", description="Interpolation with which images are resized."
    )
    antialias: bool = Field(
        default=True,
        description="Whether the interpolation kernel widens when an image gets smaller, as in "
        "Pillow and torch's `interpolate(antialias=True)`; false: as in torch's `interpolate`.",
    )
    rounded: bool = Field(
        default=True,
        description="Whether resized pixels are rounded to whole levels of 0 to 255, as when "
        "Pillow or torchvision resizes an image; false: not rounded, as for a float tensor.",
    )
    shorter_side: int | None = Field(
        default=None,
        ge=1,
        le=MAX_SIDE,
        description="The image is resized so that its shorter side has this length and its shape "
        "is kept; then `size` is cropped from the middle. Unset: the image is stretched to `size`.",
    )
    mean: Channels = Field(
        default=(0.0,),
        examples=["[0.485, 0.456, 0.406]"],
        description="Mean that is subtracted from each channel (levels 0 to 1), in the order of "
        "`colour`.",
    )
    std: Channels = Field(
        default=(1.0,),
        examples=["[0.229, 0.224, 0.225]"],
        description="Standard deviation by which each channel is then divided.",
    )
    colour: Literal["RGB", "BGR", "grey"] = Field(
        default="RGB", description="The model's channels, in their order."
    )
    layout: Literal["NCHW", "NHWC"] = Field(
        default="NCHW", description="Order of the axes of the model's image input."
    )
    input: str | None = Field(
        default=None,
        description="Name of the model's image input. Unset: its only input with four axes.",
    )
    max_pixels: int = Field(
        default=50_000_000,
        ge=1,
        le=89_478_485,
        description="Largest image accepted, height x width; checked before it is decoded.",
    )

    # Of an odd number of pixels to cut away, whether the larger half is after the middle, as of
    # transformers' image processors; else the middle is rounded as torchvision's CenterCrop does.
    crops_down: ClassVar[bool] = False

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """(height, width) of each size, pixels, ascending by area; () where the model's own files
        say it."""
        return tuple(sides for size in self.size or () if (sides := _sides(size)) is not None)

    @property
    def channels(self) -> int:
        return 1 if self.colour == "grey" else 3

    @model_validator(mode="after")
    def _channels_agree(self) -> ImageSettings:
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            if len(numbers) not in (1, self.channels):
                raise wrong(
                    f"has {len(numbers)} numbers; must have 1, as colour {self.colour} has", name
                )
        for position, number in enumerate(self.std):
            if number <= 0:
                raise wrong(f"is {number:g}; must be above 0", "std", position)
        return self

    @model_validator(mode="after")
    def _the_middle_can_be_cut(self) -> ImageSettings:
        if self.shorter_side is None or self.size is None:
            return self
        if len(self.sizes) > 1:
            raise wrong("must be left out if size has several entries", "shorter_side")
        if self.shorter_side < max(self.sizes[0]):
            raise wrong(
                f"is {self.shorter_side}; must be at least {max(self.sizes[0])}, so that size can "
                "be cut out",
                "shorter_side",
            )
        return self


class TransformersImageSettings(ImageSettings):
    """What an image processor of transformers does."""

    crops_down: ClassVar[bool] = True


def patches(height: int, width: int) -> int:
    """The length of an image of this resolution: patches of 16 x 16 pixels, rounded up."""
    return -(-height * width // (PATCH * PATCH))
