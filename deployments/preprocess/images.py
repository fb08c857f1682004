"""How do one request's images become rows of the model's input without holding up anybody?

Each is decoded, resized, normalised and laid out exactly as the model's settings say, on the pool's
threads, tenants in turn: an image of some size is a turn of its own, small ones share one. What is
wrong with an image names its place in the request. Nothing of it runs on the event loop, however
small: what a header claims is not known before it is read.

A large image keeps one thread for as long as decoding takes (about 10 ms a megapixel); another
tenant's image waits for no more than the turns that run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from deployments.description import ImageInput
from deployments.errors import BadRequest
from deployments.preprocess import image_file
from deployments.preprocess.resize import Operation, resized
from deployments.preprocess.turns import TurnPool
from runtimes.datatypes import DTYPES

Array = np.ndarray[Any, Any]
Encoded = bytes | Array  # a JPEG or PNG file, or uint8 [height, width, 1 or 3] levels, RGB

TURN_BYTES = 32_768
TURN_IMAGES = 16
_MOST_LEVEL = np.float32(255.0)


async def prepare_images(
    pool: TurnPool, tenant: str, how: ImageInput, images: Sequence[Encoded]
) -> list[Array]:
    """One row an image, of the model's datatype and of the shape of one of its sizes, in order.
    Raises `BadRequest`, and `Overloaded` by a full pool."""

    def turn(piece: list[tuple[int, Encoded]]) -> list[Array]:
        return [prepared(how, image, f"image {index}") for index, image in piece]

    turns = await pool.run_each(tenant, turn, list(_pieces(images)))
    return [row for rows in turns for row in rows]


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


def _pieces(images: Sequence[Encoded]) -> Iterator[list[tuple[int, Encoded]]]:
    piece: list[tuple[int, Encoded]] = []
    size = 0
    for index, image in enumerate(images):
        own = len(image) if isinstance(image, bytes) else image.nbytes
        if piece and (len(piece) == TURN_IMAGES or size + own > TURN_BYTES):
            yield piece
            piece, size = [], 0
        piece.append((index, image))
        size += own
    if piece:
        yield piece


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
