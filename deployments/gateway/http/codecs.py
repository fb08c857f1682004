"""The ways to ask for inference, each as one object: bytes → call → rows, answers → bytes.

A codec joins what `protocols/` reads and writes with the rows that the queue carries. It is
stateless; whatever belongs to one request is in its call. Of what generates it only reads requests
and writes refusals: the answer is the engine's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from deployments.contract import errors
from deployments.contract.description import ModelDescription
from deployments.gateway.http.exchange import Exchange
from deployments.gateway.http.large_answers import (
    SMALL_ANSWER,
    AnswerSize,
    LargeAnswer,
    OutputSize,
    declared,
    measured,
    size_of,
)
from deployments.gateway.http.protocols import (
    classify,
    embeddings,
    error_shapes,
    open_inference,
    predict,
    rerank,
)
from deployments.gateway.http.protocols.openai_generation import GenerationCall
from deployments.gateway.http.protocols.tensors import (
    ClassifyCall,
    EmbeddingsCall,
    Encoded,
    InferCall,
)
from deployments.gateway.http.row_conversion import (
    by_output,
    check_claim,
    check_count,
    encoded_images,
    from_rows,
    from_tokens,
    join,
    sent_extent,
    split,
    tensors_of,
    wanted_outputs,
)
from deployments.gateway.http.whole_response import UNCOUNTED_BYTES
from deployments.gateway.rows import RowAnswer, Rows
from deployments.preprocess.images import Encoded as EncodedImage
from deployments.preprocess.tokenizer import TextTokenizer

Answers = tuple[RowAnswer, ...] | None
Tokenizer = TextTokenizer | None
_EMBEDDING_BYTES = 60  # of JSON around one
_BRACKETS = 3  # and around that of a token
_PLACE_BYTES = 512  # of JSON that says where in shared memory an output is


class Codec(Protocol):
    """`names_tensors`: its requests or answers name the model's tensors. `kind_without_a_name`: of
    the model that a request means which names none. `text_name`: what the body calls one of the
    texts. `split` gets what the call's texts or images became, by `Codec.texts` and `Codec.images`,
    and the model's tokeniser; `row_count`: how many rows it will make, about. `answers`: once they
    are there. `pieces`: as `encode`, of a large one. `takes_views`: `decode` takes a body that
    `has_tensors` as a view."""

    label: str
    names_tensors: bool
    takes_views: bool
    kind_without_a_name: str

    def decode(self, body: bytes, exchange: Exchange, d: ModelDescription | None) -> Any: ...
    def texts(self, call: Any, d: ModelDescription) -> list[str] | None: ...
    def text_name(self, call: Any, index: int) -> str: ...
    def images(self, call: Any, d: ModelDescription) -> list[EncodedImage] | None: ...
    def row_count(self, call: Any) -> int: ...
    def split(
        self, call: Any, tokens: list[Any] | None, d: ModelDescription, tokenizer: Tokenizer = None
    ) -> Rows: ...
    def answer_size(
        self, call: Any, rows: Rows, d: ModelDescription, answers: Answers = None
    ) -> AnswerSize: ...
    def encode(
        self, call: Any, rows: Rows, answers: tuple[RowAnswer, ...], d: ModelDescription
    ) -> Encoded: ...
    def pieces(
        self, call: Any, rows: Rows, answers: tuple[RowAnswer, ...], d: ModelDescription
    ) -> LargeAnswer: ...
    def error(self, error: errors.HeadraceError) -> Encoded: ...


class InferCodec:
    """Open Inference Protocol, JSON or binary tensors."""

    label = "oip"
    names_tensors = takes_views = True
    kind_without_a_name = ""

    def decode(
        self, body: bytes | memoryview, exchange: Exchange, d: ModelDescription | None
    ) -> InferCall:
        header_bytes = exchange.number(open_inference.HEADER_LENGTH)
        check = None if d is None else lambda shape, size: check_claim(shape, size, d)
        if header_bytes is None:
            return open_inference.decode(bytes(body), check)
        return open_inference.decode_binary(body, header_bytes, check)

    def texts(self, call: InferCall, d: ModelDescription) -> list[str] | None:
        return None

    def text_name(self, call: InferCall, index: int) -> str:
        return f"inputs[{index}]"

    def images(self, call: InferCall, d: ModelDescription) -> list[EncodedImage] | None:
        return encoded_images(call, d)

    def row_count(self, call: InferCall) -> int:
        return len(call.tensors[0].data)

    def split(
        self,
        call: InferCall,
        tokens: list[Any] | None,
        d: ModelDescription,
        tokenizer: Tokenizer = None,
    ) -> Rows:
        if tokens is None or d.image is None:
            return split(call, d)
        rows = from_rows({d.image.input: tokens}, d)
        rows.outputs = wanted_outputs(call, d)
        return rows

    def encode(
        self, call: InferCall, rows: Rows, answers: tuple[RowAnswer, ...], d: ModelDescription
    ) -> Encoded:
        joined = join(call, rows, by_output(rows, answers), d)
        placed = call.placed
        tensors = [each if each.name in placed else each.dense() for each in joined]
        return open_inference.encode(call, d.name, d.version, tensors)

    def answer_size(
        self, call: InferCall, rows: Rows, d: ModelDescription, answers: Answers = None
    ) -> AnswerSize:
        if not call.external and rows.count * tensors_of(d).row_bytes <= UNCOUNTED_BYTES:
            return SMALL_ANSWER  # as of most
        outputs = sizes(rows, d, answers, sent_extent(call, d) or 0)
        forms = {output.name: output.binary for output in call.outputs}
        placed, sent = call.placed, 0
        for name, output in outputs.items():
            if name in placed:
                sent += _PLACE_BYTES
                continue
            binary = forms.get(name, call.binary_outputs)
            sent += output.dense_bytes if binary else output.json_bytes(output.dense)
        return size_of(outputs, sent, ", ask for fewer outputs, or for binary data", "inputs")

    def pieces(
        self, call: InferCall, rows: Rows, answers: tuple[RowAnswer, ...], d: ModelDescription
    ) -> LargeAnswer:
        outputs = join(call, rows, by_output(rows, answers), d)
        return open_inference.pieces(call, d.name, d.version, outputs)

    def error(self, error: errors.HeadraceError) -> Encoded:
        return error_shapes.oip_error(error)


class PredictCodec:
    """TensorFlow Serving's `:predict`, rows of any length."""

    label = "predict"
    names_tensors = True
    takes_views = False
    kind_without_a_name = ""

    def decode(self, body: bytes, exchange: Exchange, d: ModelDescription | None) -> Any:
        return predict.decode(body, sys.maxsize if d is None else d.scheduling.core.max_queue_rows)

    def texts(self, call: Any, d: ModelDescription) -> list[str] | None:
        return None

    def text_name(self, call: Any, index: int) -> str:
        return f"instances[{index}]"

    def images(self, call: Any, d: ModelDescription) -> None:
        return None

    def row_count(self, call: Any) -> int:
        return predict.row_count(call)

    def split(
        self, call: Any, tokens: list[Any] | None, d: ModelDescription, tokenizer: Tokenizer = None
    ) -> Rows:
        return predict.rows_of(call, d)

    def encode(
        self, call: Any, rows: Rows, answers: tuple[RowAnswer, ...], d: ModelDescription
    ) -> Encoded:
        return predict.encode(call, by_output(rows, answers), d)

    def answer_size(
        self, call: Any, rows: Rows, d: ModelDescription, answers: Answers = None
    ) -> AnswerSize:
        outputs = sizes(rows, d, answers)
        sent = sum([output.json_bytes(output.elements) for output in outputs.values()])
        return size_of(outputs, sent, "", "instances" if call.inputs is None else "inputs")

    def pieces(
        self, call: Any, rows: Rows, answers: tuple[RowAnswer, ...], d: ModelDescription
    ) -> LargeAnswer:
        return predict.pieces(call, by_output(rows, answers), d)

    def error(self, error: errors.HeadraceError) -> Encoded:
        return error_shapes.oip_error(error)


class EmbeddingsCodec:
    """Vectors of texts or token lists, or the scores of their classes."""

    names_tensors = takes_views = False
    parameter = "input"  # the texts' name in a body
    kind_without_a_name = ""

    def __init__(self, label: str, form: embeddings.Form) -> None:
        self.label = label
        self._form = form

    def decode(self, body: bytes, exchange: Exchange, d: ModelDescription | None) -> EmbeddingsCall:
        return embeddings.decode(body, self._form)

    def texts(self, call: EmbeddingsCall, d: ModelDescription) -> list[str] | None:
        if d.image is not None:  # it has no tokeniser to ask first
            self._check(call, d)
        return embeddings.prompted(call, d)

    def text_name(self, call: EmbeddingsCall, index: int) -> str:
        return f"{self.parameter}[{index}]"

    def images(self, call: EmbeddingsCall, d: ModelDescription) -> list[EncodedImage] | None:
        if call.images is None:
            return None
        self._check(call, d)
        return list(call.images)

    def row_count(self, call: EmbeddingsCall) -> int:
        return len(call.texts or call.tokens or call.images or ())

    def split(
        self,
        call: EmbeddingsCall,
        tokens: list[Any] | None,
        d: ModelDescription,
        tokenizer: Tokenizer = None,
    ) -> Rows:
        self._check(call, d)
        if d.image is not None and tokens is not None:
            rows = from_rows({d.image.input: tokens}, d)
            rows.outputs = self._outputs(d)
            return rows
        if tokens is not None and d.token_vectors is not None and tokenizer is not None:
            tokens = embeddings.as_rows(call, tokens, d, tokenizer)
        more = embeddings.prompt_masks(call, tokens, d, tokenizer)
        given = call.tokens if tokens is None else tokens
        rows = from_tokens(given, d, more)  # type: ignore[arg-type]
        rows.outputs = self._outputs(d)
        return rows

    def encode(
        self,
        call: EmbeddingsCall,
        rows: Rows,
        answers: tuple[RowAnswer, ...],
        d: ModelDescription,
    ) -> Encoded:
        return embeddings.encode(
            self._numbers(call, d, rows, answers), sum(rows.lengths), d.name, self._form,
            base64=call.base64, labels=d.classes.labels if d.classes else (),
        )  # fmt: skip

    def answer_size(
        self, call: EmbeddingsCall, rows: Rows, d: ModelDescription, answers: Answers = None
    ) -> AnswerSize:
        outputs = sizes(rows, d, answers)
        sent = rows.count * _EMBEDDING_BYTES + _BRACKETS * sum(rows.lengths)
        for output in outputs.values():
            base64_bytes = output.held_bytes * 4 // 3
            sent += base64_bytes if call.base64 else output.json_bytes(output.elements)
        return size_of(outputs, sent, "" if call.base64 else ", or ask for base64", self.parameter)

    def pieces(
        self,
        call: EmbeddingsCall,
        rows: Rows,
        answers: tuple[RowAnswer, ...],
        d: ModelDescription,
    ) -> LargeAnswer:
        return embeddings.pieces(
            self.vectors(call, d, rows, answers), sum(rows.lengths), d.name, self._form,
            base64=call.base64, labels=d.classes.labels if d.classes else (),
        )  # fmt: skip

    def error(self, error: errors.HeadraceError) -> Encoded:
        if error.param in ("input", "inputs"):  # what rows come from has other names elsewhere
            error.param = self.parameter
        return error_shapes.openai_error(error)

    def _check(self, call: EmbeddingsCall, d: ModelDescription) -> None:
        embeddings.check_task(call, d, self._form)
        embeddings.check_dimensions(call, d)

    def _outputs(self, d: ModelDescription) -> tuple[str, ...]:
        return (d.embed_output if d.classes is None else d.classes.output,)

    def vectors(
        self, call: EmbeddingsCall, d: ModelDescription, rows: Rows, answers: tuple[RowAnswer, ...]
    ) -> Iterator[np.ndarray[Any, Any]]:
        """Of each row what `_numbers` says, one at a time."""
        if d.classes is not None:
            for answer in answers:  # all of them before the first is sent
                classify.check_scores(answer.outputs[d.classes.output][1], d.classes)
        if d.kind == "tokens":
            yield from self._by_token(call, d, rows, answers)
            return
        for answer in answers:
            yield self._numbers(call, d, rows, (answer,))[0]

    def _numbers(
        self, call: EmbeddingsCall, d: ModelDescription, rows: Rows, answers: tuple[RowAnswer, ...]
    ) -> Sequence[np.ndarray[Any, Any]] | np.ndarray[Any, Any]:
        """Of each row the vector, the scores of the classes, or the vectors of its tokens."""
        if d.kind == "tokens":
            return list(self._by_token(call, d, rows, answers))
        if d.classes is not None:
            return classify.scores([a.outputs[d.classes.output][1] for a in answers], d.classes)
        vectors = np.stack([a.outputs[d.embed_output][1] for a in answers])
        return embeddings.cut(call, d, vectors.astype(np.float32, copy=False))

    def _by_token(
        self, call: EmbeddingsCall, d: ModelDescription, rows: Rows, answers: tuple[RowAnswer, ...]
    ) -> Iterator[np.ndarray[Any, Any]]:
        assert d.lengths_input is not None
        for ids, answer in zip(rows.inputs[d.lengths_input].rows, answers, strict=True):
            yield embeddings.kept(call, d, ids, answer.outputs[d.embed_output][1])


class SparseCodec(EmbeddingsCodec):
    """Sparse vectors of texts or token lists."""

    kind_without_a_name = "sparse"
    parameter = "inputs"

    def __init__(self) -> None:
        super().__init__("sparse", "embedding")

    def decode(self, body: bytes, exchange: Exchange, d: ModelDescription | None) -> EmbeddingsCall:
        return embeddings.decode_sparse(body)

    def encode(
        self,
        call: EmbeddingsCall,
        rows: Rows,
        answers: tuple[RowAnswer, ...],
        d: ModelDescription,
    ) -> Encoded:
        return embeddings.encode_sparse(self._vectors(answers, d), _most_entries(d))

    def answer_size(
        self, call: EmbeddingsCall, rows: Rows, d: ModelDescription, answers: Answers = None
    ) -> AnswerSize:
        outputs = sizes(rows, d, answers)
        return size_of(
            outputs, outputs[d.embed_output].elements * embeddings.ENTRY_BYTES, "", self.parameter
        )

    def pieces(
        self,
        call: EmbeddingsCall,
        rows: Rows,
        answers: tuple[RowAnswer, ...],
        d: ModelDescription,
    ) -> LargeAnswer:
        return embeddings.sparse_pieces(self._vectors(answers, d), _most_entries(d))

    def _check(self, call: EmbeddingsCall, d: ModelDescription) -> None:
        embeddings.check_sparse(d)

    def _outputs(self, d: ModelDescription) -> tuple[str, ...]:
        assert d.embedding is not None
        return d.embedding.indices_output, d.embed_output

    def _vectors(
        self, answers: tuple[RowAnswer, ...], d: ModelDescription
    ) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
        indices, values = self._outputs(d)
        return [(a.outputs[indices][1], a.outputs[values][1]) for a in answers]


def _most_entries(d: ModelDescription) -> int:
    return d.embedding.default_dimensions if d.embedding else 0


class ClassifyCodec:
    """Labels with scores, of images or texts."""

    label = "classify"
    names_tensors = takes_views = False
    kind_without_a_name = ""

    def decode(self, body: bytes, exchange: Exchange, d: ModelDescription | None) -> ClassifyCall:
        content_type = exchange.header(b"content-type") or ""
        return classify.decode(body, content_type, exchange.query)

    def texts(self, call: ClassifyCall, d: ModelDescription) -> list[str] | None:
        return call.texts

    def text_name(self, call: ClassifyCall, index: int) -> str:
        return f"instances[{index}]"

    def images(self, call: ClassifyCall, d: ModelDescription) -> list[EncodedImage] | None:
        classify.check(call, d)
        return None if call.images is None else list(call.images)

    def row_count(self, call: ClassifyCall) -> int:
        return len(call.texts or call.images or ())

    def split(
        self,
        call: ClassifyCall,
        tokens: list[Any] | None,
        d: ModelDescription,
        tokenizer: Tokenizer = None,
    ) -> Rows:
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

    def answer_size(
        self, call: ClassifyCall, rows: Rows, d: ModelDescription, answers: Answers = None
    ) -> AnswerSize:
        assert d.classes is not None
        sent = rows.count * classify.prediction_bytes(call, d.classes)
        return size_of(
            sizes(rows, d, answers), sent, ", or ask for fewer labels (top_k)", "instances"
        )

    def pieces(
        self, call: ClassifyCall, rows: Rows, answers: tuple[RowAnswer, ...], d: ModelDescription
    ) -> LargeAnswer:
        assert d.classes is not None
        return classify.pieces(call, [a.outputs[d.classes.output][1] for a in answers], d)

    def error(self, error: errors.HeadraceError) -> Encoded:
        return error_shapes.oip_error(error)


class PairsCodec:
    """Scores of pairs of texts: one row a document."""

    names_tensors = takes_views = False
    kind_without_a_name = "rerank"

    def __init__(self, label: str, decoder: Callable[[bytes], rerank.PairsCall]) -> None:
        self.label = label
        self._decoder = decoder

    def decode(
        self, body: bytes, exchange: Exchange, d: ModelDescription | None
    ) -> rerank.PairsCall:
        return self._decoder(body)

    def texts(self, call: rerank.PairsCall, d: ModelDescription) -> list[str]:
        return rerank.prompted(call, d)

    def text_name(self, call: rerank.PairsCall, index: int) -> str:
        return rerank.text_name(call, index)

    def images(self, call: rerank.PairsCall, d: ModelDescription) -> None:
        return None

    def row_count(self, call: rerank.PairsCall) -> int:
        return len(call.documents)

    def split(
        self,
        call: rerank.PairsCall,
        tokens: list[Any] | None,
        d: ModelDescription,
        tokenizer: Tokenizer = None,
    ) -> Rows:
        assert tokens is not None
        check_count(len(call.documents), d)
        rows = from_rows(rerank.columns(call, tokens, d, tokenizer.pairs if tokenizer else None), d)
        assert d.classes is not None
        rows.outputs = (d.classes.output,)
        return rows

    def encode(
        self,
        call: rerank.PairsCall,
        rows: Rows,
        answers: tuple[RowAnswer, ...],
        d: ModelDescription,
    ) -> Encoded:
        return rerank.encode(call, self._scores(call, answers, d), rows, d)

    def pieces(
        self,
        call: rerank.PairsCall,
        rows: Rows,
        answers: tuple[RowAnswer, ...],
        d: ModelDescription,
    ) -> LargeAnswer:
        return rerank.pieces(call, self._scores(call, answers, d), rows, d)

    def answer_size(
        self, call: rerank.PairsCall, rows: Rows, d: ModelDescription, answers: Answers = None
    ) -> AnswerSize:
        texts = sum(2 * len(text) for text in call.documents) if call.returns else 0
        return size_of(
            sizes(rows, d, answers),
            rows.count * rerank.RESULT_BYTES + texts,
            ", or set return_documents to false",
            "documents",
        )

    def error(self, error: errors.HeadraceError) -> Encoded:
        return error_shapes.openai_error(error)

    def _scores(
        self, call: rerank.PairsCall, answers: tuple[RowAnswer, ...], d: ModelDescription
    ) -> np.ndarray[Any, Any]:
        assert d.classes is not None
        how = replace(d.classes, activation="identity") if call.raw else d.classes
        return classify.scores([a.outputs[how.output][1] for a in answers], how)[:, 0]


class GenerationCodec:
    """Chats, completions and the like, and counts of their tokens. `label`: the endpoint."""

    names_tensors = takes_views = False
    kind_without_a_name = ""

    def __init__(self, label: str, decoder: Callable[[bytes], GenerationCall]) -> None:
        self.label = label
        self._decoder = decoder

    def decode(self, body: bytes, exchange: Exchange, d: ModelDescription | None) -> GenerationCall:
        return self._decoder(body)

    def error(self, error: errors.HeadraceError) -> Encoded:
        return error_shapes.of_endpoint(self.label)(error)


def sizes(
    rows: Rows, d: ModelDescription, answers: Answers, extent: int = 0
) -> dict[str, OutputSize]:
    return declared(rows, d, extent) if answers is None else measured(rows, answers, d, extent)
