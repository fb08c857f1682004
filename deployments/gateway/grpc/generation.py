"""Models that generate, over Open Inference: Triton's tensors of text to completions, and back.

Inputs as those of Triton's vLLM backend: `text_input`, `stream`, `sampling_parameters` (a JSON
object of the fields that `/v1/completions` takes; without it, the request's parameters are it) and
`exclude_input_in_output` (a whole text begins with its prompt unless this is true). The output is
`text_output`, one element for each sequence; of a stream one message for each piece, and the last
says that it is. Everything else about them is as over HTTP.
Source: triton-inference-server/vllm_backend, README and model.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from deployments.contract.description import is_version
from deployments.contract.errors import BadRequest, NotFound, RowFailed
from deployments.gateway.grpc.messages import ModelInferResponse
from deployments.gateway.http.protocols import openai_generation
from deployments.gateway.http.protocols.openai_generation import GenerationCall
from deployments.gateway.http.protocols.tensors import InferCall, Tensor

INPUTS = {
    "text_input": ("BYTES", "STRING"),
    "stream": ("BOOL", "BOOL"),
    "sampling_parameters": ("BYTES", "STRING"),
    "exclude_input_in_output": ("BOOL", "BOOL"),
}
"""By name: the datatype, as metadata and as a configuration call it."""
OUTPUT = "text_output"
EMPTY_FINAL = "triton_enable_empty_final_response"
FINAL = "triton_final_response"
_EVENT_END = b"\n\n"
_DATA = b"data: "
_DONE = b"[DONE]"
_OWN_FIELDS = ("model", "prompt", "stream", "stream_options", "echo")


class _Choice(msgspec.Struct):
    text: str = ""
    index: int = 0
    finish_reason: str | None = None


class _Error(msgspec.Struct):
    message: str = ""


class _Completion(msgspec.Struct):
    choices: list[_Choice] = []
    error: _Error | None = None


_completion = msgspec.json.Decoder(_Completion)
_ADAPTER = "lora_name"
# Parameters that say something of the call, not of the text.
_OF_THE_CALL = ("triton_", "sequence_", "timeout", "priority", "headers", "binary_data")
_NUMBERS = frozenset(
    {"n", "best_of", "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed",
     "logprobs", "prompt_logprobs", "presence_penalty", "frequency_penalty", "repetition_penalty",
     "length_penalty", "truncate_prompt_tokens"}
)  # fmt: skip
_object = msgspec.json.Decoder(dict[str, Any])
_numbers = msgspec.json.Decoder(int | float)


class TextAnswer:
    """What is kept of one call until it is answered, and how the engine's answers become
    messages."""

    def __init__(self, call: InferCall, version: str, streams: bool, sequences: int) -> None:
        self._model, self._version, self._id = call.model, version, call.id or ""
        self._unfinished = sequences
        self.streams = streams
        self.ends_empty = call.parameters.get(EMPTY_FINAL) is True
        self._rest = b""

    def whole(self, completion: bytes) -> bytes:
        """A completion as a ModelInferResponse, serialised. Raises RowFailed."""
        try:
            choices = _completion.decode(completion).choices
        except msgspec.DecodeError:
            raise RowFailed("the engine's answer is no completion") from None
        texts = [each.text for each in sorted(choices, key=lambda each: each.index)]
        return self._response(texts, final=None)

    def pieces(self, data: bytes) -> Iterator[tuple[bytes, str]]:
        """Of server-sent events: each piece as a ModelInferResponse, or the error that ends it."""
        *events, self._rest = (self._rest + data).split(_EVENT_END)
        for event in events:
            said = event.removeprefix(_DATA)
            if said == _DONE or not event.startswith(_DATA):
                continue
            try:
                found = _completion.decode(said)
            except msgspec.DecodeError:
                yield b"", "the engine's answer is no completion"
                continue
            if found.error is not None:
                yield b"", found.error.message
            for choice in found.choices:
                self._unfinished -= choice.finish_reason is not None
                ends = self._unfinished <= 0 and not self.ends_empty
                if choice.text or ends:
                    yield self._response([choice.text], final=ends), ""

    def last(self) -> bytes:
        """The empty message that ends a stream, where it was asked for."""
        return self._response(None, final=True)

    def _response(self, texts: list[str] | None, final: bool | None) -> bytes:
        response = ModelInferResponse(
            model_name=self._model, model_version=self._version, id=self._id
        )
        if final is not None:
            response.parameters[FINAL].bool_param = final
        if texts is not None:
            output = response.outputs.add(name=OUTPUT, datatype="BYTES")
            output.shape.append(len(texts))
            encoded = [text.encode() for text in texts]
            parts = [len(text).to_bytes(4, "little") + text for text in encoded]
            response.raw_output_contents.append(b"".join(parts))
        serialised: bytes = response.SerializeToString()
        return serialised


def completion_of(
    call: InferCall, version: str, *, may_stream: bool
) -> tuple[GenerationCall, TextAnswer]:
    """`version`: the model's; `may_stream`: the answer may have several messages. Raises BadRequest
    and NotFound."""
    if call.version is not None and not is_version(call.version, version):
        raise NotFound(
            f"model {call.model} has no version '{call.version}'; the live version is {version}",
            param="model",
        )
    if call.external:
        raise BadRequest("tensors of a model that generates are in the request and its answer")
    given = {tensor.name: _value(tensor) for tensor in call.tensors}
    if "text_input" not in given:
        raise BadRequest("the input text_input is missing", param="inputs")
    unknown = [each.name for each in call.outputs if each.name != OUTPUT]
    if unknown:
        raise BadRequest(f"Unknown output '{unknown[0]}'; '{call.model}' has {OUTPUT}.")
    streams = may_stream and given.get("stream", False)
    echo = not given.get("exclude_input_in_output", streams)
    if echo and streams:
        raise BadRequest("exclude_input_in_output must be true where the answer is streamed")
    sampling = _sampling(given.get("sampling_parameters", ""), call.parameters)
    adapter = sampling.pop(_ADAPTER, None)
    fields: dict[str, Any] = {
        "model": call.model if adapter is None else f"{call.model}:{adapter}",
        "prompt": given["text_input"],
        "stream": streams,
        **({"echo": True} if echo else {}),
    }
    asked = openai_generation.decode_completion(json.dumps({**fields, **sampling}).encode())
    return asked, TextAnswer(call, version, streams, asked.sequences)


def _sampling(text: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Numbers may be texts, as Triton's examples send them. Raises BadRequest."""
    if text:
        try:
            found = _object.decode(text)
        except msgspec.DecodeError as why:
            raise BadRequest(f"sampling_parameters must be a JSON object: {why}") from None
    else:
        found = {k: v for k, v in parameters.items() if not k.startswith(_OF_THE_CALL)}
    for name in _OWN_FIELDS:
        if name in found:
            raise BadRequest(f"sampling_parameters may not have {name}; it has an input of its own")
    return {name: _number(value) if name in _NUMBERS else value for name, value in found.items()}


def _number(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return _numbers.decode(value)
    except msgspec.DecodeError:
        return value


def _value(tensor: Tensor) -> Any:
    """The one element of an input. Raises BadRequest."""
    if tensor.name not in INPUTS:
        raise BadRequest(
            f"Unknown input '{tensor.name}'; a model that generates takes {', '.join(INPUTS)}.",
            param="inputs",
        )
    datatype = INPUTS[tensor.name][0]
    if tensor.datatype != datatype or tensor.data.size != 1:
        raise BadRequest(
            f"Input '{tensor.name}' is {tensor.datatype} of shape {list(tensor.data.shape)}; must "
            f"be {datatype} of shape [1]."
        )
    value = tensor.data.reshape(-1)[0]
    if datatype == "BOOL":
        return bool(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise BadRequest(f"Input '{tensor.name}' is no UTF-8.") from None
