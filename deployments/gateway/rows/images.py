"""Prepared images as rows: their shapes are one of the model's sizes, their lengths its patches.

Also what an already decoded or already prepared tensor of the Open Inference Protocol is: encoded
files (BYTES), levels to resize and normalise (UINT8), or the model's own input as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from deployments.contract.description import ImageInput, ModelDescription
from deployments.contract.errors import BadRequest
from deployments.contract.preprocess.images import Encoded
from deployments.gateway.http.protocols.classify import from_base64
from deployments.gateway.http.protocols.tensors import Array
from deployments.gateway.http.protocols.types import InferCall
from deployments.settings.image import patches


def row_shapes(image: ImageInput) -> dict[tuple[int, ...], int]:
    """Length by a row's shape."""
    shapes: dict[tuple[int, ...], int] = {}
    for height, width in image.sizes:
        nchw = (image.channels, height, width)
        shape = nchw if image.layout == "NCHW" else (height, width, image.channels)
        shapes[shape] = patches(height, width)
    return shapes


def image_lengths(rows: Sequence[Array], d: ModelDescription) -> tuple[int, ...]:
    """`BadRequest` for a row of no such shape: another size, or the axes in another order."""
    assert d.image is not None
    known = row_shapes(d.image)
    for index, row in enumerate(rows):
        if row.shape not in known:
            shapes = ", ".join(str(list(shape)) for shape in known)
            raise BadRequest(
                f"Input '{d.image.input}', row {index} has shape {list(row.shape)}; '{d.name}' "
                f"takes {shapes} ({d.image.layout}).",
                param="inputs",
            )
    return tuple(known[row.shape] for row in rows)


def encoded_images(call: InferCall, d: ModelDescription) -> list[Encoded] | None:
    """What has to be prepared; None where the tensor is the model's input already."""
    if d.image is None:
        return None
    for tensor in call.tensors:
        if tensor.name != d.image.input or tensor.datatype == d.image.datatype:
            continue
        shape = tensor.data.shape
        if tensor.datatype == "BYTES" and shape in ((shape[0],), (shape[0], 1)):
            return [from_base64(item) for item in tensor.data.reshape(-1).tolist()]
        if tensor.datatype == "UINT8" and len(shape) == 4 and shape[3] in (1, 3):
            return list(tensor.data)
        raise BadRequest(
            f"Input '{tensor.name}' is {tensor.datatype} of shape {list(shape)}; '{d.name}' takes "
            f"{d.image.datatype} as its metadata says, BYTES [n] of JPEG or PNG files, or UINT8 "
            "[n, height, width, 3 or 1] of RGB or grey levels.",
            param="inputs",
        )
    return None
