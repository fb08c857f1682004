"""Wraps a backend that gives a vector for each token, so that it scores pairs: late interaction.

A row is a query's tokens and then a document's (`token_type_ids` 0 and 1). The wrapped backend runs
the batch's queries, each once however many rows have it, and then the documents; neither is padded
to the other's length. The score is the sum over the query's tokens (or their mean, where the folder
says so) of the largest product with a token of the document. So one number a document leaves the
replica, not 70 KB. Of a row that lacks one of the two it is 0.

Source: Khattab and Zaharia, "ColBERT", 2020; sentence-transformers 6.2, `maxsim`.
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from runtimes import rows
from runtimes.errors import BadRows, Unhealthy
from runtimes.graph.bert import INPUT_IDS, TOKEN_TYPES
from runtimes.graph.dense import check_ids
from runtimes.types import (
    MAXSIM,
    TOKEN_VECTORS,
    Batch,
    Limits,
    Ragged,
    Result,
    Runtime,
    StageTimes,
    TensorSpec,
    TokenVectors,
)

Array = np.ndarray[Any, Any]
_QUERY = 32  # tokens of a sample's, as most of ColBERT's have


class MaxSim:
    """`Runtime` around another one, whose output is `TOKEN_VECTORS`. `how`: as the folder says."""

    def __init__(self, inner: Runtime, how: TokenVectors) -> None:
        self._inner = inner
        self._mean = how.mean
        self._skipped = np.array(how.skipped, np.int64)
        self._limits: Limits | None = None

    def load(self) -> None:
        self._inner.load()
        own = self._inner.limits()
        self._limits = replace(
            own,
            inputs=tuple(TensorSpec(name, "INT64", (-1, -1)) for name in (INPUT_IDS, TOKEN_TYPES)),
            outputs=(TensorSpec(MAXSIM, "FP32", (-1, 1)),),
            mask_input=None,
            optional_inputs=(),
            fixed_edges=(),
            id_bounds={**own.id_bounds, TOKEN_TYPES: 2},
            sample=_sample,
        )

    def warm(self) -> None:
        self._inner.warm()

    def limits(self) -> Limits:
        if self._limits is None:
            raise Unhealthy("the model is not loaded")
        return self._limits

    def run(self, batch: Batch) -> Result:
        limits = self.limits()
        rows.check(batch, limits)
        check_ids(batch, limits.id_bounds)
        wanted = rows.wanted(batch, limits)
        ids, kinds = (list(batch.inputs[name].rows()) for name in (INPUT_IDS, TOKEN_TYPES))
        queries: dict[bytes, Array] = {}
        keys, documents = [], []
        for at, (row, kind) in enumerate(zip(ids, kinds, strict=True)):
            if len(row) != len(kind):
                raise BadRows(
                    f"row {at} of '{TOKEN_TYPES}' has {len(kind)} elements, and of '{INPUT_IDS}' "
                    f"{len(row)}"
                )
            query = row[kind == 0]
            keys.append(query.tobytes())
            queries[keys[-1]] = query
            documents.append(row[kind != 0])
        asked, first = self._vectors([each for each in queries.values() if len(each)])
        given, second = self._vectors([each for each in documents if len(each)])
        begin = perf_counter()
        vectors = {key: next(asked) if len(query) else None for key, query in queries.items()}
        scores = np.zeros(batch.rows, np.float32)
        for at, (key, document) in enumerate(zip(keys, documents, strict=True)):
            one, other = vectors[key], next(given) if len(document) else None
            if one is not None and other is not None:
                scores[at] = self._score(one, other[~np.isin(document, self._skipped)])
        results = [each for each in (first, second) if each is not None]
        times = StageTimes.total(results)
        times.post_s += perf_counter() - begin
        answer = Ragged("FP32", scores, ((1,),) * batch.rows)
        padded = sum(each.padded_tokens for each in results)
        return Result(dict.fromkeys(wanted, answer), times, padded)

    def health(self) -> None:
        self._inner.health()

    def close(self) -> None:
        self._limits = None
        self._inner.close()

    def _vectors(self, texts: list[Array]) -> tuple[Any, Result | None]:
        """Of each text its tokens' vectors [tokens, width], by one run of the backend."""
        if not texts:
            return iter(()), None
        lengths = np.array([len(text) for text in texts], np.int64)
        ids = Ragged("INT64", np.concatenate(texts), tuple((int(n),) for n in lengths))
        result = self._inner.run(Batch(len(texts), lengths, {INPUT_IDS: ids}, (TOKEN_VECTORS,)))
        found = result.outputs[TOKEN_VECTORS]
        each = zip(found.rows(), found.shapes, strict=True)
        return (row.reshape(shape) for row, shape in each), result

    def _score(self, query: Array, document: Array) -> float:
        if not len(document):
            return 0.0
        best = (query.astype(np.float32) @ document.astype(np.float32).T).max(axis=1)
        return float(best.mean() if self._mean else best.sum())


def _sample(length: int) -> dict[str, Ragged]:
    """A row of about this length, of both."""
    query = max(1, min(_QUERY, length // 2))
    size = max(2, length)
    kinds = (np.arange(size) >= query).astype(np.int64)
    return {
        INPUT_IDS: Ragged("INT64", np.zeros(size, np.int64), ((size,),)),
        TOKEN_TYPES: Ragged("INT64", kinds, ((size,),)),
    }
