"""Turns an image into a row of the model's input: decodes, resizes, normalises and lays it out.

Gateways and everything else that feeds a model images use this code, so that they cannot differ.
Decoding takes about 10 ms a megapixel, so never call this on an event loop, however small the file.

Taken are JPEG and PNG with 8 bits a channel, RGB or grey, turned upright as their EXIF says.
Anything that would need a guess is refused with a sentence: transparency (upon which background?),
CMYK (by which profile?), 16 bits (scaled how?), animation (which picture?). The header is checked
before anything is decoded, so a few bytes that claim a billion pixels cost nothing.
Source: Pillow's notes on image modes and decompression bombs; EXIF 2.32, tag 274.
"""

from __future__ import annotations

import io
from math import floor
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from deployments.contract.description import ImageInput
from deployments.contract.errors import BadRequest
from runtimes.types import DTYPES

_SIGNATURES = {b"\x89PNG\r\n\x1a\n": "PNG", b"\xff\xd8\xff": "JPEG"}  # the first bytes of a file
_MAX_SCANS = 100  # of a progressive JPEG
_SCAN = b"\xff\xda"  # JPEG's marker before a scan
_PNG_DEPTH_BYTE = 24  # offset of the bits a channel in a PNG file
_TRANSPARENT = {"LA", "PA", "RGBA", "La", "RGBa"}  # modes of Pillow, as are those below
_TAKEN = {"1", "L", "P", "RGB"} | _TRANSPARENT
Array = np.ndarray[Any, Any]
Encoded = bytes | Array  # a JPEG or PNG file, or uint8 [height, width, 1 or 3] levels, RGB
_MAX_LEVEL = np.float32(255.0)


def opened(data: bytes, label: str, max_pixels: int, grey: bool) -> Image.Image:
    """The decoded image, in mode L (`grey`) or RGB. Takes milliseconds a megapixel: use a thread.

    `label`: what error messages call the image. Raises BadRequest.
    """
    try:
        picture = Image.open(io.BytesIO(data), formats=("JPEG", "PNG"))
        _check_header(picture, data, label, max_pixels)
        picture.load()
        ImageOps.exif_transpose(picture, in_place=True)
        return coloured(picture, label, grey)
    except (BadRequest, MemoryError):
        raise
    except Image.DecompressionBombError:
        raise BadRequest(f"{label} has more than {max_pixels} pixels (image.max_pixels)") from None
    except UnidentifiedImageError:
        raise BadRequest(f"{label} {_unidentified(data)}") from None
    except Exception as fault:  # parsers raise anything on broken files
        raise BadRequest(f"{label} cannot be decoded: {_first_line(fault)}") from None


def from_levels(
    levels: np.ndarray[Any, Any], label: str, max_pixels: int, grey: bool
) -> Image.Image:
    """The image from uint8 [height, width, 1 or 3] levels, RGB. Raises BadRequest."""
    if levels.ndim != 3 or levels.shape[2] not in (1, 3):
        raise BadRequest(
            f"{label} has shape {list(levels.shape)}; decoded images are [height, width, 1 or 3]"
        )
    _check_pixels(levels.shape[1], levels.shape[0], label, max_pixels)
    flat = levels[..., 0] if levels.shape[2] == 1 else levels
    return coloured(Image.fromarray(np.ascontiguousarray(flat)), label, grey)


def coloured(picture: Image.Image, label: str, grey: bool) -> Image.Image:
    """The image as grey or RGB. RGB becomes grey by ITU-R 601-2 luma as Pillow computes it; grey
    becomes RGB of equal channels. Raises BadRequest for transparent pixels."""
    _check_opaque(picture, label)
    if picture.mode == "P":
        picture = picture.convert("RGB")
    wanted = "L" if grey else "RGB"
    if picture.mode in _TRANSPARENT:
        picture = picture.convert("L" if picture.mode in ("LA", "La") else "RGB")
    return picture if picture.mode == wanted else picture.convert(wanted)


def _unidentified(data: bytes) -> str:
    for signature, name in _SIGNATURES.items():
        if data.startswith(signature):
            return f"begins as a {name} file, but its header is cut off or damaged"
    return "is not a JPEG or PNG image"


def _check_header(picture: Image.Image, data: bytes, label: str, max_pixels: int) -> None:
    _check_pixels(picture.width, picture.height, label, max_pixels)
    if picture.format == "PNG":
        if getattr(picture, "is_animated", False):
            raise BadRequest(f"{label} is animated; send one picture of it")
        if data[_PNG_DEPTH_BYTE] == 16:
            raise BadRequest(f"{label} has 16 bits a channel; convert it to 8")
    elif data.count(_SCAN) > _MAX_SCANS:
        # A decoder goes over all pixels again for each scan of a progressive JPEG.
        raise BadRequest(f"{label} has more than {_MAX_SCANS} scans; save it again")
    if picture.mode not in _TAKEN:
        raise BadRequest(
            f"{label} has the colour mode {picture.mode}; convert it to RGB or grey of 8 bits"
        )


def _check_pixels(width: int, height: int, label: str, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise BadRequest(
            f"{label} is {width} x {height} = {width * height} pixels; this model takes "
            f"{max_pixels} at most (image.max_pixels)"
        )


def _check_opaque(picture: Image.Image, label: str) -> None:
    if picture.mode not in _TRANSPARENT and "transparency" not in picture.info:
        return
    alpha = picture.convert("RGBA").getchannel("A")
    if alpha.histogram()[-1] < picture.width * picture.height:
        raise BadRequest(f"{label} has transparent pixels; flatten it onto a background first")


def _first_line(fault: Exception) -> str:
    text = str(fault).split("\n", 1)[0]
    return text[:120] if text else type(fault).__name__


def prepared(how: ImageInput, image: Encoded, label: str) -> Array:
    """The row, [channels, height, width] or [height, width, channels] by the layout. `label`: what
    error messages call the image. Raises `BadRequest`."""
    grey = how.colour == "grey"
    if isinstance(image, bytes):
        picture = opened(image, label, how.max_pixels, grey)
    else:
        picture = from_levels(image, label, how.max_pixels, grey)
    height, width = _size(how, picture.height, picture.width)
    operation = Operation(how.resize, how.antialias, how.rounded)
    if how.shorter_side is None:
        levels = resized(picture, operation, height, width)
    else:
        whole = _kept_shape(how.shorter_side, picture.height, picture.width)
        if whole[0] * whole[1] > how.max_pixels:
            raise BadRequest(
                f"{label} is {picture.width} x {picture.height}, which would be {whole[1]} x "
                f"{whole[0]} when its shorter side is {how.shorter_side}; this model takes "
                f"{how.max_pixels} pixels at most (max_pixels)"
            )
        levels = _centre_crop(
            resized(picture, operation, *whole), height, width, down=how.crops_down
        )
    return _as_row(how, levels)


def row_bytes(how: ImageInput) -> int:
    """Bytes of the largest row."""
    height, width = how.sizes[-1]
    return height * width * how.channels * DTYPES[how.datatype].itemsize


def _size(how: ImageInput, height: int, width: int) -> tuple[int, int]:
    """The smallest of the model's sizes that holds the image; else the largest."""
    for size in how.sizes:
        if height <= size[0] and width <= size[1]:
            return size
    return how.sizes[-1]


def _kept_shape(shorter: int, height: int, width: int) -> tuple[int, int]:
    """(height, width) with the given shorter side and the image's aspect ratio. The longer side is
    rounded down, as torchvision's Resize does."""
    if height <= width:
        return shorter, int(shorter * width / height)
    return int(shorter * height / width), shorter


def _centre_crop(levels: Array, height: int, width: int, *, down: bool) -> Array:
    """The centre of the image, rounded `down` as transformers does, else as torchvision's
    CenterCrop."""
    half = floor if down else round
    top, left = half((levels.shape[0] - height) / 2), half((levels.shape[1] - width) / 2)
    return levels[top : top + height, left : left + width]


def _as_row(how: ImageInput, levels: Array) -> Array:
    """The row in the model's layout and datatype. Normalised in float32 in torchvision's order: as
    a share of 255, less the mean, divided by the standard deviation."""
    if how.colour == "BGR":
        levels = levels[..., ::-1]
    if how.datatype == "UINT8":
        row: Array = levels.astype(np.uint8)
    else:
        mean, std = np.array(how.mean, np.float32), np.array(how.std, np.float32)
        row = (levels / _MAX_LEVEL - mean) / std
    if how.layout == "NCHW":
        row = row.transpose(2, 0, 1)
    return np.ascontiguousarray(row, dtype=DTYPES[how.datatype])


# Resizing. Other threads do not wait for it: Pillow releases the interpreter's lock while it works,
# and a large image is copied into numpy in strips of a megabyte.

_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
_CUBIC_A = np.float32(-0.75)
_STRIP_BYTES = 1 << 20


class Operation(NamedTuple):
    """One of the ways to resize an image.

    With antialiasing this is Pillow's resampling, whose kernel widens as the image shrinks. It
    works on whole levels, rounded after each of the two passes (as torchvision does with images),
    or on float32 levels, which equals torch's `interpolate(antialias=True)`. Without antialiasing
    the kernel keeps its size and skips pixels, as torch's `interpolate(antialias=False)` does:
    source positions by half pixels, borders repeated, a cubic kernel with a = -0.75 (Pillow's has
    -0.5).
    Source: Pillow's `Resample.c`; PyTorch's `UpSampleKernel.cpp`; Keys (1981) for the cubic.
    """

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
