"""`image`: what is done to an encoded image before the model gets it, and how large it may be.

A model that has this section takes images: each becomes one row of the model's image input. Every
setting is a part of what the model was trained with, except `max_pixels`; there is no way to say
"about so". `size` decides what an image's length is: its resolution in patches of 16 x 16 pixels.
"""

from __future__ import annotations

import re
import sys
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from yaml_document.section import Section, listed, wrong

PATCH = 16
MOST_SIDE = 8192
MOST_SIZES = 32
_HEIGHT_WIDTH = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})")
_SIZE_SHAPE = f"a side such as 224, or height x width such as '224x288', 1 to {MOST_SIDE} each"
_LEVELS = "must be a number or a list of 1 or 3 numbers, of levels from 0 to 1"


def _sizes(value: Any) -> Any:
    sizes = listed(value)
    sizes = sizes if isinstance(sizes, tuple) else (sizes,)
    if not 1 <= len(sizes) <= MOST_SIZES:
        raise wrong(f"has {len(sizes)} entries; must have 1 to {MOST_SIZES}")
    for position, size in enumerate(sizes):
        sides = _sides(size)
        if sides is None or not all(1 <= side <= MOST_SIDE for side in sides):
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
    """One number is for all channels."""
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
    size: Sizes = Field(
        examples=["224, or [64, 128, '128x256']"],
        description="What an image is resized to: a square's side, or height x width; of a list "
        "the smallest that holds the image, or the last. Its length is its number of patches of "
        f"{PATCH} x {PATCH} pixels, by which images are batched.",
    )
    resize: Literal["bilinear", "bicubic"] = Field(
        default="bilinear", description="Kernel that images are resized with."
    )
    antialias: bool = Field(
        default=True,
        description="Whether the kernel widens where an image gets smaller: as Pillow, and torch's "
        "`interpolate(antialias=True)`, or as torch's `interpolate` does without.",
    )
    rounded: bool = Field(
        default=True,
        description="Whether resized pixels are whole levels of 0 to 255 again, as of an image "
        "that Pillow or torchvision resizes; false: as of a float tensor.",
    )
    shorter_side: int | None = Field(
        default=None,
        ge=1,
        le=MOST_SIDE,
        description="The shorter side is resized to this, the shape kept, and the middle of "
        "`size` is cut out; unset, the image is stretched to `size`.",
    )
    mean: Channels = Field(
        default=(0.0,),
        examples=["[0.485, 0.456, 0.406]"],
        description="Taken from each channel, its levels being 0 to 1, in the order of `colour`.",
    )
    std: Channels = Field(
        default=(1.0,),
        examples=["[0.229, 0.224, 0.225]"],
        description="What each channel is then divided by.",
    )
    colour: Literal["RGB", "BGR", "grey"] = Field(
        default="RGB", description="Channels that the model takes, in this order."
    )
    layout: Literal["NCHW", "NHWC"] = Field(
        default="NCHW", description="Order of the axes of the model's image input."
    )
    input: str | None = Field(
        default=None, description="The model's image input; unset, its only input of four axes."
    )
    max_pixels: int = Field(
        default=50_000_000,
        ge=1,
        le=89_478_485,
        description="Largest image accepted, height x width, known before it is decoded.",
    )

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """(height, width), pixels, ascending by their product."""
        return tuple(sides for size in self.size if (sides := _sides(size)) is not None)

    @property
    def channels(self) -> int:
        return 1 if self.colour == "grey" else 3

    @model_validator(mode="after")
    def _channels_agree(self) -> ImageSettings:
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            if len(numbers) not in (1, self.channels):
                raise wrong(f"has {len(numbers)} numbers for {self.channels} channel", name)
        for position, number in enumerate(self.std):
            if number <= 0:
                raise wrong(f"is {number:g}; must be above 0", "std", position)
        return self

    @model_validator(mode="after")
    def _the_middle_can_be_cut(self) -> ImageSettings:
        if self.shorter_side is None:
            return self
        if len(self.sizes) > 1:
            raise wrong("must be left out where size has several entries", "shorter_side")
        if self.shorter_side < max(self.sizes[0]):
            raise wrong(
                f"is {self.shorter_side}; must be at least {max(self.sizes[0])}, or nothing of "
                "size could be cut out",
                "shorter_side",
            )
        return self


def patches(height: int, width: int) -> int:
    """The length of an image of this resolution: patches of 16 x 16 pixels, rounded up."""
    return -(-height * width // (PATCH * PATCH))
