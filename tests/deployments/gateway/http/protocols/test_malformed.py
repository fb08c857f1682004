"""What is said of JSON that cannot be meant, and which numbers are integers, in every protocol."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from deployments.contract.description import ModelDescription
from deployments.contract.errors import BadRequest
from deployments.gateway.http.protocols import (
    classify,
    embeddings,
    open_inference,
    openai_generation,
    predict,
)

Describe = Callable[..., ModelDescription]
# A body of each protocol in which `%s` stands for a part of a text.
TEXTS = {
    "embeddings": (embeddings.decode, '{"model": "m", "input": "%s"}'),
    "embeddings, many": (embeddings.decode, '{"model": "m", "input": ["a", "%s"]}'),
    "completions": (openai_generation.decode_completion, '{"model": "m", "prompt": "%s"}'),
    "chat": (
        openai_generation.decode_chat,
        '{"model": "m", "messages": [{"role": "user", "content": "%s"}]}',
    ),
    "classify": (lambda body: classify.decode(body, "", b""), '{"instances": ["%s"]}'),
    "predict": (predict.decode, '{"instances": ["%s"]}'),
    "infer": (
        open_inference.decode,
        '{"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": ["%s"]}]}',
    ),
    "a tensor's name": (
        open_inference.decode,
        '{"inputs": [{"name": "%s", "shape": [1], "datatype": "INT64", "data": [1]}]}',
    ),
}


def message(decode: Callable[[bytes], Any], body: str | bytes) -> str:
    with pytest.raises(BadRequest) as caught:
        decode(body if isinstance(body, bytes) else body.encode())
    return caught.value.message


@pytest.mark.parametrize("protocol", TEXTS)
@pytest.mark.parametrize(
    "text",
    ["\\ud800", "\\uDC00", "a\\ud800b", "\\ud800" + "c" * 40, "\\ud800\\n", "\\ud800\\u0041",
     "\\ud800\\ud801"],
)  # fmt: skip
def test_half_of_a_surrogate_pair_is_named_with_its_place(protocol: str, text: str) -> None:
    decode, body = TEXTS[protocol]
    body = body % text
    escape = text[text.index("\\") :][:6]
    expected = f"the escape {escape} is half of a surrogate pair, which is no character"
    assert f"{expected} (byte {body.index(escape)})" in message(decode, body)


@pytest.mark.parametrize("protocol", TEXTS)
def test_a_body_that_is_cut_off_is_called_so(protocol: str) -> None:
    decode, body = TEXTS[protocol]
    for text in ("abc", "\\ud83d", "\\ud83d\\u", "\\ud8"):
        cut = (body % text)[: body.index("%s") + len(text)]
        assert "truncated" in message(decode, cut)


@pytest.mark.parametrize("protocol", TEXTS)
def test_a_whole_pair_is_a_character(protocol: str) -> None:
    decode, body = TEXTS[protocol]
    decode((body % "\\ud83d\\ude00 \\\\ud800").encode())


@pytest.mark.parametrize("written", ["3", "3.0", "3e0", "30e-1", "0.3E+1"])
def test_a_number_without_a_fraction_is_an_integer_in_every_protocol(
    written: str, description: Describe
) -> None:
    prompt = f'{{"model": "m", "prompt": [{written}], "max_tokens": {written}, "n": {written}}}'
    completion = openai_generation.decode_completion(prompt.encode())
    assert (completion.max_tokens, completion.sequences, completion.tokens) == (3, 3, [[3]])
    lists = f'{{"model": "m", "prompt": [[{written}], [{written}]], "best_of": {written}}}'
    completion = openai_generation.decode_completion(lists.encode())
    assert (completion.sequences, completion.tokens) == (6, [[3], [3]])
    chat = (
        f'{{"model": "m", "messages": [{{"role": "user", "content": "a"}}], '
        f'"max_completion_tokens": {written}, "truncate_prompt_tokens": {written}}}'
    )
    call = openai_generation.decode_chat(chat.encode())
    assert (call.max_tokens, call.truncate_tokens) == (3, 3)
    assert call.body == chat.encode()
    for given, tokens in ((f"[{written}]", [[3]]), (f"[[1], [{written}]]", [[1], [3]])):
        body = f'{{"model": "m", "input": {given}, "dimensions": {written}}}'
        wanted = embeddings.decode(body.encode())
        assert (wanted.tokens, wanted.dimensions) == (tokens, 3)
    body = f'{{"instances": ["a"], "top_k": {written}}}'
    assert classify.decode(body.encode(), "", b"").top_k == 3
    call_ = predict.decode(f'{{"instances": [[1, {written}]]}}'.encode())
    (row,) = predict.rows_of(call_, description()).inputs["ids"].rows
    assert row.tolist() == [1, 3]
    for data, shape in ((f"[1, {written}, 2]", f"[{written}]"), (f"[[{written}]]", "[1, 1.0]")):
        tensor = f'{{"name": "x", "shape": {shape}, "datatype": "UINT8", "data": {data}}}'
        (found,) = open_inference.decode(f'{{"inputs": [{tensor}]}}'.encode()).tensors
        assert 3 in found.data.reshape(-1).tolist()
        assert found.data.dtype == "uint8"


def test_the_size_of_binary_data_may_be_written_as_a_float() -> None:
    tensor = {"name": "x", "shape": [3.0], "datatype": "UINT8",
              "parameters": {"binary_data_size": 3.0}}  # fmt: skip
    header = json.dumps({"inputs": [tensor]}).encode()
    call = open_inference.decode_binary(header + b"abc", len(header))
    assert call.tensors[0].data.tolist() == [97, 98, 99]


def test_long_lists_of_whole_floats_are_integers() -> None:
    values = [float(n % 100) for n in range(40_000)]
    tensor = {"name": "x", "shape": [40_000.0], "datatype": "INT64", "data": values}
    call = open_inference.decode(json.dumps({"inputs": [tensor]}).encode())
    assert call.tensors[0].data.tolist() == values
    found = embeddings.decode(json.dumps({"model": "m", "input": values}).encode())
    assert found.tokens == [values]


@pytest.mark.parametrize("value", ["3.5", "1e-1", "9007199254740994.0", "1e300", "true", '"3"'])
def test_what_has_a_fraction_or_is_not_exact_is_no_integer(value: str) -> None:
    for decode, body, where in (
        (openai_generation.decode_completion, '{"model": "m", "prompt": "a", "n": %s}', "n: "),
        (embeddings.decode, '{"model": "m", "input": "a", "dimensions": %s}', "dimensions"),
        (embeddings.decode, '{"model": "m", "input": [1, %s]}', "input[1]"),
        (
            open_inference.decode,
            '{"inputs": [{"name": "x", "shape": [2], "datatype": "INT64", "data": [1.0, %s]}]}',
            "data[1]",
        ),
        (
            open_inference.decode,
            '{"inputs": [{"name": "x", "shape": [%s], "datatype": "INT64", "data": [1]}]}',
            "shape[0]",
        ),
    ):
        said = message(decode, body % value)
        assert where in said
        assert "expected int" in said


def test_a_float_stays_one_where_one_is_meant() -> None:
    tensor = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1.0, -0.0]}
    (found,) = open_inference.decode(json.dumps({"inputs": [tensor]}).encode()).tensors
    assert str(found.data[1]) == "-0.0"
