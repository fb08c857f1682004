"""Pairs of texts in, a score for each out: reranking and scoring.

`/v1/rerank` and `/v2/rerank`: a query and documents, in the forms that Cohere, Jina and vLLM share;
the best first, equal scores by index. `/rerank` takes the same, or Text Embeddings Inference's
`texts`, and answers in the form it was asked in. `/v1/score` is vLLM's: one text against one or
many, or as many against as many. Documents are cut to what the model takes, the query never is,
but of a model with a vector for each token where its settings say `lengths.truncate`.

Sources: Cohere API reference "Rerank" v2; Jina's `/v1/rerank`; vLLM 0.32 `/v1/rerank`, `/v1/score`;
text-embeddings-inference's OpenAPI description of `/rerank`.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import msgspec
import numpy as np
import orjson

from deployments.contract.description import ModelDescription
from deployments.contract.errors import BadRequest
from deployments.gateway.http.large_answers import LargeAnswer, Parts
from deployments.gateway.http.protocols import json_body
from deployments.gateway.http.protocols.embeddings import prompt_for
from deployments.gateway.http.protocols.tensors import (
    Encoded,
    External,
    ExternalInput,
    Fetched,
    documented,
)
from deployments.gateway.rows import Array, Rows
from deployments.preprocess import pairs

MAX_DOCUMENTS = 2048
RESULT_BYTES = 64  # of JSON around a score
_STEP = 256  # results in a part of a large answer
_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Positive = Annotated[int, msgspec.Meta(ge=1)]


class Document(msgspec.Struct, gc=False):
    text: str


class GivenDocument(msgspec.Struct, gc=False):
    """One of them. `url`: of the text, UTF-8."""

    text: str | None = None
    url: Annotated[str | None, documented(format="uri")] = None


_Documents = list[str | GivenDocument]


class RerankRequest(msgspec.Struct, gc=False):
    """`documents`, or Text Embeddings Inference's `texts` with `raw_scores` and `return_text`; its
    clients name no model. `instruction`: for a language model that judges, else ignored."""

    query: _Text
    model: str = ""
    documents: _Documents | None = None
    top_n: _Count | None = None  # 0: all, as in vLLM
    return_documents: bool | None = None
    max_tokens_per_doc: _Positive | None = None
    use_activation: bool = True
    texts: list[str] | None = None
    raw_scores: bool = False
    return_text: bool = False
    instruction: str | None = None


class ScoreRequest(msgspec.Struct, gc=False):
    """One of the three pairs of names."""

    model: str
    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    queries: str | list[str] | None = None
    documents: str | list[str] | None = None
    data_1: str | list[str] | None = None
    data_2: str | list[str] | None = None
    use_activation: bool = True


class Result(msgspec.Struct):
    index: int
    relevance_score: float
    document: Document | msgspec.UnsetType = msgspec.UNSET


class RerankResponse(msgspec.Struct):
    id: str
    model: str
    results: list[Result]
    usage: dict[str, int]
    meta: dict[str, Any]


class Score(msgspec.Struct):
    index: int
    object: str
    score: float


class ScoreResponse(msgspec.Struct):
    id: str
    object: str
    model: str
    data: list[Score]
    usage: dict[str, int]


@dataclass(slots=True)
class PairsCall:
    """`model`: "" for the only one that reranks. `queries`: one for all documents, or one for each.
    `form`: results, texts or scores."""

    model: str
    queries: list[str]
    documents: list[str]
    form: str
    raw: bool
    top_n: int | None = None
    returns: bool = False
    most_tokens: int | None = None
    instruction: str | None = None
    # What the body calls the queries and the documents.
    asked: str = "query"
    given: str = "documents"
    external: External = ()


_reranks = msgspec.json.Decoder(RerankRequest)
_scores = msgspec.json.Decoder(ScoreRequest)


def decode(body: bytes, returns: bool) -> PairsCall:
    """Of a reranking. `returns`: whether documents come back where the request does not say."""
    request = json_body.read(_reranks, body)
    if (request.documents is None) == (request.texts is None):
        raise BadRequest("the body must have documents, or texts instead", param="documents")
    if request.documents is not None and not request.model:
        raise BadRequest("the body must name a model", param="model")
    if request.texts is not None:
        _check_count("texts", request.texts)
        return PairsCall(
            request.model, [request.query], request.texts, "texts",
            request.raw_scores, None, request.return_text, given="texts",
        )  # fmt: skip
    given = request.documents or []
    _check_count("documents", given)
    documents, external = _texts_of(given)
    told = request.return_documents
    return PairsCall(
        request.model, [request.query], documents, "results",
        request.raw_scores or not request.use_activation,
        request.top_n or None, returns if told is None else told, request.max_tokens_per_doc,
        request.instruction, external=external,
    )  # fmt: skip


def _texts_of(given: Sequence[str | GivenDocument]) -> tuple[list[str], list[ExternalInput]]:
    """The documents' texts, empty where they are to be fetched."""
    texts: list[str] = []
    external: list[ExternalInput] = []
    for index, each in enumerate(given):
        if isinstance(each, str):
            texts.append(each)
        elif (each.text is None) == (each.url is None):
            raise BadRequest(f"documents[{index}] must have a text or a url", param="documents")
        else:
            if each.url is not None:
                take = partial(_put_text, texts, index)
                external.append(ExternalInput(f"documents[{index}].url", each.url, take))
            texts.append(each.text or "")
    return texts, external


def _put_text(texts: list[str], index: int, found: Fetched) -> None:
    try:
        texts[index] = bytes(found.content).decode()
    except UnicodeDecodeError:
        raise BadRequest(f"documents[{index}].url holds no UTF-8 text", param="documents") from None


def decode_score(body: bytes) -> PairsCall:
    request = json_body.read(_scores, body)
    named = (("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2"))
    given = [names for names in named if all(getattr(request, name) is not None for name in names)]
    if len(given) != 1:
        raise BadRequest(
            "the body must have text_1 and text_2, queries and documents, or data_1 and data_2",
            param="text_1",
        )
    first, second = given[0]
    queries, documents = (
        [value] if isinstance(value := getattr(request, name), str) else value
        for name in (first, second)
    )
    _check_count(first, queries)
    _check_count(second, documents)
    if len(queries) not in (1, len(documents)):
        raise BadRequest(
            f"{first} has {len(queries)} texts and {second} {len(documents)}; one text, or as "
            "many, can be scored against the others",
            param=first,
        )
    raw = not request.use_activation
    return PairsCall(request.model, queries, documents, "scores", raw, asked=first, given=second)


def _check_count(name: str, entries: Sequence[Any]) -> None:
    if not 1 <= len(entries) <= MAX_DOCUMENTS:
        raise BadRequest(
            f"{name} has {len(entries)} entries; it must have 1 to {MAX_DOCUMENTS}", param=name
        )


def prompted(call: PairsCall, d: ModelDescription) -> list[str]:
    """All queries and then all documents, as the model's tokeniser takes them."""
    if (prompt := d.pair_prompt) is not None:
        # Cut where the tokeniser's words end, so that the tokens are those of the whole.
        begins = f"{prompt.begins}{call.instruction or prompt.instruction}{prompt.query}"
        queries = [f"{begins}{text}{prompt.document}" for text in call.queries]
        return queries + [f" {text}" for text in call.documents]
    prompts = dict(d.token_vectors.prompts) if d.token_vectors else {}
    if not prompts:
        return call.queries + call.documents
    query, document = (
        prompts.get(prompt_for(kind, prompts) or "", "") for kind in ("query", "document")
    )
    return [query + text for text in call.queries] + [document + text for text in call.documents]


def text_name(call: PairsCall, index: int) -> str:
    """What the body calls one of the texts that `prompted` gives."""
    queries, documents = len(call.queries), len(call.documents)
    if index < queries:
        return call.asked if queries == 1 else f"{call.asked}[{index}]"
    one = documents == 1 and call.form == "scores"
    return call.given if one else f"{call.given}[{index - queries}]"


def columns(
    call: PairsCall, tokens: Sequence[Array], d: ModelDescription, pair: pairs.Pairs | None
) -> dict[str, list[Array]]:
    """The model's inputs, one row a document, from the tokens of all queries and then of all
    documents. `BadRequest` where the model ranks no pairs."""
    if pair is None or d.lengths_input is None:
        raise BadRequest(f"model {d.name} ranks no pairs; its task is {d.task}", param="model")
    queries, documents = tokens[: len(call.queries)], tokens[len(call.queries) :]
    ids, types = [], []
    for at, document in enumerate(documents):
        asked = at if len(queries) > 1 else 0
        try:
            made = pairs.joined(pair, queries[asked], document, d.max_length, call.most_tokens)
        except BadRequest as wrong:
            raise BadRequest(wrong.message, param=text_name(call, asked)) from None
        ids.append(made[0])
        types.append(made[1])
    found = {d.lengths_input: ids}
    if pair.typed and any(spec.name == TYPES for spec in d.inputs):
        found[TYPES] = types
    return found


TYPES = "token_type_ids"


def encode(call: PairsCall, scores: Array, rows: Rows, d: ModelDescription) -> Encoded:
    """`scores`: float64 [documents], in the request's order."""
    return Encoded(b"".join(_parts(call, scores, rows, d)))


def pieces(call: PairsCall, scores: Array, rows: Rows, d: ModelDescription) -> LargeAnswer:
    """As `encode`, of a large answer."""
    return LargeAnswer(_parts(call, scores, rows, d))


def _parts(call: PairsCall, scores: Array, rows: Rows, d: ModelDescription) -> Parts:
    tokens = sum(rows.lengths)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    order = np.arange(len(scores)) if call.form == "scores" else np.argsort(-scores, kind="stable")
    kept = order[: call.top_n].tolist()
    if call.form == "texts":
        yield from _listed(call, kept, scores)
        return
    kind = "score" if call.form == "scores" else "rerank"
    head = {"id": f"{kind}-{secrets.token_hex(8)}", "model": d.name}
    if call.form == "scores":
        yield orjson.dumps({**head, "object": "list"})[:-1] + b',"data":'
        yield from _listed(call, kept, scores)
        yield b',"usage":' + orjson.dumps(usage) + b"}"
        return
    meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
    yield orjson.dumps(head)[:-1] + b',"results":'
    yield from _listed(call, kept, scores)
    yield b"," + orjson.dumps({"usage": usage, "meta": meta})[1:]


def _listed(call: PairsCall, kept: list[int], scores: Array) -> Parts:
    for start in range(0, len(kept), _STEP):
        some = [_result(call, at, float(scores[at])) for at in kept[start : start + _STEP]]
        yield (b"," if start else b"[") + orjson.dumps(some)[1:-1]
    yield b"]"


def _result(call: PairsCall, at: int, score: float) -> dict[str, Any]:
    if call.form == "scores":
        return {"index": at, "object": "score", "score": score}
    if call.form == "texts":
        text = {"text": call.documents[at]} if call.returns else {}
        return {"index": at, "score": score, **text}
    document = {"document": {"text": call.documents[at]}} if call.returns else {}
    return {"index": at, "relevance_score": score, **document}
