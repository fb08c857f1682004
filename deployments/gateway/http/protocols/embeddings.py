"""OpenAI's `/v1/embeddings`, vLLM's `/pooling` and `/classify`, Text Embeddings Inference's
`/embed_sparse`: texts or token arrays in, of each a vector or the score of every class out.

A request has 1 to 2048 texts or token arrays, none empty; for a model of images, `{"image": …}`
with a file as base64, data URL, or https URL that the gateway fetches. `encoding_format` is float
or base64 (little-endian float32). `dimensions` is one that the model was trained for: the vector's
first numbers, to length 1 again if the whole had it. `prompt_name` names a prompt that goes before
each text, `input_type` what texts are for; where each token has a vector, texts are documents if
neither says more. A sparse vector is `[{"index", "value"}]`. Unknown keys are ignored.
Source: OpenAI API reference; vLLM 0.32; sentence-transformers 6.2; Cohere's `input_type`; Jina's
`image`; Text Embeddings Inference 1.8.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Container, Iterable, Sequence
from functools import partial
from itertools import chain, islice
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import orjson

from deployments.contract.description import EmbeddingChoices, ModelDescription
from deployments.contract.errors import BadRequest, OutputNotFinite
from deployments.gateway.http.large_answers import LargeAnswer, Parts, listed, nested
from deployments.gateway.http.protocols import json_body
from deployments.gateway.http.protocols.tensors import (
    EmbeddingsCall,
    Encoded,
    External,
    ExternalInput,
    any_of,
    documented,
    put_file,
)
from deployments.gateway.rows import Array
from deployments.preprocess import pairs
from deployments.preprocess.tokenizer import TextTokenizer
from runtimes.types import PROMPT_MASK

MAX_INPUTS = 2048
ENTRY_BYTES = 64  # of a sparse vector's entry as JSON, at most
_ENTRIES_STEP = 1000
_BASE64_STEP = 196_608  # bytes; a multiple of 3
MAX_TOKENS = 4_194_304  # of one request; OpenAI's own bound is 300,000

TOKEN_EMBED = "token_embed"  # vLLM's word
Form = Literal["embedding", "pooling", "classification"]
Labels = Sequence[str]
_KEYS: dict[Form, str] = {"embedding": "embedding", "pooling": "data", "classification": "probs"}
_NONE = EmbeddingChoices()
# Names that a model's prompt may have, by what a request says that its texts are for.
_KINDS = {
    **dict.fromkeys(("query", "search_query"), ("query", "search_query")),
    **dict.fromkeys(
        ("document", "passage", "search_document"),
        ("document", "passage", "corpus", "search_document"),
    ),
}
_UNIT = 1e-3  # how far from 1 the length of a vector may be that was normalised
_SHOWN = 100
_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Token = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Tokens = Annotated[list[_Token], msgspec.Meta(min_length=1)]
_MANY = msgspec.Meta(min_length=1, max_length=MAX_INPUTS)
INPUTS = any_of(_Text, Annotated[list[_Text], _MANY], _Tokens, Annotated[list[_Tokens], _MANY])


class ImageOfInput(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    image: _Text


_AN_IMAGE = {
    "type": "object",
    "properties": {
        "image": {
            "type": "string",
            "minLength": 1,
            "description": "A JPEG or PNG file: base64, a data URL, or an https URL.",
        }
    },
    "required": ["image"],
    "additionalProperties": False,
}
_IMAGES = {"type": "array", "items": _AN_IMAGE, "minItems": 1, "maxItems": MAX_INPUTS}
OR_IMAGES: dict[str, Any] = {"anyOf": [*INPUTS["anyOf"], _AN_IMAGE, _IMAGES]}


class EmbeddingsRequest(msgspec.Struct, gc=False):
    model: str
    input: Annotated[msgspec.Raw, documented(**OR_IMAGES)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, msgspec.Meta(ge=1)] | None = None
    prompt_name: str | None = None
    input_type: str | None = None


class PoolingRequest(EmbeddingsRequest, gc=False):
    """`task`: what the model is for, if given."""

    task: str | None = None


class ClassificationRequest(msgspec.Struct, gc=False):
    model: str
    input: Annotated[msgspec.Raw, documented(**INPUTS)]


_FORMS: dict[Form, msgspec.json.Decoder[Any]] = {
    "embedding": msgspec.json.Decoder(EmbeddingsRequest),
    "pooling": msgspec.json.Decoder(PoolingRequest),
    "classification": msgspec.json.Decoder(ClassificationRequest),
}
_text = msgspec.json.Decoder(_Text)
_texts = msgspec.json.Decoder(list[_Text])
_tokens = msgspec.json.Decoder(_Tokens)
_token_lists = msgspec.json.Decoder(list[_Tokens])
_image = msgspec.json.Decoder(ImageOfInput)
_image_list = msgspec.json.Decoder(list[ImageOfInput])
_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://")
_START = re.compile(rb"\s*(?P<outer>\[?)\s*(?P<inner>.?)", re.DOTALL)


def decode(body: bytes, form: Form = "embedding") -> EmbeddingsCall:
    """The call; `BadRequest` names the parameter at fault."""
    request = json_body.read(_FORMS[form], body)
    if isinstance(request, ClassificationRequest):
        texts, tokens = inputs_of(request.input)
        return EmbeddingsCall(request.model, texts, tokens, task="classify")
    images, external = _images(request.input)
    texts, tokens = (None, None) if images else inputs_of(request.input)
    return EmbeddingsCall(
        request.model, texts, tokens, request.encoding_format == "base64", request.dimensions,
        request.prompt_name, request.input_type, getattr(request, "task", None), images,
        external,
    )  # fmt: skip


def _images(raw: msgspec.Raw) -> tuple[list[bytes] | None, External]:
    """The files of an input that is images, empty where they are to be fetched; None for another
    input. Raises `BadRequest`."""
    start = _START.match(memoryview(raw))
    if start is None or start["inner"] != b"{":
        return None, ()
    try:
        if start["outer"]:
            check_inputs(len(json_body.rows(raw, MAX_INPUTS)), "input")
        entries = _image_list.decode(raw) if start["outer"] else [_image.decode(raw)]
    except json_body.DECODE_ERRORS as error:
        refusal = json_body.element(error, "The body", "input")
        raise BadRequest(refusal.message, param="input") from None
    files: list[bytes] = []
    external: list[ExternalInput] = []
    for index, entry in enumerate(entries):
        if _REMOTE.match(entry.image):
            label = f"input[{index}].image"
            external.append(ExternalInput(label, entry.image, partial(put_file, files, index)))
            files.append(b"")
        else:
            files.append(_file(index, entry.image))
    return files, external


def _file(index: int, written: str) -> bytes:
    if written.startswith("data:"):
        written = written.partition(",")[2]
    try:
        return b64decode(written, validate=True)
    except ValueError as error:
        raise BadRequest(f"input[{index}].image is not base64: {error}", param="input") from None


def inputs_of(
    raw: msgspec.Raw, name: str = "input"
) -> tuple[list[str] | None, list[list[int]] | None]:
    """Texts or token arrays, of the body's parameter `name`. Raises `BadRequest`."""
    try:
        texts, tokens = _inputs(raw, name)
    except json_body.DECODE_ERRORS as error:
        refusal = json_body.element(error, "The body", name)
        raise BadRequest(refusal.message, param=name) from None
    check_inputs(len(texts or tokens or ()), name)
    return texts, tokens


def _inputs(raw: msgspec.Raw, name: str) -> tuple[list[str] | None, list[list[int]] | None]:
    """By the first characters, so that each form's own mistakes are named."""
    start = _START.match(memoryview(raw))
    assert start is not None  # the pattern matches anything
    if not start["outer"]:
        return [_text.decode(raw)], None
    if start["inner"] in (b'"', b"[") and len(memoryview(raw)) > 2 * MAX_INPUTS:
        # Counted first: 60 MB of one-token lists take 7 s to make, in which nothing else runs.
        entries = json_body.rows(raw, MAX_INPUTS)
        check_inputs(len(entries), name)
        if start["inner"] == b"[" and json_body.is_long(raw):
            return None, _long_token_lists(raw, entries, name)
    if start["inner"] == b'"':
        return _texts.decode(raw), None
    if start["inner"] == b"[":
        return None, json_body.integers(_token_lists, raw)
    if json_body.is_long(raw):
        return None, _long_token_lists(raw, [raw], name)
    return None, [json_body.integers(_tokens, raw)]


def _long_token_lists(raw: msgspec.Raw, entries: list[msgspec.Raw], name: str) -> list[list[int]]:
    """In slices, so that nothing else waits."""
    if (tokens := json_body.elements(raw)) > MAX_TOKENS:
        raise BadRequest(
            f"{name} has {tokens} tokens; a request may have {MAX_TOKENS}.", param=name
        )
    breaks, lists = json_body.Breaks(), []
    for entry in entries:
        if json_body.is_long(entry):
            lists.append([token for _, part in json_body.pieces(entry, _Token) for token in part])
        else:
            lists.append(json_body.integers(_tokens, entry))
        breaks.take()
    return lists


def check_inputs(count: int, name: str) -> None:
    """Raises BadRequest for none, or too many."""
    if not 1 <= count <= MAX_INPUTS:
        raise BadRequest(f"{name} has {count} entries; it must have 1 to {MAX_INPUTS}.", param=name)


def check_dimensions(call: EmbeddingsCall, d: ModelDescription) -> None:
    """`BadRequest` unless the model can give the asked-for width."""
    if d.classes is not None and call.dimensions is not None:
        raise BadRequest(
            f"model {d.name} gives classes; leave 'dimensions' out.", param="dimensions"
        )
    choices = d.embedding or _NONE
    offered = sorted({d.embed_width, choices.default_dimensions, *choices.dimensions} - {0})
    if call.dimensions is not None and call.dimensions not in offered:
        raise BadRequest(
            f"'{d.name}' gives {', '.join(map(str, offered))} dimensions and cannot give "
            f"{call.dimensions}; {'ask for one of them' if offered[1:] else 'leave it out'}.",
            param="dimensions",
        )


def prompted(call: EmbeddingsCall, d: ModelDescription) -> list[str] | None:
    """The texts, each behind the prompt that was asked for, or that the model gives to all. Raises
    `BadRequest` for a prompt that it does not have."""
    prompt = _prompt_of(call, d)
    if call.texts is None:
        if call.prompt is not None:
            other = "ids" if call.images is None else "images"
            raise BadRequest(
                f"a prompt goes before a text, not before {other}.", param="prompt_name"
            )
        return None
    return [prompt + text for text in call.texts] if prompt else call.texts


def _prompt_of(call: EmbeddingsCall, d: ModelDescription) -> str:
    choices = d.embedding or _NONE
    name = call.prompt
    if name is not None and name not in choices.prompts:
        has = f"has {', '.join(choices.prompts)}" if choices.prompts else "has none"
        raise BadRequest(
            f"'{d.name}' has no prompt {name[:_SHOWN]!r}; it {has}.", param="prompt_name"
        )
    if name is None and d.kind == "tokens":  # a text is one or the other, whatever it is for
        name = prompt_for("query" if _are_queries(call) else "document", choices.prompts) or ""
    elif name is None:
        name = prompt_for(call.kind, choices.prompts) or choices.default_prompt
    return choices.prompts.get(name, "")


def prompt_masks(
    call: EmbeddingsCall,
    tokens: Sequence[Array] | None,
    d: ModelDescription,
    tokenizer: TextTokenizer | None,
) -> dict[str, list[Array]]:
    """The input that says which tokens are the prompt's, for a model that has it; of ids none are.
    Special tokens before the text count among them."""
    if tokens is None or tokenizer is None or all(each.name != PROMPT_MASK for each in d.inputs):
        return {}
    prompt, count = _prompt_of(call, d), 0
    if prompt:
        (ids,) = tokenizer.encode([prompt])
        count = len(ids) - tokenizer.around[1]
    return {PROMPT_MASK: [(np.arange(len(each)) < count).astype(np.int64) for each in tokens]}


def prompt_for(kind: str | None, prompts: Container[str]) -> str | None:
    """The name among the prompts of the one for texts of this kind."""
    wanted = _KINDS.get(kind or "", (kind,))
    return next((each for each in wanted if each and each in prompts), None)


def as_rows(
    call: EmbeddingsCall, tokens: Sequence[Array], d: ModelDescription, tokenizer: TextTokenizer
) -> list[Array]:
    """The texts' tokens as the rows of a model with a vector for each. `BadRequest` for a text that
    is too long."""
    assert d.token_vectors is not None
    query, (_, after) = _are_queries(call), tokenizer.around
    return [
        pairs.of_tokens(d.token_vectors, after, ids, query=query, may_cut=d.truncate)
        for ids in tokens
    ]


def kept(call: EmbeddingsCall, d: ModelDescription, ids: Array, vectors: Array) -> Array:
    """Of a row's vectors [tokens, width], those that count: of a document not all."""
    skipped = d.token_vectors.skipped if d.token_vectors else ()
    if not skipped or _are_queries(call):
        return vectors
    found: Array = vectors[~np.isin(ids, skipped)]
    return found


def _are_queries(call: EmbeddingsCall) -> bool:
    return (call.prompt or call.kind) in _KINDS["query"]


def check_task(call: EmbeddingsCall, d: ModelDescription, form: Form) -> None:
    """`BadRequest` unless the model gives what the caller wants of its texts."""
    if d.kind == "sparse":
        raise BadRequest(
            f"model {d.name} makes sparse vectors; ask for them at /embed_sparse", param="model"
        )
    if d.kind == "tokens":
        if form != "pooling":
            raise BadRequest(
                f"model {d.name} makes a vector for each token; ask for them at /pooling",
                param="model",
            )
        if call.task not in (None, TOKEN_EMBED):
            raise BadRequest(
                f"the task of model {d.name} is {TOKEN_EMBED}, not {call.task[:_SHOWN]}",
                param="task",
            )
        return
    if form == "embedding" and d.task != "embed":
        raise BadRequest(f"model {d.name} does not make embeddings", param="model")
    if call.images is None and d.image is not None and d.task == "embed":
        raise BadRequest(
            f"model {d.name} takes images: {{'image': the JPEG or PNG file as base64}}",
            param="input",
        )
    if call.images is not None and d.image is None:
        raise BadRequest(f"model {d.name} takes no images", param="input")
    if d.task not in ("embed", "classify") or (d.image is not None and d.task != "embed"):
        raise BadRequest(f"model {d.name} neither embeds nor classifies texts", param="model")
    if call.task not in (None, d.task):
        what = "model" if form == "classification" else "task"
        raise BadRequest(
            f"the task of model {d.name} is {d.task}, not {call.task[:_SHOWN]}", param=what
        )


def cut(call: EmbeddingsCall, d: ModelDescription, vectors: Array) -> Array:
    """[rows, dimensions] of [rows, width], float32; of length 1 where the whole vector is."""
    wanted = call.dimensions or (d.embedding or _NONE).default_dimensions
    if not wanted or wanted >= vectors.shape[1]:
        return vectors
    cut: Array = vectors[:, :wanted]
    lengths, whole = (np.linalg.norm(each, axis=1, keepdims=True) for each in (cut, vectors))
    unit = (np.abs(whole - 1) < _UNIT) & (lengths > 0)
    return np.where(unit, cut / np.where(unit, lengths, 1), cut).astype(np.float32, copy=False)


def encode(
    vectors: Iterable[Array],
    prompt_tokens: int,
    model: str,
    form: Form,
    *,
    base64: bool,
    labels: Labels = (),
) -> Encoded:
    """`vectors`: of each input, in their order, [width], or [tokens, width]; `model`: that ran.
    `labels`: of the classes, whose scores the vectors are."""
    rows = [np.ascontiguousarray(vector, dtype="<f4") for vector in vectors]
    data = [
        {**_named(form, index, row, labels), _KEYS[form]: _base64(row) if base64 else row}
        for index, row in enumerate(rows)
    ]
    body = {"object": "list", "data": data, "model": model, "usage": _usage(prompt_tokens)}
    return Encoded(orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY))


def pieces(
    vectors: Iterable[Array], prompt_tokens: int, model: str, form: Form, *, base64: bool,
    labels: Labels = (),
) -> LargeAnswer:  # fmt: skip
    """As `encode`, of a large answer."""
    return LargeAnswer(_parts(vectors, prompt_tokens, model, form, base64, labels))


def _parts(
    vectors: Iterable[Array], prompt_tokens: int, model: str, form: Form, base64: bool,
    labels: Labels,
) -> Parts:  # fmt: skip
    rest = iter(vectors)
    first = list(islice(rest, 1))  # it may fail, and does so before an answer begins
    yield b'{"object":"list","data":['
    for index, vector in enumerate(chain(first, rest)):
        row = np.ascontiguousarray(vector, dtype="<f4")
        head = orjson.dumps(_named(form, index, row, labels))[:-1]
        yield b'%b%b,"%b":' % (b"," if index else b"", head, _KEYS[form].encode())
        if base64:
            yield b'"'
            data = row.reshape(-1).view(np.uint8).data
            for start in range(0, len(data), _BASE64_STEP):
                yield b64encode(data[start : start + _BASE64_STEP])
            yield b'"}'
        else:
            yield from nested(row, "FP32", bytes.decode)
            yield b"}"
    yield b"]," + orjson.dumps({"model": model, "usage": _usage(prompt_tokens)})[1:]


def _named(form: Form, index: int, row: Array, labels: Labels) -> dict[str, Any]:
    """What an input's answer has besides its numbers."""
    if form == "classification":
        return {"index": index, "label": labels[int(row.argmax())], "num_classes": len(labels)}
    return {"object": form, "index": index}


def _usage(prompt_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}


def _base64(row: Array) -> str:
    return b64encode(row.data).decode()


class SparseRequest(msgspec.Struct, gc=False):
    inputs: Annotated[msgspec.Raw, documented(**INPUTS)]
    model: str = ""
    prompt_name: str | None = None


class SparseEntry(msgspec.Struct):
    index: int
    value: float


_sparse = msgspec.json.Decoder(SparseRequest)


def decode_sparse(body: bytes) -> EmbeddingsCall:
    """The call; its model is "" where the request names none. `BadRequest` names the parameter at
    fault."""
    request = json_body.read(_sparse, body)
    texts, tokens = inputs_of(request.inputs, "inputs")
    return EmbeddingsCall(request.model, texts, tokens, prompt=request.prompt_name)


def check_sparse(d: ModelDescription) -> None:
    """`BadRequest` for a model that gives no sparse vectors."""
    if d.kind != "sparse":
        raise BadRequest(f"model {d.name} does not make sparse vectors", param="model")


def encode_sparse(vectors: Sequence[tuple[Array, Array]], most: int) -> Encoded:
    """`vectors`: indices and values of each input; `most`: entries of one, 0 for all. Raises
    OutputNotFinite."""
    return Encoded(b"".join(_sparse_parts(vectors, most)))


def sparse_pieces(vectors: Sequence[tuple[Array, Array]], most: int) -> LargeAnswer:
    """As `encode_sparse`, of a large answer."""
    return LargeAnswer(_sparse_parts(vectors, most))


def _sparse_parts(vectors: Sequence[tuple[Array, Array]], most: int) -> Parts:
    for _, values in vectors:  # all of them before the first is sent
        if not np.isfinite(values).all():
            raise OutputNotFinite("the model's answer holds NaN or infinity")
        yield b""
    yield from listed(_entries(*each, most) for each in vectors)


def _entries(indices: Array, values: Array, most: int) -> Parts:
    indices, values = indices.reshape(-1), values.reshape(-1)
    kept = indices >= 0
    if most and np.count_nonzero(kept) > most:
        kept[np.argsort(np.where(kept, values, -np.inf), kind="stable")[:-most]] = False
    order = np.flatnonzero(kept)
    order = order[np.argsort(indices[order], kind="stable")]
    before = b"["
    for start in range(0, len(order), _ENTRIES_STEP):
        some = order[start : start + _ENTRIES_STEP]
        entries = [
            {"index": index, "value": value}
            for index, value in zip(indices[some].tolist(), values[some].tolist(), strict=True)
        ]
        yield before + orjson.dumps(entries)[1:-1]
        before = b","
    yield b"[]" if before == b"[" else b"]"
