"""An image as a row of the model's input: decoded, resized, normalised, laid out as settings say.

Used by gateways, and by whatever else feeds a model images, so that they cannot differ. Not for an
event loop, however small the file: what a header claims is not known before it is read. Decoding
takes about 10 ms a megapixel.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from deployments.contract.description import ImageInput
from deployments.contract.errors import BadRequest
from deployments.contract.preprocess import image_file
from deployments.contract.preprocess.resize import Operation, resized
from runtimes.datatypes import DTYPES

Array = np.ndarray[Any, Any]
Encoded = bytes | Array  # a JPEG or PNG file, or uint8 [height, width, 1 or 3] levels, RGB

_MOST_LEVEL = np.float32(255.0)


def prepared(how: ImageInput, image: Encoded, label: str) -> Array:
    """[channels, height, width] or [height, width, channels] by the layout. Raises `BadRequest`."""
    grey = how.colour == "grey"
    if isinstance(image, bytes):
        picture = image_file.opened(image, label, how.max_pixels, grey)
    else:
        picture = image_file.from_levels(image, label, how.max_pixels, grey)
    height, width = _size(how, picture.height, picture.width)
    operation = Operation(how.resize, how.antialias, how.rounded)
    if how.shorter_side is None:
        levels = resized(picture, operation, height, width)
    else:
        whole = _kept_shape(how.shorter_side, picture.height, picture.width)
        if whole[0] * whole[1] > how.max_pixels:
            raise BadRequest(
                f"{label} is {picture.width} x {picture.height}, which would be {whole[1]} x "
                f"{whole[0]} when its shorter side is {how.shorter_side}; {how.max_pixels} pixels "
                "are the most (max_pixels)"
            )
        levels = _middle(resized(picture, operation, *whole), height, width)
    return _laid_out(how, levels)


def row_bytes(how: ImageInput) -> int:
    """What the largest row takes in memory."""
    height, width = how.sizes[-1]
    return height * width * how.channels * DTYPES[how.datatype].itemsize


def _size(how: ImageInput, height: int, width: int) -> tuple[int, int]:
    """The smallest that holds the image, else the last."""
    for size in how.sizes:
        if height <= size[0] and width <= size[1]:
            return size
    return how.sizes[-1]


def _kept_shape(shorter: int, height: int, width: int) -> tuple[int, int]:
    """As torchvision's Resize rounds: the longer side down."""
    if height <= width:
        return shorter, int(shorter * width / height)
    return int(shorter * height / width), shorter


def _middle(levels: Array, height: int, width: int) -> Array:
    """As torchvision's CenterCrop rounds."""
    top, left = round((levels.shape[0] - height) / 2), round((levels.shape[1] - width) / 2)
    return levels[top : top + height, left : left + width]


def _laid_out(how: ImageInput, levels: Array) -> Array:
    """Normalised in float32 in torchvision's order: a share of 255, less the mean, by the std."""
    if how.colour == "BGR":
        levels = levels[..., ::-1]
    if how.datatype == "UINT8":
        row: Array = levels.astype(np.uint8)
    else:
        mean, std = np.array(how.mean, np.float32), np.array(how.std, np.float32)
        row = (levels / _MOST_LEVEL - mean) / std
    if how.layout == "NCHW":
        row = row.transpose(2, 0, 1)
    return np.ascontiguousarray(row, dtype=DTYPES[how.datatype])
