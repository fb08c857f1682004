"""The ways to ask for inference, each as one object: bytes → call → rows, answers → bytes.

A codec joins what `protocols/` reads and writes with the rows that the queue carries. It is
stateless; whatever belongs to one request is in its call. Of what generates it only reads requests
and writes refusals: the answer is the engine's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from deployments.contract import errors
from deployments.contract.description import ModelDescription
from deployments.contract.preprocess.images import Encoded as EncodedImage
from deployments.gateway.http.exchange import Exchange
from deployments.gateway.http.protocols import (
    classify,
    error_shapes,
    open_inference,
    openai_embeddings,
    predict,
)
from deployments.gateway.http.protocols.openai_generation import GenerationCall
from deployments.gateway.http.protocols.types import (
    ClassifyCall,
    EmbeddingsCall,
    Encoded,
    InferAnswer,
    InferCall,
)
from deployments.gateway.rows.conversion import (
    check_claim,
    encoded_images,
    from_rows,
    from_tokens,
    join,
    split,
    wanted_outputs,
)
from deployments.gateway.rows.types import RowAnswer, Rows


class Codec(Protocol):
    """`names_tensors`: its requests or answers name the model's tensors. `split` gets what the
    call's texts or images became, by `Codec.texts` and `Codec.images`."""

    label: str
    names_tensors: bool

    def decode(self, body: bytes, exchange: Exchange, d: ModelDescription | None) -> Any: ...
    def texts(self, call: Any) -> list[str] | None: ...
    def images(self, call: Any, d: ModelDescription) -> list[EncodedImage] | None: ...
    def split(self, call: Any, tokens: list[Any] | None, d: ModelDescription) -> Rows: ...
    def encode(
        self, call: Any, rows: Rows, answers: tuple[RowAnswer, ...], d: ModelDescription
    ) -> Encoded: ...
    def error(self, error: errors.HeadraceError) -> Encoded: ...


class InferCodec:
    """Open Inference Protocol, JSON or binary tensors."""

    label = "oip"
    names_tensors = True

    def decode(self, body: bytes, exchange: Exchange, d: ModelDescription | None) -> InferCall:
        header_bytes = exchange.number(open_inference.HEADER_LENGTH)
        check = None if d is None else partial(check_claim, d=d)
        if header_bytes is None:
            return open_inference.decode(body, check)
        return open_inference.decode_binary(body, header_bytes, check)

    def texts(self, call: InferCall) -> list[str] | None:
        return None

    def images(self, call: InferCall, d: ModelDescription) -> list[EncodedImage] | None:
        return encoded_images(call, d)

    def split(self, call: InferCall, tokens: list[Any] | None, d: ModelDescription) -> Rows:
        if tokens is None or d.image is None:
            return split(call, d)
        rows = from_rows({d.image.input: tokens}, d)
        rows.outputs = wanted_outputs(call, d)
        return rows

    def encode(
        self, call: InferCall, rows: Rows, answers: tuple[RowAnswer, ...], d: ModelDescription
    ) -> Encoded:
        tensors = join(call, rows, _by_output(rows, answers), d)
        return open_inference.encode(call, InferAnswer(d.name, d.version, tensors))

    def error(self, error: errors.HeadraceError) -> Encoded:
        return error_shapes.oip_error(error)


class PredictCodec:
    """TensorFlow Serving's `:predict`, rows of any length."""

    label = "predict"
    names_tensors = True

    def decode(self, body: bytes, exchange: Exchange, d: ModelDescription | None) -> Any:
        return predict.decode(body, sys.maxsize if d is None else d.scheduling.core.max_queue_rows)

    def texts(self, call: Any) -> list[str] | None:
        return None

    def images(self, call: Any, d: ModelDescription) -> None:
        return None

    def split(self, call: Any, tokens: list[Any] | None, d: ModelDescription) -> Rows:
        return predict.rows_of(call, d)

    def encode(
        self, call: Any, rows: Rows, answers: tuple[RowAnswer, ...], d: ModelDescription
    ) -> Encoded:
        return predict.encode(call, _by_output(rows, answers), d)

    def error(self, error: errors.HeadraceError) -> Encoded:
        return error_shapes.oip_error(error)


class EmbeddingsCodec:
    """OpenAI embeddings of texts or token lists."""

    label = "openai"
    names_tensors = False

    def decode(self, body: bytes, exchange: Exchange, d: ModelDescription | None) -> EmbeddingsCall:
        return openai_embeddings.decode(body)

    def texts(self, call: EmbeddingsCall) -> list[str] | None:
        return call.texts

    def images(self, call: EmbeddingsCall, d: ModelDescription) -> None:
        return None

    def split(self, call: EmbeddingsCall, tokens: list[Any] | None, d: ModelDescription) -> Rows:
        if d.task != "embed":
            raise errors.BadRequest(f"model {d.name} does not make embeddings", param="model")
        openai_embeddings.check_dimensions(call, d)
        rows = from_tokens(call.tokens if tokens is None else tokens, d)  # type: ignore[arg-type]
        rows.outputs = (d.embed_output,)
        return rows

    def encode(
        self,
        call: EmbeddingsCall,
        rows: Rows,
        answers: tuple[RowAnswer, ...],
        d: ModelDescription,
    ) -> Encoded:
        vectors = np.stack([a.outputs[d.embed_output][1] for a in answers]).astype(
            np.float32, copy=False
        )
        # The model that ran is named: a fallback's vectors are not the asked one's.
        ran = replace(call, model=d.name)
        return openai_embeddings.encode(ran, vectors, sum(rows.lengths))

    def error(self, error: errors.HeadraceError) -> Encoded:
        if error.param == "inputs":  # what rows come from has this name everywhere else
            error.param = "input"
        return error_shapes.openai_error(error)


class ClassifyCodec:
    """Labels with scores, of images or texts."""

    label = "classify"
    names_tensors = False

    def decode(self, body: bytes, exchange: Exchange, d: ModelDescription | None) -> ClassifyCall:
        content_type = exchange.header(b"content-type") or ""
        return classify.decode(body, content_type, exchange.query)

    def texts(self, call: ClassifyCall) -> list[str] | None:
        return call.texts

    def images(self, call: ClassifyCall, d: ModelDescription) -> list[EncodedImage] | None:
        classify.check(call, d)
        return None if call.images is None else list(call.images)

    def split(self, call: ClassifyCall, tokens: list[Any] | None, d: ModelDescription) -> Rows:
        assert tokens is not None
        assert d.classes is not None
        if d.image is not None:
            rows = from_rows({d.image.input: tokens}, d)
        else:
            rows = from_tokens(tokens, d)
        rows.outputs = (d.classes.output,)
        return rows

    def encode(
        self, call: ClassifyCall, rows: Rows, answers: tuple[RowAnswer, ...], d: ModelDescription
    ) -> Encoded:
        assert d.classes is not None
        return classify.encode(call, [a.outputs[d.classes.output][1] for a in answers], d)

    def error(self, error: errors.HeadraceError) -> Encoded:
        return error_shapes.oip_error(error)


class GenerationCodec:
    """OpenAI's chats and completions."""

    names_tensors = False

    def __init__(self, label: str, decoder: Callable[[bytes], GenerationCall]) -> None:
        self.label = label
        self._decoder = decoder

    def decode(self, body: bytes, exchange: Exchange, d: ModelDescription | None) -> GenerationCall:
        return self._decoder(body)

    def error(self, error: errors.HeadraceError) -> Encoded:
        return error_shapes.openai_error(error)


def _by_output(
    rows: Rows, answers: tuple[RowAnswer, ...]
) -> dict[str, tuple[str, list[np.ndarray[Any, Any]]]]:
    """name → (datatype, one array a row), of the wanted outputs: a row may have come with those
    that others in its batch wanted."""
    first = answers[0].outputs
    return {
        name: (first[name][0], [answer.outputs[name][1] for answer in answers])
        for name in (first if rows.outputs is None else rows.outputs)
        if name in first
    }
