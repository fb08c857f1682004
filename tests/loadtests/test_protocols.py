"""Do requests look as each protocol says, and is what answers say heard rightly?"""

import json
import struct

import pytest

from loadtests.client.http1 import Response
from loadtests.client.protocols import PROTOCOLS
from loadtests.client.protocols.malformed import with_malformed
from loadtests.client.protocols.open_inference import Inputs
from loadtests.client.protocols.openai import EventReader, TokenStream
from loadtests.client.protocols.types import Endpoint, WireError
from loadtests.traffic.plan import Planned
from loadtests.traffic.scenario_file import ScenarioErrors

URL = "http://server:80/base"


def place(**changed) -> Endpoint:
    return Endpoint(**{"url": URL, "model": "m"} | changed)


def parts(request: bytes):
    """(first line, headers, body), checked for its length."""
    head, _, body = request.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert int(headers["content-length"]) == len(body)
    return first, headers, body


def sent(protocol: str, planned: Planned, **changed):
    first, headers, body = parts(PROTOCOLS[protocol](place(**changed)).request(planned))
    return first, headers, json.loads(body)


def planned(*lengths: int, **more) -> Planned:
    return Planned(0.0, more.pop("tenant", "default"), lengths or (5,), **more)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 512])
def test_open_inference_sends_as_many_ids_and_never_the_same(length):
    wire = PROTOCOLS["oip"](place())
    bodies = []
    for _ in range(2):
        first, _, body = parts(wire.request(planned(length)))
        (tensor,) = json.loads(body)["inputs"]
        assert (tensor["shape"], len(tensor["data"])) == ([1, length], length)
        bodies.append(body)
    assert first == "POST /base/v2/models/m/infer HTTP/1.1"
    assert length < 3 or bodies[0] != bodies[1]


def test_rows_of_one_request_are_padded_with_a_mask_where_the_model_has_one():
    wire = PROTOCOLS["oip"](place())
    wire._inputs = Inputs("input_ids", "INT32", ("attention_mask",), ("token_type_ids",))
    found = {t["name"]: t for t in json.loads(parts(wire.request(planned(2, 4)))[2])["inputs"]}
    assert found["input_ids"]["shape"] == [2, 4]
    assert found["input_ids"]["data"][2:4] == [0, 0]
    assert found["attention_mask"]["data"] == [1, 1, 0, 0, 1, 1, 1, 1]
    assert found["token_type_ids"]["data"] == [0] * 8


@pytest.mark.parametrize("length", [1, 3, 4, 100])
def test_binary_tensors_follow_their_header(length):
    wire = PROTOCOLS["oip-binary"](place())
    bodies = [parts(wire.request(planned(length))) for _ in range(2)]
    for _, headers, body in bodies:
        end = int(headers["inference-header-content-length"])
        (tensor,) = json.loads(body[:end])["inputs"]
        assert tensor["parameters"]["binary_data_size"] == len(body) - end == 8 * length
        assert all(0 < each < 30_000 for each in struct.unpack(f"<{length}q", body[end:]))
    assert length < 3 or bodies[0][2] != bodies[1][2]


@pytest.mark.parametrize("protocol", ["oip", "oip-binary"])
def test_models_that_take_texts_get_texts(protocol):
    wire = PROTOCOLS[protocol](place())
    wire._inputs = Inputs("text", "BYTES")
    _, headers, body = parts(wire.request(planned(6, 3)))
    end = int(headers.get("inference-header-content-length", len(body)))
    (tensor,) = json.loads(body[:end])["inputs"]
    assert tensor["shape"] == [2]
    if protocol == "oip":
        assert [len(text.split()) for text in tensor["data"]] == [4, 1]
    else:
        (size,) = struct.unpack("<I", body[end : end + 4])
        assert len(body[end + 4 : end + 4 + size].split()) == 4


def test_inputs_are_read_from_the_models_page():
    ids = {"name": "input_ids", "datatype": "INT64"}
    mask = {"name": "attention_mask", "datatype": "INT64"}
    assert Inputs.of({"inputs": [mask, ids]}) == Inputs("input_ids", "INT64", ("attention_mask",))
    with pytest.raises(WireError, match="takes image FP32; only ids"):
        Inputs.of({"inputs": [{"name": "image", "datatype": "FP32"}]})
    with pytest.raises(WireError, match="lists no inputs"):
        Inputs.of({})


def test_embeddings_send_texts_of_as_many_tokens():
    first, _, body = sent("openai-embeddings", planned(10))
    assert first == "POST /base/v1/embeddings HTTP/1.1"
    assert body["model"] == "m"
    assert len(body["input"].split()) == 8
    assert len(sent("openai-embeddings", planned(10, 3))[2]["input"]) == 2


def test_generations_ask_for_tokens_and_are_streamed_unless_told_otherwise():
    _, _, body = sent("openai-completions", planned(10, output=7), extra={"ignore_eos": True})
    assert (body["max_tokens"], body["stream"], body["ignore_eos"]) == (7, True, True)
    _, _, body = sent("openai-chat", planned(10), stream=False)
    assert "stream" not in body
    assert body["messages"][0]["role"] == "user"


def test_headers_say_who_calls_and_how():
    given = {"priorities": {"a": "bulk"}, "budgets_ms": {"a": 250.4}, "headers": {"X-Own": "1"}}
    _, headers, _ = sent("oip", planned(tenant="a", session="a-1"), **given)
    told = ("x-tenant", "x-priority", "x-timeout-ms", "x-session-id", "x-own")
    assert [headers[name] for name in told] == ["a", "bulk", "250", "a-1", "1"]
    _, headers, _ = sent("oip", planned(tenant="a"), keys={"a": "secret"})
    assert headers["authorization"] == "Bearer secret"
    assert "x-tenant" not in headers


def test_malformed_is_sent_where_it_is_planned_and_nowhere_else():
    wire = with_malformed(PROTOCOLS["oip"](place()))
    good = parts(wire.request(planned(5)))
    assert json.loads(good[2])
    malformed = {wire.request(planned(5, malformed=True)) for _ in range(100)}
    assert len(malformed) > 5
    assert any(b"/v2/models/no-such-model" in each for each in malformed)


# ---- custom -------------------------------------------------------------------------------------


def adapter(tmp_path, text: str) -> str:
    (tmp_path / "adapter.yaml").write_text(text)
    return str(tmp_path / "adapter.yaml")


ADAPTER = """
path: /models/{model}/generate
headers: {x-more: "yes"}
body: {inputs: "{text}", n: "{length}", ids: "{ids}", say: "{output} of {tenant}"}
ok: {field: result.0.status, equals: done}
tokens_out: result.0.tokens
"""


def test_adapter_fills_in_what_is_planned(tmp_path):
    first, headers, body = sent(
        "custom", planned(4, tenant="a", output=9), adapter=adapter(tmp_path, ADAPTER)
    )
    assert (first, headers["x-more"]) == ("POST /base/models/m/generate HTTP/1.1", "yes")
    assert (body["n"], len(body["ids"]), body["say"]) == (4, 4, "9 of a")


@pytest.mark.parametrize(
    ("body", "trouble", "tokens"),
    [
        (b'{"result": [{"status": "done", "tokens": 5}]}', "", 5),
        (b'{"result": [{"status": "late"}]}', "result.0.status differs", 0),
        (b'{"result": {}}', "result.0.status differs", 0),
        (b"no", "bad answer", 0),
    ],
)
def test_adapter_looks_into_the_answer(tmp_path, body, trouble, tokens):
    listener = PROTOCOLS["custom"](place(adapter=adapter(tmp_path, ADAPTER))).listener(planned())
    listener.ended(Response(200, body, True))
    assert (listener.heard.trouble, listener.heard.tokens_out) == (trouble, tokens)


def test_adapter_that_is_wrong_says_where(tmp_path):
    with pytest.raises(ScenarioErrors, match=r"adapter\.yaml:2: bod: unknown; did you mean body"):
        PROTOCOLS["custom"](place(adapter=adapter(tmp_path, "path: /x\nbod: {}\n")))


# ---- streams -------------------------------------------------------------------------------------


def chunk(text: str, **more) -> bytes:
    choice = {"delta": {"content": text}, "finish_reason": None}
    return b"data: " + json.dumps({"choices": [choice], **more}).encode() + b"\n\n"


USAGE = b'data: {"choices": [], "usage": {"completion_tokens": 12}}\n\n'
DONE = b"data: [DONE]\n\n"


def heard(*pieces: bytes):
    stream = TokenStream(streams=True)
    for at_s, piece in enumerate(pieces, 1):
        stream.piece(piece, float(at_s))
    stream.ended(Response(200, b"", True))
    return stream.heard


def test_events_are_read_however_they_are_cut():
    text = b": comment\n\nevent: x\ndata: a\n\ndata: b\r\ndata:c\r\n\r\n"
    for at in range(len(text)):
        reader = EventReader()
        assert reader.feed(text[:at]) + reader.feed(text[at:]) == [b"a", b"b\nc"]


def test_stream_tells_first_token_and_time_a_token():
    said = heard(chunk(""), chunk("a"), chunk("b"), chunk("c"), DONE)
    assert (said.first_s, said.last_s, said.tokens_out, said.trouble) == (2.0, 4.0, 3, "")
    assert said.per_token_s == 1.0


def test_server_that_counts_its_tokens_is_believed():
    said = heard(chunk("ab"), chunk("cd"), USAGE, DONE)
    assert (said.tokens_out, said.per_token_s) == (12, pytest.approx(1 / 11))


@pytest.mark.parametrize(
    ("pieces", "trouble"),
    [
        ((chunk("a"),), "cut off"),
        ((chunk("a"), b"data: {\n\n", DONE), "bad event"),
        ((b'data: {"choices": [7]}\n\n', DONE), "bad event"),
        ((b'data: {"error": "out of memory"}\n\n', DONE), "error event"),
    ],
)
def test_stream_that_breaks_is_no_answer(pieces, trouble):
    assert heard(*pieces).trouble == trouble


def test_generation_that_is_not_streamed_counts_its_tokens():
    stream = TokenStream(streams=False)
    stream.ended(Response(200, b'{"usage": {"completion_tokens": 3}}', True))
    assert (stream.heard.tokens_out, stream.heard.first_s) == (3, None)


@pytest.mark.parametrize("protocol", ["oip", "oip-binary", "openai-embeddings", "openai-chat"])
def test_processes_and_runs_send_other_rows(protocol):
    def rows(seed: str) -> list[bytes]:
        wire = PROTOCOLS[protocol](place())
        wire.reseed(seed)
        return [wire.request(planned(40)) for _ in range(20)]

    assert rows("1 0") == rows("1 0")
    assert not set(rows("1 0")) & (set(rows("1 1")) | set(rows("2 0")))
