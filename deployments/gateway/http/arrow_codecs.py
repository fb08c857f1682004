"""Inference and embeddings by Arrow IPC streams, in requests, in answers, or in both.

A body of the type is a table with a column for each input, or one column of texts or of lists of
token ids; it is answered by a table unless `Accept` names JSON alone. What else a request says
stands in the schema's metadata, by the names that it has in JSON. An answer has one column for each
output: rows keep their own lengths, and nothing is padded. Errors are JSON, as ever. `arrow_stream`
reads, `arrow_answer` writes; rows are split as for every other protocol.
Source: https://www.iana.org/assignments/media-types/application/vnd.apache.arrow.stream
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import parse_qs

import msgspec
import numpy as np
from msgspec.structs import asdict

from deployments.contract.description import ModelDescription
from deployments.contract.errors import BadRequest
from deployments.gateway.http.body import bound_of
from deployments.gateway.http.codecs import (
    Answers,
    EmbeddingsCodec,
    InferCodec,
    Tokenizer,
    sizes,
)
from deployments.gateway.http.exchange import ARROW_STREAM, Exchange
from deployments.gateway.http.large_answers import (
    PACKED_BYTES,
    AnswerSize,
    LargeAnswer,
    Parts,
    size_of,
)
from deployments.gateway.http.protocols import (
    arrow_answer,
    arrow_stream,
    embeddings,
    open_inference,
)
from deployments.gateway.http.protocols.arrow_answer import Written
from deployments.gateway.http.protocols.arrow_messages import Column
from deployments.gateway.http.protocols.arrow_stream import Stream
from deployments.gateway.http.protocols.tensors import (
    EmbeddingsCall,
    Encoded,
    InferCall,
    RequestedOutput,
    RowTensor,
    Tensor,
)
from deployments.gateway.http.row_conversion import (
    by_output,
    check_columns,
    check_count,
    encoded_images,
    from_rows,
    join,
    wanted_outputs,
)
from deployments.gateway.rows import Array, RowAnswer, Rows
from deployments.preprocess.images import Encoded as EncodedImage

_FRAME_BYTES = 4096  # of an answer: what stands around its buffers
_OFFSET_BYTES = 4
_IDS = {"INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32"}
_MAX_ID = 2**31 - 1
_names = msgspec.json.Decoder(list[str])


def _is_body(headers: Mapping[bytes, bytes]) -> bool:
    return headers.get(b"content-type", b"").lower().startswith(ARROW_STREAM)


def _is_answer(headers: Mapping[bytes, bytes]) -> bool:
    accept = headers.get(b"accept", b"").lower()
    return ARROW_STREAM in accept or (_is_body(headers) and b"json" not in accept)


class ArrowInferCall(InferCall):
    """`stream`: the inputs, None: `tensors` are; `is_answer`: it is answered by one."""

    stream: Stream | None = None
    is_answer: bool = False


class ArrowInferCodec(InferCodec):
    """Open Inference, where a side or both are Arrow streams."""

    def decode(
        self, body: bytes | memoryview, exchange: Exchange, d: ModelDescription | None
    ) -> InferCall:
        is_answer = _is_answer(exchange.headers)
        if not _is_body(exchange.headers):
            call = super().decode(body, exchange, d)
            if any(output.region is not None for output in call.outputs):
                raise BadRequest(
                    "An Arrow answer carries its outputs; ask for JSON with outputs in shared "
                    "memory.",
                    param="outputs",
                )
            return ArrowInferCall(**asdict(call), is_answer=is_answer)
        stream = _read(body)
        if d is not None:
            check_count(stream.rows, d)
            elements = sum(stream.elements(column.name) for column in stream.columns)
            if elements > stream.rows:
                bound_of(d, numbers=True).check_numbers(elements)
        outputs = [RequestedOutput(name) for name in _outputs(stream.metadata)]
        return ArrowInferCall([], stream.metadata.get("id"), outputs, stream=stream,
                              is_answer=is_answer)  # fmt: skip

    def images(self, call: InferCall, d: ModelDescription) -> list[EncodedImage] | None:
        stream = _stream(call)
        if stream is None or d.image is None:
            return super().images(call, d)
        tensors = []
        for column in stream.columns:
            if column.name == d.image.input and not column.offset_bytes:
                check_count(stream.rows, d)
                data = np.stack(stream.split(column.name))
                tensors.append(Tensor(column.name, column.datatype, data))
        return encoded_images(InferCall(tensors), d)

    def row_count(self, call: InferCall) -> int:
        stream = _stream(call)
        return super().row_count(call) if stream is None else stream.rows

    def split(
        self,
        call: InferCall,
        tokens: list[Any] | None,
        d: ModelDescription,
        tokenizer: Tokenizer = None,
    ) -> Rows:
        stream = _stream(call)
        if stream is None or tokens is not None:
            return super().split(call, tokens, d, tokenizer)
        check_count(stream.rows, d)
        check_columns({column.name: column.datatype for column in stream.columns}, d)
        singles = {spec.name for spec in d.inputs if spec.shape[1:] == (1,)}
        columns = {}
        for column in stream.columns:
            rows = stream.split(column.name)
            is_plain = not column.sizes and not column.offset_bytes
            plain = is_plain and column.name in singles
            columns[column.name] = [row.reshape(1) for row in rows] if plain else rows
        found = from_rows(columns, d)
        found.outputs = wanted_outputs(call, d)
        return found

    def answer_size(
        self, call: InferCall, rows: Rows, d: ModelDescription, answers: Answers = None
    ) -> AnswerSize:
        if not _answers(call):
            return super().answer_size(call, rows, d, answers)
        outputs = sizes(rows, d, answers)
        sent = _FRAME_BYTES
        for output in outputs.values():
            sent += output.packed_bytes + _OFFSET_BYTES * rows.count
        return size_of(outputs, sent, ", or ask for fewer outputs", "inputs")

    def encode(
        self, call: InferCall, rows: Rows, answers: tuple[RowAnswer, ...], d: ModelDescription
    ) -> Encoded:
        if not _answers(call):
            return super().encode(call, rows, answers, d)
        return _whole(self._written(call, rows, answers, d))

    def pieces(
        self, call: InferCall, rows: Rows, answers: tuple[RowAnswer, ...], d: ModelDescription
    ) -> LargeAnswer:
        if not _answers(call):
            return super().pieces(call, rows, answers, d)
        return _in_pieces(partial(self._written, call, rows, answers, d))

    def _written(
        self, call: InferCall, rows: Rows, answers: tuple[RowAnswer, ...], d: ModelDescription
    ) -> Written:
        tensors = join(call, rows, by_output(rows, answers), d)
        ragged = {spec.name for spec in d.outputs if spec.shape[1:2] == (-1,)}
        columns = [
            arrow_answer.column_of(tensor, ragged=tensor.name in ragged) for tensor in tensors
        ]
        said = {"model_name": d.name, "model_version": d.version}
        if call.id is not None:
            said["id"] = call.id
        return arrow_answer.write(tensors, columns, said, PACKED_BYTES)


def _stream(call: InferCall) -> Stream | None:
    return call.stream if isinstance(call, ArrowInferCall) else None


def _answers(call: InferCall | EmbeddingsCall) -> bool:
    return isinstance(call, ArrowInferCall | ArrowEmbeddingsCall) and call.is_answer


def _read(body: bytes | memoryview) -> Stream:
    stream = arrow_stream.read(body)
    if not stream.columns or not stream.rows:
        what = "rows" if stream.columns else "fields"
        raise BadRequest(f"The Arrow stream has no {what}; send one at least.", param="inputs")
    return stream


def _outputs(metadata: Mapping[str, str]) -> list[str]:
    said = metadata.get("outputs")
    if not said:
        return []
    try:
        names = _names.decode(said)
    except msgspec.MsgspecError:
        raise BadRequest(
            "The schema's metadata 'outputs' must be a JSON list of names.", param="outputs"
        ) from None
    open_inference.check_outputs(names)
    return names


def _whole(written: Written) -> Encoded:
    return Encoded(b"".join(written.parts), ARROW_STREAM)


def _in_pieces(write: Callable[[], Written]) -> LargeAnswer:
    """`write` is called with the first piece; what follows is there then."""
    answer = LargeAnswer(iter(()), ARROW_STREAM)

    def parts() -> Parts:
        written = write()
        answer.size, answer.is_ready = written.size, True
        yield from written.parts

    answer.parts = parts()
    return answer


class ArrowEmbeddingsCall(EmbeddingsCall):
    """`is_answer`: as in `ArrowInferCall`."""

    is_answer: bool = False


class ArrowEmbeddingsCodec(EmbeddingsCodec):
    """Vectors of a column of texts or token lists, or of a JSON request in a column."""

    takes_views = True

    def decode(
        self, body: bytes | memoryview, exchange: Exchange, d: ModelDescription | None
    ) -> EmbeddingsCall:
        if _is_body(exchange.headers):
            call = _embeddings(_read(body), exchange.query)
        else:
            call = super().decode(bytes(body), exchange, d)
        return ArrowEmbeddingsCall(**asdict(call), is_answer=_is_answer(exchange.headers))

    def answer_size(
        self, call: EmbeddingsCall, rows: Rows, d: ModelDescription, answers: Answers = None
    ) -> AnswerSize:
        if not _answers(call):
            return super().answer_size(call, rows, d, answers)
        outputs = sizes(rows, d, answers)
        sent = _FRAME_BYTES + sum(4 * output.elements for output in outputs.values())
        return size_of(outputs, sent, "", self.parameter)

    def encode(
        self,
        call: EmbeddingsCall,
        rows: Rows,
        answers: tuple[RowAnswer, ...],
        d: ModelDescription,
    ) -> Encoded:
        if not _answers(call):
            return super().encode(call, rows, answers, d)
        return _whole(self._written(call, rows, answers, d))

    def pieces(
        self,
        call: EmbeddingsCall,
        rows: Rows,
        answers: tuple[RowAnswer, ...],
        d: ModelDescription,
    ) -> LargeAnswer:
        if not _answers(call):
            return super().pieces(call, rows, answers, d)
        return _in_pieces(partial(self._written, call, rows, answers, d))

    def _written(
        self,
        call: EmbeddingsCall,
        rows: Rows,
        answers: tuple[RowAnswer, ...],
        d: ModelDescription,
    ) -> Written:
        vectors = list(self.vectors(call, d, rows, answers))
        tensor = RowTensor("embedding", "FP32", vectors, vectors[0].shape)
        column = arrow_answer.column_of(tensor, ragged=False)
        said = {"model": d.name, "prompt_tokens": str(sum(rows.lengths))}
        return arrow_answer.write([tensor], [column], said, PACKED_BYTES)


def _embeddings(stream: Stream, query: bytes) -> EmbeddingsCall:
    if len(stream.columns) != 1:
        names = ", ".join(column.name for column in stream.columns)
        raise BadRequest(f"input is one column, and the stream has {names}.", param="input")
    (column,), said = stream.columns, stream.metadata
    embeddings.check_inputs(stream.rows, "input")
    texts, tokens = None, None
    if column.datatype == "BYTES" and not column.offset_bytes and not column.sizes:
        texts = [_text(at, row.item()) for at, row in enumerate(stream.split(column.name))]
    elif column.datatype in _IDS and column.offset_bytes and not column.sizes:
        tokens = _tokens(stream, column)
    else:
        raise BadRequest(
            f"Field '{column.name}' must be texts (utf8) or lists of token ids (list<int32>).",
            param="input",
        )
    named = parse_qs(query.decode("latin-1")).get("model", [""])[-1]
    dimensions = said.get("dimensions")
    if dimensions is not None and not (dimensions.isdecimal() and int(dimensions[:9]) > 0):
        raise BadRequest("dimensions must be a whole number above 0.", param="dimensions")
    return EmbeddingsCall(
        named or said.get("model", ""), texts, tokens,
        dimensions=None if dimensions is None else int(dimensions[:9]),
        prompt=said.get("prompt_name"), kind=said.get("input_type"),
    )  # fmt: skip


def _text(at: int, item: bytes) -> str:
    try:
        text = item.decode()
    except UnicodeDecodeError:
        raise BadRequest(f"input[{at}] is not UTF-8.", param="input") from None
    if not text:
        raise BadRequest(f"input[{at}] is empty.", param="input")
    return text


def _tokens(stream: Stream, column: Column) -> list[Any]:
    if (count := stream.elements(column.name)) > embeddings.MAX_TOKENS:
        raise BadRequest(
            f"input has {count} tokens; a request may have {embeddings.MAX_TOKENS}.", param="input"
        )
    rows: list[Array] = stream.split(column.name)
    for at, row in enumerate(rows):
        if not row.size:
            raise BadRequest(f"input[{at}] is empty.", param="input")
        if row.min() < 0 or row.max() > _MAX_ID:
            raise BadRequest(
                f"input[{at}] has a token id that is not 0 to {_MAX_ID}.", param="input"
            )
    return rows
