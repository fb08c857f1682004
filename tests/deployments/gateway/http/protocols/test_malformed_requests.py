"""Bodies cut, mutated and invented: whatever they are, they are the caller's mistake or a call."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deployments.contract.description import Generating, ModelDescription
from deployments.contract.errors import HeadraceError
from deployments.gateway.http.body import BodyLimits, BodyRoom, Inflation
from deployments.gateway.http.protocols import (
    embeddings,
    metadata,
    open_inference,
    openai_generation,
    predict,
)
from deployments.gateway.http.protocols.openai_generation import GenerationCall
from deployments.gateway.http.row_conversion import from_tokens, split
from deployments.gateway.prompts import prompt_of, pseudo_ids

SEEDS = [
    json.dumps(
        {
            "id": "1",
            "parameters": {"binary_data_output": True},
            "inputs": [
                {"name": "ids", "shape": [1, 3], "datatype": "INT64", "data": [[1, 2, 3]]},
                {
                    "name": "types",
                    "shape": [1, 3],
                    "datatype": "INT64",
                    "parameters": {"binary_data_size": 24},
                },
            ],
            "outputs": [{"name": "pooled", "parameters": {"binary_data": False}}],
        }
    ).encode(),
    b'{"instances": [{"ids": [1, 2], "types": [0, 1]}, {"ids": [3], "types": [0]}]}',
    b'{"inputs": {"ids": [[1, 2], [3]]}, "signature_name": "s"}',
    b'{"model": "m", "input": ["a", "b"], "encoding_format": "base64", "dimensions": 2}',
    b'{"model": "m", "input": [[1, 2], [3]]}',
    b'{"model": "m", "prompt": ["a", "b"], "n": 2, "best_of": 3, "max_tokens": 5, "stream": true}',
    b'{"model": "m", "tools": [{"x": "\xff"}], "messages": [{"role": "user", "content": [{"type":'
    b' "text", "text": "a"}], "tool_calls": [1]}], "max_completion_tokens": 7, "user": "u"}',
    gzip.compress(b'{"ready": true}'),
]
PIECES = [
    b"", b"{", b"}", b"[", b"]", b'"', b",", b":", b"0", b"-1", b"1e999", b"9" * 40, b"NaN",
    b"null", b"true", b"\x00", b"\xff", b"\\ud800", b'"BYTES"', b'"FP16"', b'"ids"', b'"UINT8"',
    b"[" * 2000,
]  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    body = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(body)))
        stop = start + draw(st.integers(0, 6))
        body = body[:start] + draw(st.sampled_from(PIECES)) + body[stop:]
    return body


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
    | st.sampled_from(["BYTES", "FP32", "INT64", "BF16", "ids", "mask", "pooled"])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["b64", "ids", "mask", "binary_data_size"]), inner)
    ),
    max_leaves=8,
)
invented = st.fixed_dictionaries(
    {},
    optional={
        "inputs": values
        | st.lists(
            st.fixed_dictionaries(
                {"name": st.sampled_from(["ids", "mask"]), "datatype": scalars},
                optional={"shape": values, "data": values, "parameters": values},
            ),
            max_size=2,
        ),
        "instances": st.lists(values, max_size=3),
        "outputs": values,
        "input": values,
        "prompt": values | st.lists(st.text(max_size=3) | st.lists(st.integers(0, 9)), max_size=3),
        "messages": st.lists(
            st.fixed_dictionaries({"role": scalars}, optional={"content": values}), max_size=3
        ),
        "max_tokens": scalars,
        "n": scalars,
        "model": scalars,
        "parameters": values,
    },
).map(lambda found: json.dumps(found).encode())


def readings(body: bytes, header: int, d: ModelDescription) -> list[Callable[[], Any]]:
    def generation(decode: Callable[[bytes], GenerationCall]) -> Any:
        call = decode(body)
        sent = openai_generation.with_fields(call, {"model": "n"})
        ids = pseudo_ids(call.texts) if call.texts is not None else call.tokens or ()
        return prompt_of(sent, ids, generates)

    generates = replace(d, generating=Generating(64, 128, 4, 16))

    def vectors() -> None:
        call = embeddings.decode(body)
        embeddings.check_dimensions(call, d)
        if call.tokens is not None:
            from_tokens(call.tokens, d)

    return [
        lambda: split(open_inference.decode(body), d),
        lambda: split(open_inference.decode_binary(body, header), d),
        lambda: predict.rows_of(predict.decode(body), d),
        vectors,
        lambda: from_tokens(embeddings.decode_sparse(body).tokens or [[1]], d),
        lambda: generation(openai_generation.decode_chat),
        lambda: generation(openai_generation.decode_completion),
        lambda: metadata.ready_only(body),
        lambda: inflate(body),
    ]


def inflate(body: bytes) -> None:
    inflation = Inflation(body, BodyLimits(64, 64, 1.0, BodyRoom(1)))
    while not inflation.is_measured:
        inflation.measure()
    inflation.take()


UNKNOWN_NAME = b'{"model": "m", "prompt": "a", "\xffbest": 3, "max_tokens": 5}'


@pytest.mark.slow
@settings(max_examples=250, deadline=None)
@example(body=UNKNOWN_NAME, header=0)
@given(body=mutated() | invented | st.binary(max_size=60), header=st.integers(-1, 400))
def test_any_body_is_a_call_or_the_callers_mistake(
    encoder: Callable[..., ModelDescription], body: bytes, header: int
) -> None:
    for read in readings(body, header, encoder()):
        refused = None
        try:
            read()
        except HeadraceError as error:
            refused = error
        assert refused is None or (400 <= refused.status < 500 and refused.message)
