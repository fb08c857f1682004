"""Can these bytes be the image that a model is asked about, and what are its pixels?

JPEG and PNG, of 8 bits a channel, upright as their EXIF says, in RGB or grey. Whatever else would
have to be guessed is refused in a sentence: transparency (upon which background?), CMYK (by which
profile?), 16 bits (scaled how?), animation (which picture?). The header is judged before anything
is decoded, so that a few bytes that claim a billion pixels cost nothing. What the caller did wrong
is `BadRequest`, whatever the library makes of broken bytes.

Source: Pillow's notes on image modes and decompression bombs; EXIF 2.32, tag 274.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from deployments.contract.errors import BadRequest

# Above it Pillow warns by itself.
MOST_PIXELS = 89_478_485
_MOST_SCANS = 100
_SCAN = b"\xff\xda"
_PNG_DEPTH_BYTE = 24
_TRANSPARENT = {"LA", "PA", "RGBA", "La", "RGBa"}
_TAKEN = {"1", "L", "P", "RGB"} | _TRANSPARENT


def opened(data: bytes, label: str, max_pixels: int, grey: bool) -> Image.Image:
    """The image, mode L (`grey`) or RGB, decoded. Takes milliseconds a megapixel: for a thread.

    `label`: how a refusal calls it. Raises BadRequest.
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
        raise BadRequest(f"{label} is no JPEG or PNG image") from None
    except Exception as fault:  # parsers of broken files raise whatever they stumble over
        raise BadRequest(f"{label} cannot be decoded: {_said(fault)}") from None


def from_levels(
    levels: np.ndarray[Any, Any], label: str, max_pixels: int, grey: bool
) -> Image.Image:
    """The image of uint8 [height, width, 1 or 3] levels, RGB."""
    if levels.ndim != 3 or levels.shape[2] not in (1, 3):
        raise BadRequest(
            f"{label} has shape {list(levels.shape)}; decoded images are [height, width, 1 or 3]"
        )
    _check_pixels(levels.shape[1], levels.shape[0], label, max_pixels)
    flat = levels[..., 0] if levels.shape[2] == 1 else levels
    return coloured(Image.fromarray(np.ascontiguousarray(flat)), label, grey)


def coloured(picture: Image.Image, label: str, grey: bool) -> Image.Image:
    """RGB becomes grey by ITU-R 601-2 luma as Pillow has it; grey becomes RGB of equal channels."""
    _check_opaque(picture, label)
    if picture.mode == "P":
        picture = picture.convert("RGB")
    wanted = "L" if grey else "RGB"
    if picture.mode in _TRANSPARENT:
        picture = picture.convert("L" if picture.mode in ("LA", "La") else "RGB")
    return picture if picture.mode == wanted else picture.convert(wanted)


def _check_header(picture: Image.Image, data: bytes, label: str, max_pixels: int) -> None:
    _check_pixels(picture.width, picture.height, label, max_pixels)
    if picture.format == "PNG":
        if getattr(picture, "is_animated", False):
            raise BadRequest(f"{label} is animated; send one picture of it")
        if data[_PNG_DEPTH_BYTE] == 16:
            raise BadRequest(f"{label} has 16 bits a channel; 8 are taken")
    elif data.count(_SCAN) > _MOST_SCANS:
        # Each scan of a progressive JPEG passes over all pixels again.
        raise BadRequest(f"{label} has more than {_MOST_SCANS} scans; save it again")
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
        raise BadRequest(f"{label} has transparent pixels; flatten it upon a background first")


def _said(fault: Exception) -> str:
    text = str(fault).split("\n", 1)[0]
    return text[:120] if text else type(fault).__name__
