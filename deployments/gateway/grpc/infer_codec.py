"""`ModelInfer`: protobuf messages to the calls that Open Inference has over HTTP, and back.

`raw_input_contents` has all inputs or none. Those of a long message stay views of it: its top level
is read here, and protobuf sees the rest, which is short (80 MB take protobuf 0.1 s). Typed contents
take many times their bytes in memory and are slow, so they are bounded. Who sends typed contents
gets typed contents; FP16 and BF16 have no such form.
Source: Open Inference Protocol, open_inference_grpc.proto; protobuf's encoding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from deployments.contract import errors
from deployments.contract.description import ModelDescription
from deployments.contract.errors import BadRequest
from deployments.gateway.grpc.exchange import GrpcExchange, no_form
from deployments.gateway.grpc.generation import completion_of
from deployments.gateway.grpc.messages import ModelInferRequest, ModelInferResponse
from deployments.gateway.http.codecs import InferCodec
from deployments.gateway.http.exchange import Exchange
from deployments.gateway.http.large_answers import PACKED_BYTES, PIECE_BYTES, LargeAnswer, Parts
from deployments.gateway.http.protocols import open_inference, tensors
from deployments.gateway.http.protocols.json_body import Breaks
from deployments.gateway.http.protocols.tensors import (
    HALVES,
    Encoded,
    ExternalInput,
    InferCall,
    RequestedOutput,
    RowTensor,
    Tensor,
)
from deployments.gateway.http.row_conversion import by_output, join
from deployments.gateway.rows import Array, RowAnswer, Rows

_LONG_BYTES = 65_536
MAX_SHORT_BYTES = 4 << 20  # of a message, all but its raw contents
_FEW_BYTES = 4096  # a message that has no more has few of everything
MAX_FIELDS = 512  # of a message, of one of its tensors
MAX_NAME = 256  # characters; names are in errors
_SLICE = 65_536  # of typed contents, elements
_RAW_INPUT, _RAW_OUTPUT = 7, 6
_ID = 3
_OF_TENSORS = (5, 6)  # inputs and outputs
_MISSING = memoryview(b"")
_LENGTH = 2  # protobuf's wire type of what has a length
_FIXED = {1: 8, 5: 4}
# Of `InferTensorContents`, by datatype.
_CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents",
    "INT32": "int_contents", "INT64": "int64_contents", "UINT8": "uint_contents",
    "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


class GrpcInferCodec(InferCodec):
    """The call names its model, and may name a version. `generates`: the version of the model of
    this name if it generates, else None."""

    label = "grpc"

    def __init__(self, generates: Callable[[str], str | None]) -> None:
        self._generates = generates

    def decode(
        self, body: bytes | memoryview, exchange: Exchange, d: ModelDescription | None
    ) -> Any:
        """An `InferCall`, or a `GenerationCall`."""
        assert isinstance(exchange, GrpcExchange)
        raw: list[memoryview] | None = None
        try:
            if len(body) > _LONG_BYTES:
                body, raw = without_raw(memoryview(body))
            if len(body) > _FEW_BYTES:
                check_fields(memoryview(body))
            request = ModelInferRequest.FromString(body)
        except DecodeError:
            raise BadRequest("the message is no inference.ModelInferRequest") from None
        exchange.message_id = request.id[:MAX_NAME]
        call = call_of(request, request.raw_input_contents if raw is None else raw)
        version = self._generates(call.model)
        if version is None:
            return call
        asked, exchange.text = completion_of(call, version, may_stream=exchange.may_stream)
        return asked

    def encode(
        self, call: InferCall, rows: Rows, answers: tuple[RowAnswer, ...], d: ModelDescription
    ) -> Encoded:
        joined = join(call, rows, by_output(rows, answers), d)
        response, placed = _response(call, d, joined), call.placed
        raw = _is_raw(call, joined)
        for entry, output in zip(response.outputs, joined, strict=True):
            if output.name in placed:
                if raw:  # its entry, so that the others stay at the places of their outputs
                    response.raw_output_contents.append(b"")
                continue
            tensor = output.dense()
            if raw:
                packed = tensors.pack(tensor.datatype, tensor.data)
                response.raw_output_contents.append(bytes(packed))
            else:
                _typed(entry.contents, tensor.datatype, tensor.data)
        return Encoded(response.SerializeToString())

    def pieces(
        self, call: InferCall, rows: Rows, answers: tuple[RowAnswer, ...], d: ModelDescription
    ) -> LargeAnswer:
        joined = join(call, rows, by_output(rows, answers), d)
        response, placed = _response(call, d, joined), call.placed
        # Raw whatever was sent: typed contents would be in memory several times, and at once.
        carried = [None if output.name in placed else output for output in joined]
        return _in_pieces(response.SerializeToString(), carried)

    def error(self, error: errors.HeadraceError) -> Encoded:
        return no_form(error)


def _in_pieces(head: bytes, raw: Sequence[RowTensor | None]) -> LargeAnswer:
    """`raw`: what follows the head; None: of an output whose data is elsewhere."""
    sizes = [0 if output is None else output.packed_bytes for output in raw]
    size = len(head) + sum(len(_raw_head(each)) + each for each in sizes)

    def parts() -> Parts:
        for start in range(0, len(head), PIECE_BYTES):
            yield head[start : start + PIECE_BYTES]
        for output, packed in zip(raw, sizes, strict=True):
            yield _raw_head(packed)
            if output is not None:
                yield from output.packed(PACKED_BYTES)

    is_ready = all(output is None or output.is_dense for output in raw)
    return LargeAnswer(parts(), size=size, is_ready=is_ready)


def _raw_head(size: int) -> bytes:
    return bytes((_RAW_OUTPUT << 3 | _LENGTH,)) + varint(size)


def varint(value: int) -> bytes:
    """A length, as protobuf writes it."""
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def without_raw(view: memoryview) -> tuple[bytes, list[memoryview]]:
    """A `ModelInferRequest` without its raw contents, and those. Raises BadRequest."""
    kept: list[memoryview] = []
    raw: list[memoryview] = []
    short = 0
    for number, start, end, whole in _fields(view):
        if len(kept) + len(raw) >= MAX_FIELDS:
            raise BadRequest(f"the message has more than {MAX_FIELDS} fields")
        if number == _RAW_INPUT:
            raw.append(view[start:end])
            continue
        kept.append(view[whole:end])
        short += end - whole
        if short > MAX_SHORT_BYTES:
            raise BadRequest(
                f"the message has more than {MAX_SHORT_BYTES} bytes besides raw_input_contents; "
                "send large tensors as raw_input_contents"
            )
    return b"".join(kept), raw


def check_fields(view: memoryview) -> None:
    """Of a request without raw contents: no more fields than protobuf reads in a millisecond. Each
    entry of a map is one. Raises BadRequest and DecodeError."""
    for at, (number, start, end, _) in enumerate(_fields(view)):
        inner = _fields(view[start:end]) if number in _OF_TENSORS else ()
        if at >= MAX_FIELDS or any(nth >= MAX_FIELDS for nth, _ in enumerate(inner)):
            raise BadRequest(
                f"the message, or one of its tensors, has more than {MAX_FIELDS} fields"
            )


def id_of(message: bytes) -> str:
    """The id of a request that is not read; "" where it has none, or is no request."""
    with contextlib.suppress(DecodeError):
        for at, (number, start, end, _) in enumerate(_fields(memoryview(message))):
            if number == _ID:
                return message[start:end][:MAX_NAME].decode("utf-8", "replace")
            if at >= MAX_FIELDS:
                break
    return ""


def _fields(view: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Of the top level: number, where the value starts and ends, and where the field begins.
    Raises DecodeError."""
    at, size = 0, len(view)
    while at < size:
        whole = at
        tag, at = _varint(view, at)
        kind = tag & 7
        if kind == _LENGTH:
            length, at = _varint(view, at)
            end = at + length
        elif kind == 0:
            _, end = _varint(view, at)
        elif kind in _FIXED:
            end = at + _FIXED[kind]
        else:
            raise DecodeError
        if end > size or not tag >> 3:
            raise DecodeError
        if tag >> 3 == _RAW_INPUT and kind != _LENGTH:
            raise DecodeError
        yield tag >> 3, at, end, whole
        at = end


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(view):
            raise DecodeError
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise DecodeError


def call_of(request: Any, raw: Sequence[bytes | memoryview]) -> InferCall:
    """`raw`: its raw contents. Raises BadRequest."""
    inputs = request.inputs
    if not request.model_name:
        raise BadRequest("model_name is missing", param="model_name")
    tensors_named = (each.name for each in (*inputs[:MAX_FIELDS], *request.outputs[:MAX_FIELDS]))
    if max(map(len, (request.model_name, request.model_version, *tensors_named))) > MAX_NAME:
        raise BadRequest(f"a name has more than {MAX_NAME} characters")
    if not 1 <= len(inputs) <= open_inference.MAX_TENSORS:
        raise BadRequest(
            f"the request has {len(inputs)} inputs; must be 1 to {open_inference.MAX_TENSORS}",
            param="inputs",
        )
    is_raw = not any(each.HasField("contents") for each in inputs)
    outputs: list[RequestedOutput] = []
    found, external = _tensors(inputs, raw)
    open_inference.refuse_duplicates("inputs", [tensor.name for tensor in found])
    for each in request.outputs:
        asked = open_inference.RequestedTensor(each.name, _parameters(each.parameters))
        outputs.append(open_inference.requested(asked, is_raw))
    open_inference.check_outputs([output.name for output in outputs])
    placed = [output.region for output in outputs if output.region is not None]
    return InferCall(
        found, request.id or None, outputs, is_raw, _parameters(request.parameters),
        [*external, *placed], request.model_name, request.model_version or None,
    )  # fmt: skip


def _tensors(
    inputs: Any, raw: Sequence[bytes | memoryview]
) -> tuple[list[Tensor], list[ExternalInput]]:
    """`raw` has those of `inputs` that carry their own data, or nothing."""
    found: list[Tensor] = []
    external: list[ExternalInput] = []
    rest = iter(raw)
    carried = 0
    for item in inputs:
        where = None
        if item.parameters:
            where = open_inference.place_of(_parameters(item.parameters), f"Tensor '{item.name}'")
        if where is not None:
            tensor = Tensor(item.name, item.datatype, open_inference.NOWHERE)
            external.append(open_inference.external_tensor(tensor, list(item.shape), where))
            if item.HasField("contents"):
                raise BadRequest(
                    f"Tensor '{item.name}' has contents besides shared_memory_region or url; send "
                    "only one."
                )
        else:
            carried += 1
            tensor = _tensor(item, next(rest, _MISSING) if raw else None)
        found.append(tensor)
    if raw and len(raw) != carried:
        raise _uneven(len(raw), carried)
    return found, external


def _uneven(raw: int, carried: int) -> BadRequest:
    return BadRequest(
        f"raw_input_contents has {raw} entries for {carried} inputs that carry data; must have one "
        "for each, in their order, or none",
        param="raw_input_contents",
    )


def _parameters(given: Any) -> dict[str, Any]:
    """In the order of their names: protobuf's maps have one of their own in each process."""
    found = {}
    for name in sorted(given):
        kind = given[name].WhichOneof("parameter_choice")
        if kind is not None:
            found[name] = getattr(given[name], kind)
    return found


def _tensor(item: Any, raw: bytes | memoryview | None) -> Tensor:
    name, datatype, shape = item.name, item.datatype, list(item.shape)
    has_contents = item.HasField("contents")
    if raw is _MISSING:
        raise BadRequest(
            f"Tensor '{name}' has no entry in raw_input_contents; it must have one for each input "
            "that carries data, in their order, or none",
            param="raw_input_contents",
        )
    if raw is not None:
        if has_contents:
            raise BadRequest(
                f"Tensor '{name}' has contents beside the request's raw_input_contents; "
                "send only one of them."
            )
        return Tensor(name, datatype, tensors.unpack(memoryview(raw), name, datatype, shape))
    if datatype in HALVES:
        raise BadRequest(f"Tensor '{name}': {datatype} has no typed contents; send it raw.")
    if not has_contents:
        raise BadRequest(f"Tensor '{name}' has neither contents nor raw_input_contents.")
    return Tensor(name, datatype, _from_contents(item.contents, name, datatype, shape))


def _from_contents(contents: Any, name: str, datatype: str, shape: list[int]) -> Array:
    dtype = tensors.dtype_of(datatype, name)
    count = tensors.element_count(name, shape)
    filled = [field.name for field, _ in contents.ListFields()]
    wanted = _CONTENTS[datatype]
    if filled != [wanted]:
        raise BadRequest(
            f"Tensor '{name}' is {datatype}, whose values stand in {wanted}; "
            f"{', '.join(filled) or 'no values'} came."
        )
    values = getattr(contents, wanted)
    if len(values) != count:
        raise BadRequest(
            f"Tensor '{name}': shape {shape} has {count} elements, {wanted} has {len(values)}."
        )
    if datatype == "BYTES":
        flat = np.empty(count, dtype=object)
        flat[:] = list(values)
        return flat.reshape(shape)
    found, breaks = np.empty(count, dtype), Breaks()
    try:
        for start in range(0, count, _SLICE):
            part = values[start : start + _SLICE]
            found[start : start + len(part)] = np.array(part, dtype)
            if count > _SLICE:
                breaks.take()
        return found.reshape(shape)
    except OverflowError:
        raise BadRequest(f"Tensor '{name}': a value is out of {datatype}'s range.") from None


def _response(call: InferCall, d: ModelDescription, outputs: Sequence[RowTensor]) -> Any:
    """All but the tensors' values."""
    response = ModelInferResponse(model_name=d.name, model_version=d.version, id=call.id or "")
    placed = call.placed
    for output in outputs:
        entry = response.outputs.add(name=output.name, datatype=output.datatype)
        entry.shape.extend(output.dense_shape)
        where = placed.get(output.name)
        if where is not None:
            entry.parameters["shared_memory_region"].string_param = where.at.region
            entry.parameters["shared_memory_offset"].int64_param = where.at.offset
            entry.parameters["shared_memory_byte_size"].int64_param = where.size
    return response


def _is_raw(call: InferCall, outputs: Sequence[RowTensor]) -> bool:
    return call.binary_outputs or any(output.datatype in HALVES for output in outputs)


def _typed(contents: Any, datatype: str, data: Array) -> None:
    getattr(contents, _CONTENTS[datatype]).extend(data.reshape(-1).tolist())
