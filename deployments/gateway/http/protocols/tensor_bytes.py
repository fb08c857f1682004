"""Tensors as the binary extension carries them: little-endian, row-major, no padding.

BOOL is one byte, 0 or 1; a BYTES element is a 4-byte unsigned length and the bytes. `unpack` takes
fixed-width data without copying where it is aligned (the array is then read-only and keeps the body
alive) and copies it where the JSON header's length left it misaligned. Sizes must add up exactly.

Source: Triton's binary tensor data extension.
"""

from __future__ import annotations

import struct
import sys

import numpy as np

from deployments.contract.errors import BadRequest
from deployments.gateway.http.protocols.tensors import Array, dtype_of, element_count

_LENGTH = struct.Struct("<I")

if sys.byteorder != "little":  # numpy's native types stand for the wire's everywhere below
    raise ImportError("binary tensors are little-endian, this machine is not")


def unpack(view: memoryview, name: str, datatype: str, shape: list[int]) -> Array:
    """The dense array of `shape` in `view`, which holds this tensor's bytes and nothing else."""
    dtype = dtype_of(datatype, name)
    count = element_count(name, shape)
    if datatype == "BYTES":
        return _unpack_bytes(view, name, count).reshape(shape)
    if len(view) != count * dtype.itemsize:
        raise BadRequest(
            f"Tensor '{name}': {datatype} of shape {shape} takes {count * dtype.itemsize} bytes, "
            f"binary_data_size is {len(view)}."
        )
    if datatype == "BOOL" and np.frombuffer(view, dtype=np.uint8).max() > 1:
        raise BadRequest(f"Tensor '{name}': a BOOL element is the byte 0 or 1.")
    flat = np.frombuffer(view, dtype=dtype)
    return (flat if flat.flags.aligned else flat.copy()).reshape(shape)


def _unpack_bytes(view: memoryview, name: str, count: int) -> Array:
    if count * 4 > len(view):  # before anything of that size is allocated
        raise BadRequest(f"Tensor '{name}': {len(view)} bytes cannot hold {count} BYTES elements.")
    flat = np.empty(count, dtype=object)
    at = 0
    for index in range(count):
        start = at + 4
        at = start + _LENGTH.unpack_from(view, at)[0] if start <= len(view) else start
        if at > len(view):
            raise BadRequest(f"Tensor '{name}': BYTES element {index} runs over the tensor's data.")
        flat[index] = bytes(view[start:at])
    if at != len(view):
        raise BadRequest(
            f"Tensor '{name}': {count} BYTES elements take {at} bytes, "
            f"binary_data_size is {len(view)}."
        )
    return flat


def pack(datatype: str, data: Array) -> bytes | memoryview:
    """The tensor's bytes; a view of `data` where that is what they are."""
    if datatype == "BYTES":
        return b"".join([_LENGTH.pack(len(item)) + item for item in data.reshape(-1).tolist()])
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
