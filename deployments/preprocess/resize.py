"""Resizes an image by exactly the operation that a model names.

With antialiasing this is Pillow's resampling, whose kernel widens as the image shrinks. It works on
whole levels, rounded after each of the two passes (as torchvision does with images), or on float32
levels, which equals torch's `interpolate(antialias=True)`.
Without antialiasing the kernel keeps its size and skips pixels, as torch's
`interpolate(antialias=False)` does: source positions by half pixels, borders repeated, a cubic
kernel with a = -0.75 (Pillow's has -0.5).
Other threads do not wait for it: Pillow releases the interpreter's lock while it works, and a large
image is copied into numpy in strips of a megabyte.
Source: Pillow's `Resample.c`; PyTorch's `UpSampleKernel.cpp`; Keys (1981) for the cubic.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from PIL import Image

Array = np.ndarray[Any, Any]

_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
_CUBIC_A = np.float32(-0.75)
_STRIP_BYTES = 1 << 20
_MAX_LEVEL = 255.0


class Operation(NamedTuple):
    """One of the ways to resize an image."""

    kind: str  # bilinear or bicubic
    antialias: bool
    rounded: bool  # the result is whole levels from 0 to 255


class _Taps(NamedTuple):
    """For each position in the result along one axis, the source positions that it is computed from
    and their weights, [size, taps]."""

    places: Array
    weights: Array


def resized(picture: Image.Image, operation: Operation, height: int, width: int) -> Array:
    """The resized image as float32 [height, width, channels] levels. If they are not rounded they
    may lie outside 0 to 255, because a cubic kernel overshoots. `picture`: mode L or RGB."""
    if not operation.antialias:
        levels = _sampled(picture, operation.kind, height, width)
        if operation.rounded:
            levels = np.clip(np.rint(levels), 0.0, _MAX_LEVEL)
        return levels
    size, kernel = (width, height), _FILTERS[operation.kind]
    if operation.rounded:
        return _levels(picture.resize(size, kernel)).astype(np.float32)
    # One channel at a time: float32 copies of a whole large image would take four times its memory.
    bands = (picture.getchannel(band).convert("F") for band in range(len(picture.getbands())))
    return np.stack([np.asarray(band.resize(size, kernel)) for band in bands], axis=-1)


def _sampled(picture: Image.Image, kind: str, height: int, width: int) -> Array:
    """Resized without antialiasing. Only the source rows that are needed are read."""
    across, down = _taps(kind, picture.width, width), _taps(kind, picture.height, height)
    needed, where = np.unique(down.places, return_inverse=True)
    rows = np.concatenate([_weighted(strip, across) for strip in _strips(picture, needed)])
    where = where.reshape(down.places.shape)
    parts = (
        rows[where[:, tap]] * down.weights[:, tap, None, None] for tap in range(where.shape[1])
    )
    return _sum(parts)


def _weighted(levels: Array, across: _Taps) -> Array:
    """uint8 rows resized along their width, as float32 [rows, width of the result, channels]."""
    taps = range(across.places.shape[1])
    return _sum(levels[:, across.places[:, tap]] * across.weights[:, tap, None] for tap in taps)


def _sum(parts: Any) -> Array:
    total: Array = next(parts)
    for part in parts:
        total += part
    return total


def _strips(picture: Image.Image, rows: Array) -> Any:
    """The wanted rows (ascending), as uint8 [some, width, channels], one strip of the image at a
    time."""
    high = max(1, _STRIP_BYTES // (picture.width * len(picture.getbands())))
    for top in range(0, picture.height, high):
        wanted = rows[(rows >= top) & (rows < top + high)]
        if wanted.size:
            bottom = min(top + high, picture.height)
            yield _levels(picture.crop((0, top, picture.width, bottom)))[wanted - top]


def _levels(picture: Image.Image) -> Array:
    levels = np.asarray(picture)
    return levels[..., None] if levels.ndim == 2 else levels


def _taps(kind: str, size: int, wanted: int) -> _Taps:
    """The taps along one axis, `size` long before and `wanted` after. Positions and weights are
    float32, as torch's are for float32 images."""
    at = np.arange(wanted, dtype=np.float32)
    if size != wanted:
        at = (at + np.float32(0.5)) * np.float32(size / wanted) - np.float32(0.5)
    if kind == "bilinear":
        at = np.maximum(at, np.float32(0.0))
    first = np.minimum(np.floor(at).astype(np.int64), size - 1)
    past = np.clip(at - first.astype(np.float32), np.float32(0.0), np.float32(1.0))
    steps = (0, 1) if kind == "bilinear" else (-1, 0, 1, 2)
    places = [first + step for step in steps]
    weights = [1 - past, past] if kind == "bilinear" else _cubic(past)
    return _Taps(
        np.clip(np.stack(places, axis=1), 0, size - 1),
        np.stack(weights, axis=1).astype(np.float32),
    )


def _cubic(past: Array) -> list[Array]:
    """Weights of the four positions around a point that lies `past` beyond the second of them."""
    return [_far(past + 1), _near(past), _near(1 - past), _far(2 - past)]


def _near(distance: Array) -> Array:
    a = _CUBIC_A
    return ((a + 2) * distance - (a + 3)) * distance * distance + 1


def _far(distance: Array) -> Array:
    a = _CUBIC_A
    return ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
