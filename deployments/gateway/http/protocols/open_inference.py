"""Open Inference requests and answers: JSON, and JSON followed by tensors' bytes.

`decode` reads a JSON body, `decode_binary` one whose tensors' bytes follow the JSON: tensors with
`binary_data_size` take their bytes in the order of the inputs, and the sizes must add up to the
body exactly. `encode` writes an answer as JSON or mixed. Unknown keys and parameters are ignored,
as Triton does; classification, which would change the meaning of the answer, is refused. Of tensors
in shared memory or at a URL only the place is read here (`external`). `row_conversion` checks
names, types and shapes against the model. In JSON answers a FP32 is the shortest decimal that reads
back as the same FP32, FP16 and BF16 are the FP32 they equal, NaN and infinities are null. Measured
for 384 FP32: orjson 4.8 µs, msgspec over tolist() 11.5 µs.
Source: Open Inference Protocol, REST; Triton's binary tensor data extension.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
import numpy as np
import orjson

from deployments.contract.errors import BadRequest
from deployments.gateway.http.exchange import BINARY_HEADER, SESSION, RequestOptions
from deployments.gateway.http.large_answers import (
    PACKED_BYTES,
    LargeAnswer,
    Parts,
    flat,
    flat_texts,
)
from deployments.gateway.http.protocols import json_body, tensors
from deployments.gateway.http.protocols.tensors import (
    Datatype,
    Encoded,
    ExternalInput,
    Fetched,
    InferCall,
    Region,
    RegionOutput,
    RequestedOutput,
    RowTensor,
    Tensor,
    documented,
)
from deployments.gateway.rows import Array

OCTET_STREAM = b"application/octet-stream"
HEADER_LENGTH = BINARY_HEADER

MAX_TENSORS = 64  # of a long request
_MAX_TIMEOUT_US = 1 << 53
MAX_PART_BYTES = 65_536  # of `parameters`, of `outputs` and of a shape of it
_Axis = Annotated[int, msgspec.Meta(ge=1, le=tensors.MAX_DIM)]
_Shape = Annotated[list[_Axis], msgspec.Meta(min_length=1, max_length=tensors.MAX_RANK)]
_Parameters = dict[str, Any]
Check = Callable[[Sequence[int], int], None]
_NOTHING = memoryview(b"")
NOWHERE = np.empty((0,), np.uint8)  # until an external tensor's bytes are there
_MAX_PLACE = 2**62
_VALUES = documented("Flat in row-major order, or nested as the shape is.", type="array")
_SIZE = documented(
    "In place of `data`: `binary_data_size`, bytes after the JSON; `shared_memory_region` with "
    "`shared_memory_byte_size` and `shared_memory_offset`; or the `url` of the tensor's bytes."
)
_BINARY = documented(
    "`binary_data`: whether it is answered as bytes after the JSON. `shared_memory_region` with "
    "`shared_memory_byte_size` and `shared_memory_offset`: where it is written instead."
)
_ALL_BINARY = documented("`binary_data_output`: whether outputs are, where they do not say.")


class InputTensor(msgspec.Struct, gc=False):
    name: str
    shape: _Shape
    datatype: Datatype
    data: Annotated[msgspec.Raw, _VALUES] = msgspec.field(default_factory=msgspec.Raw)
    parameters: Annotated[_Parameters | None, _SIZE] = None


class RequestedTensor(msgspec.Struct, gc=False):
    name: str
    parameters: Annotated[_Parameters | None, _BINARY] = None


class InferRequest(msgspec.Struct, gc=False):
    inputs: Annotated[list[InputTensor], msgspec.Meta(min_length=1)]
    outputs: list[RequestedTensor] | None = None
    id: str | None = None
    parameters: Annotated[_Parameters | None, _ALL_BINARY] = None


class _Named(msgspec.Struct):
    name: Any = None


class _Names(msgspec.Struct):
    inputs: list[_Named]


_requests = msgspec.json.Decoder(InferRequest)
_names = msgspec.json.Decoder(_Names)


class LongTensor(msgspec.Struct, gc=False):
    """An `InputTensor` of which nothing is made but what has a bound."""

    name: str
    shape: msgspec.Raw
    datatype: Datatype
    data: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    parameters: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))


class LongRequest(msgspec.Struct, gc=False):
    inputs: json_body.places(MAX_TENSORS, LongTensor)  # type: ignore[valid-type]
    outputs: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
    id: str | None = None
    parameters: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))


_long_requests = msgspec.json.Decoder(LongRequest)
_shapes = msgspec.json.Decoder(_Shape)
_outputs = msgspec.json.Decoder(list[RequestedTensor] | None)
_parameters = msgspec.json.Decoder(_Parameters | None)


def _from_long(header: bytes | memoryview) -> InferRequest:
    """As decoding it whole, but for what is no tensor's data: that may not be long."""
    long = _long_requests.decode(header)
    given = [tensor for tensor in msgspec.structs.astuple(long.inputs) if tensor]
    if not given:
        raise BadRequest("inputs: expected array of length >= 1.", param="inputs")
    return InferRequest(
        [
            InputTensor(
                tensor.name,
                _short(_shapes, tensor.shape, f"Tensor '{tensor.name}'", "shape"),
                tensor.datatype,
                tensor.data,
                _short(_parameters, tensor.parameters, f"Tensor '{tensor.name}'", "parameters"),
            )
            for tensor in given
        ],
        _short(_outputs, long.outputs, "The request", "outputs"),
        long.id,
        _short(_parameters, long.parameters, "The request", "parameters"),
    )


def _from_short(header: bytes | memoryview) -> InferRequest:
    try:
        return _requests.decode(header)
    except msgspec.ValidationError as error:
        if not json_body.is_whole_as_float(error):
            raise
        return _from_long(header)  # reads shapes by themselves


def _short(decoder: msgspec.json.Decoder[Any], part: msgspec.Raw, label: str, name: str) -> Any:
    size = len(memoryview(part))
    if size > MAX_PART_BYTES:
        raise BadRequest(f"{label}: {name} takes {size} bytes, more than {MAX_PART_BYTES}.")
    try:
        return json_body.integers(decoder, part)
    except json_body.DECODE_ERRORS as error:
        raise json_body.element(error, label, name) from None


def decode(body: bytes, check: Check | None = None) -> InferCall:
    """The call in a body that is all JSON; `BadRequest` names the tensor and what is wrong."""
    return parse(body, None, check)


def parse(
    header: bytes | memoryview,
    tail: memoryview | None,
    check: Check | None = None,
) -> InferCall:
    """The call whose JSON is `header` and whose binary tensors follow each other in `tail`.

    `check` hears what shape a tensor claims, and the bytes of its JSON, before that is read, and
    may refuse it: 60 MB of one-element rows take 7 s to read.
    """
    is_long = len(header) > json_body.SLICE_BYTES
    try:
        request = _from_long(header) if is_long else _from_short(header)
    except json_body.DECODE_ERRORS as error:
        name_of = None if is_long else partial(_name_of, header)
        raise json_body.fault(error, header, name_of) from None
    parameters = request.parameters or {}
    binary = _flag(parameters, "binary_data_output", "The request")
    given, external = _tensors(request.inputs, tail, check)
    call = InferCall(given, request.id, [], binary is True, parameters, external)
    if request.outputs:
        call.outputs = [requested(output, call.binary_outputs) for output in request.outputs]
        check_outputs([output.name for output in call.outputs])
        placed = [output.region for output in call.outputs if output.region is not None]
        if placed:
            call.external = [*external, *placed]
    return call


def _name_of(header: bytes | memoryview, index: int) -> str | None:
    """The name of the tensor at `index` of a header that did not validate."""
    try:
        name = _names.decode(header).inputs[index].name
    except (*json_body.DECODE_ERRORS, IndexError):
        return None
    return name if isinstance(name, str) else None


def _tensors(
    inputs: list[InputTensor], tail: memoryview | None, check: Check | None
) -> tuple[list[Tensor], list[ExternalInput]]:
    decoded: list[Tensor] = []
    external: list[ExternalInput] = []
    at = 0
    for item in inputs:
        if check is not None:
            check(item.shape, len(memoryview(item.data)))
        if item.parameters is not None:
            where = place_of(item.parameters, f"Tensor '{item.name}'")
            if where is not None:
                _refuse_second_data(item)
                tensor = Tensor(item.name, item.datatype, NOWHERE)
                decoded.append(tensor)
                external.append(external_tensor(tensor, item.shape, where))
                continue
        size = None if item.parameters is None else _binary_size(item, tail)
        if size is None:
            array = _from_json(item)
        else:
            array = tensors.unpack(_cut(item, tail, at, size), *_head(item))
            at += size
        decoded.append(Tensor(item.name, item.datatype, array))
    if len(decoded) > 1:
        refuse_duplicates("inputs", [tensor.name for tensor in decoded])
    if tail is not None and at != len(tail):
        raise BadRequest(
            f"{len(tail)} bytes follow the JSON header, "
            f"the inputs' binary_data_size add up to {at}."
        )
    return decoded, external


def place_of(parameters: Mapping[str, Any], label: str) -> Region | str | None:
    """Where the parameters of a tensor say that its bytes are: in shared memory, or at a URL; None
    where they say neither. `label`: the tensor, in errors. Raises BadRequest."""
    name, url = parameters.get("shared_memory_region"), parameters.get("url")
    if name is None and url is None:
        for key in parameters:
            if key.startswith("shared_memory"):
                raise BadRequest(f"{label} has {key} without shared_memory_region.")
        return None
    if name is not None and url is not None:
        raise BadRequest(f"{label} has both shared_memory_region and url; send only one of them.")
    if url is not None:
        if not isinstance(url, str):
            raise BadRequest(f"{label}: url must be a text.")
        return url
    if not isinstance(name, str):
        raise BadRequest(f"{label}: shared_memory_region must be a text.")
    size = json_body.integer(parameters.get("shared_memory_byte_size"))
    offset = json_body.integer(parameters.get("shared_memory_offset", 0))
    if type(size) is not int or not 1 <= size <= _MAX_PLACE:
        raise BadRequest(f"{label}: shared_memory_byte_size must be a number of bytes, at least 1.")
    if type(offset) is not int or not 0 <= offset <= _MAX_PLACE:
        raise BadRequest(f"{label}: shared_memory_offset must be a whole number of bytes.")
    return Region(name, offset, size)


def external_tensor(tensor: Tensor, shape: Sequence[int], where: Region | str) -> ExternalInput:
    """The tensor as an input whose bytes are still to come. One element of BYTES is the whole of
    what a URL gives, as a file is; else elements follow their lengths. Raises BadRequest for a
    shape or datatype that can't be."""
    tensors.dtype_of(tensor.datatype, tensor.name)
    count = tensors.element_count(tensor.name, shape)
    in_memory = isinstance(where, Region)
    size = "shared_memory_byte_size" if in_memory else "the size of what the URL gave"

    def take(found: Fetched) -> None:
        if tensor.datatype == "BYTES" and count == 1 and not in_memory:
            tensor.data = np.empty(tuple(shape), object)
            tensor.data.reshape(-1)[0] = bytes(found.content)
        else:
            tensor.data = tensors.unpack(found.content, tensor.name, tensor.datatype, shape, size)

    return ExternalInput(f"Tensor '{tensor.name}'", where, take)


def _refuse_second_data(item: InputTensor) -> None:
    if len(memoryview(item.data)) or "binary_data_size" in (item.parameters or ()):
        raise BadRequest(
            f"Tensor '{item.name}' has data besides shared_memory_region or url; send only one."
        )


def _head(item: InputTensor) -> tuple[str, str, list[int]]:
    return item.name, item.datatype, item.shape


def _from_json(item: InputTensor) -> Array:
    if item.datatype in tensors.HALVES:
        raise BadRequest(
            f"Tensor '{item.name}': {item.datatype} has no JSON form; send it as binary data "
            f"(binary_data_size and the header Inference-Header-Content-Length)."
        )
    if not len(memoryview(item.data)):
        raise BadRequest(f"Tensor '{item.name}' has neither data nor binary_data_size.")
    return tensors.from_json(item.data, *_head(item))


def _binary_size(item: InputTensor, tail: memoryview | None) -> int | None:
    """The tensor's `binary_data_size`, None if it has none."""
    size = json_body.integer((item.parameters or {}).get("binary_data_size"))
    if size is None:
        return None
    if type(size) is not int or size < 0:
        raise BadRequest(f"Tensor '{item.name}': binary_data_size must be a whole number of bytes.")
    if tail is None:
        raise BadRequest(
            f"Tensor '{item.name}' has binary_data_size, and the request lacks the header "
            f"Inference-Header-Content-Length."
        )
    if len(memoryview(item.data)):
        raise BadRequest(
            f"Tensor '{item.name}' has both data and binary_data_size; send only one of them."
        )
    return size


def _cut(item: InputTensor, tail: memoryview | None, at: int, size: int) -> memoryview:
    tail = _NOTHING if tail is None else tail
    if at + size > len(tail):
        raise BadRequest(
            f"Tensor '{item.name}': binary_data_size is {size}, "
            f"{len(tail) - at} bytes are left in the body."
        )
    return tail[at : at + size]


def requested(output: RequestedTensor, default: bool) -> RequestedOutput:
    if output.parameters is None:
        return RequestedOutput(output.name, default)
    label = f"Output '{output.name}'"
    for key in output.parameters:
        if key in ("classification", "url"):
            raise BadRequest(f"{label}: the parameter {key} is not supported.")
    binary = _flag(output.parameters, "binary_data", label)
    where = place_of(output.parameters, label)
    if not isinstance(where, Region):
        return RequestedOutput(output.name, default if binary is None else binary)
    if binary:
        raise BadRequest(f"{label} has both binary_data and shared_memory_region; send only one.")
    return RequestedOutput(output.name, False, RegionOutput(label, where))


def _flag(parameters: _Parameters, key: str, label: str) -> bool | None:
    value = parameters.get(key)
    if value is None or isinstance(value, bool):
        return value
    raise BadRequest(f"{label}: the parameter {key} must be true or false.")


def with_parameters(options: RequestOptions, parameters: _Parameters) -> RequestOptions:
    """`options`, and what Triton's clients say in parameters: `timeout` (microseconds) bounds the
    budget, and a `sequence_id` is a session where the headers name none. Raises BadRequest."""
    timeout_us = json_body.integer(parameters.get("timeout"))
    if timeout_us:
        if type(timeout_us) is not int or not 0 < timeout_us < _MAX_TIMEOUT_US:
            raise BadRequest("The parameter timeout must be a whole number of microseconds.")
        given_s = timeout_us / 1e6
        budget_s = given_s if options.budget_s is None else min(given_s, options.budget_s)
        options = options._replace(budget_s=budget_s)
    sequence = parameters.get("sequence_id")
    if sequence and not options.session:
        session = str(sequence)
        if type(sequence) not in (int, str) or not SESSION.fullmatch(session.encode()):
            raise BadRequest(
                "The parameter sequence_id must be a whole number or 1 to 128 printable characters."
            )
        options = options._replace(session=session)
    return options


def check_outputs(names: list[str]) -> None:
    """Raises BadRequest for more than a request may name, or one twice: each is answered."""
    if len(names) > MAX_TENSORS:
        raise BadRequest(
            f"the request names {len(names)} outputs; it may name {MAX_TENSORS}", param="outputs"
        )
    refuse_duplicates("outputs", names)


def refuse_duplicates(what: str, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BadRequest(f"'{name}' appears more than once in {what}; names must be unique.")
        seen.add(name)


def encode(
    call: InferCall, model: str, version: str, outputs: Sequence[Tensor | RowTensor]
) -> Encoded:
    """The answer in the form `call` asked for: JSON, or JSON followed by the binary outputs. A
    `RowTensor` is one that was written to shared memory."""
    entries: list[dict[str, Any]] = []
    binary: list[bytes | memoryview] = []
    forms, placed = {output.name: output.binary for output in call.outputs}, call.placed
    for tensor in outputs:
        if isinstance(tensor, RowTensor):
            entries.append(_placed(tensor, placed[tensor.name]))
            continue
        entry: dict[str, Any] = {
            "name": tensor.name,
            "shape": tensor.data.shape,
            "datatype": tensor.datatype,
        }
        if forms.get(tensor.name, call.binary_outputs):
            binary.append(tensors.pack(tensor.datatype, tensor.data))
            entry["parameters"] = {"binary_data_size": len(binary[-1])}
        else:
            entry["data"] = json_values(tensor)
        entries.append(entry)
    return _assemble(_envelope(call, model, version, entries), binary)


def _placed(output: RowTensor, place: RegionOutput) -> dict[str, Any]:
    """An output that was written to shared memory, as Triton answers it."""
    parameters = {
        "shared_memory_region": place.at.region,
        "shared_memory_offset": place.at.offset,
        "shared_memory_byte_size": place.size,
    }
    if not place.at.offset:
        del parameters["shared_memory_offset"]
    return {
        "name": output.name, "shape": output.dense_shape, "datatype": output.datatype,
        "parameters": parameters,
    }  # fmt: skip


def pieces(call: InferCall, model: str, version: str, outputs: Sequence[RowTensor]) -> LargeAnswer:
    """As `encode`, of a large answer. The JSON before binary outputs is made twice: its length is
    said before it comes."""
    forms = {output.name: output.binary for output in call.outputs}
    binary = [each for each in outputs if forms.get(each.name, call.binary_outputs)]
    named = {each.name for each in binary}
    placed = call.placed
    envelope = _envelope(call, model, version, [])
    start = orjson.dumps(envelope)[:-2]  # up to the bracket of the outputs

    def header() -> Parts:
        for at, output in enumerate(outputs):
            yield b"," if at else start
            if output.name in placed:
                yield orjson.dumps(_placed(output, placed[output.name]))
            else:
                yield from _output(output, output.name in named)
        yield b"]}"

    answer = LargeAnswer(iter(()))
    written = [o for o in outputs if o.name not in named and o.name not in placed]
    answer.parts = _large_parts(answer, header, binary, written)
    if binary:
        answer.content_type = OCTET_STREAM
    return answer


def _large_parts(
    answer: LargeAnswer,
    header: Callable[[], Parts],
    binary: Sequence[RowTensor],
    written: Sequence[RowTensor],
) -> Parts:
    for output in written:
        if output.datatype == "BYTES":
            for row in output.rows:
                _texts(output.name, row.reshape(-1))
                yield b""
    if binary:
        length = 0
        for part in header():
            length += len(part)
            yield b""
        answer.headers.append((HEADER_LENGTH, b"%d" % length))
        answer.size = length + sum(output.packed_bytes for output in binary)
    yield from header()
    answer.is_ready = all(output.is_dense for output in binary)
    for output in binary:
        yield from output.packed(PACKED_BYTES)


def _output(output: RowTensor, binary: bool) -> Parts:
    entry: dict[str, Any] = {
        "name": output.name, "shape": output.dense_shape, "datatype": output.datatype
    }  # fmt: skip
    if binary:
        entry["parameters"] = {"binary_data_size": output.packed_bytes}
        yield orjson.dumps(entry)
        return
    yield orjson.dumps(entry)[:-1] + b',"data":['
    if output.datatype == "BYTES":
        yield from flat_texts(output.padded(), bytes.decode)
    else:
        yield from flat(output.padded(), output.datatype)
    yield b"]}"


def _envelope(
    call: InferCall, model: str, version: str, outputs: list[dict[str, Any]]
) -> dict[str, Any]:
    envelope: dict[str, Any] = {"model_name": model, "model_version": version}
    if call.id is not None:
        envelope["id"] = call.id
    envelope["outputs"] = outputs
    return envelope


def _assemble(envelope: dict[str, Any], binary: list[bytes | memoryview]) -> Encoded:
    header = orjson.dumps(envelope, option=orjson.OPT_SERIALIZE_NUMPY)
    if not binary:
        return Encoded(header)
    return Encoded(
        b"".join([header, *binary]),
        OCTET_STREAM,
        [(HEADER_LENGTH, str(len(header)).encode())],
    )


def json_values(tensor: Tensor) -> Any:
    """The tensor's elements, flat, as something orjson writes."""
    flat = tensor.data.reshape(-1)
    if tensor.datatype == "BYTES":
        return _texts(tensor.name, flat)
    return flat.astype(np.float32) if tensor.datatype in tensors.HALVES else flat


def _texts(name: str, flat: Array) -> list[str]:
    try:
        return [item.decode() for item in flat.tolist()]
    except UnicodeDecodeError:
        raise BadRequest(
            f"Output '{name}' holds bytes that are not UTF-8 text; ask for it as binary data "
            f"(binary_data)."
        ) from None


def decode_binary(
    body: bytes | memoryview,
    header_length: int,
    check: Check | None = None,
) -> InferCall:
    """The call in `body`, of which the first `header_length` bytes are JSON."""
    view = memoryview(body)
    if not 0 < header_length <= len(view):
        raise BadRequest(
            f"Inference-Header-Content-Length is {header_length}; "
            f"it must be 1 to {len(view)}, the body's bytes."
        )
    return parse(view[:header_length], view[header_length:], check)
