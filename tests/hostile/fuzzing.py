"""`python tests/hostile/fuzzing.py N`: N requests, tensors, chats, images, regions, settings and
archives that were valid before they were mutated; what each may end in, counted.

A request may end in any answer but 500, a settings file in its mistakes, an archive in its error.
The same seed draws the same cases: a failure names its kind and number, and is drawn again by
`--only KIND NUMBER`. An answer of 5xx other than "come again later" (503) is printed, with what was
asked and how long it took. Memory is looked at after each tenth.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import gzip
import io
import json
import logging
import os
import random
import shutil
import sys
import tarfile
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

sys.path[:0] = [str(Path(__file__).parents[1] / "deployments"), str(Path(__file__).parents[2])]

import image_models  # noqa: E402 - its folder is put on the path above
from generating import Played, add  # noqa: E402
from in_process import Stand, ask  # noqa: E402

from deployments.contract.channel.frames import Buffer, Kind  # noqa: E402
from deployments.contract.channel.stream_messages import StreamEnd  # noqa: E402
from deployments.gateway.http.exchange import ARROW_STREAM  # noqa: E402
from deployments.gateway.http.protocols.arrow_answer import column_of, write  # noqa: E402
from deployments.gateway.http.protocols.tensors import RowTensor  # noqa: E402
from deployments.replica.artifacts import archive  # noqa: E402
from deployments.settings.plain import SettingsErrors  # noqa: E402
from deployments.settings.remote_source import SourceError  # noqa: E402
from deployments.settings_files.load import load  # noqa: E402
from tests.deployments.conftest import described  # noqa: E402

SEED = 17
MODELS = {"device": {"runtime": "synthetic", "options": {"base_ms": 0}, "lengths": {"max": 64}}}
LIMITS = {"max_body_bytes": 65_536, "body_timeout_s": 0.01}
_SAID_EVERY = 2000
_AGAIN_LATER = 503
_LOOKS = 10
MAX_GROWN_MIB = 64
_MIB = 1024 * 1024
_ODD: list[object] = [
    None, True, -1, 0, 1, 2**31, 2**63, -(2**63), 1e308, 1e-320, "", "\x00", "\ud7ff", "%s%n",
    "../../x", "\r\n", [], {}, [[]], {"": {}}, "NaN", "9" * 400, [0] * 300,
]  # fmt: skip
_BYTES = [b"\x00", b"\xff", b"\r\n", b"{", b"}", b"[", b"]", b'"', b"1e999", b"-", b"\\u", b","]
_HEADERS = [
    b"content-length", b"content-encoding", b"content-type", b"inference-header-content-length",
    b"x-timeout-ms", b"x-priority", b"x-tenant", b"authorization", b"traceparent", b"host",
    b"x-request-id", b"x-session-id", b"x-idempotent", b"accept", b"origin", b"transfer-encoding",
]  # fmt: skip
_VALUES = [
    b"", b"0", b"-1", b"1e309", b"9" * 50, b"gzip", b"bulk", b"default", b"Bearer x", b"\xff",
    b"chunked", b"00-" + b"0" * 32 + b"-" + b"1" * 16 + b"-01", b"localhost", b"a/b", b"true",
]  # fmt: skip
_PATHS = [
    "/v2/models/device/infer", "/v2/models/device/versions/1/infer", "/v2/models/device",
    "/v1/models/device:predict", "/v1/models/device:classify", "/v1/embeddings", "/v1/completions",
    "/v1/chat/completions", "/v1/models/tiny:classify", "/v1/models", "/v2", "/v2/repository/index",
    "/admin/status", "/admin/controllers", "/docs", "/nowhere", "/v2/models//infer",
    "/v2/models/\u00e9/infer", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses",
    "/tokenize", "/detokenize",
]  # fmt: skip
_TENSOR = {"name": "ids", "datatype": "INT64", "shape": [1, 3], "data": [1, 2, 3]}
_CHAT = {
    "model": "chat", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5,
    "temperature": 0.5, "n": 1, "stop": ["x"], "stream": False, "logit_bias": {"1": 2},
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}},
}  # fmt: skip
_OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/messages", {
        "model": "chat", "max_tokens": 5, "system": [{"type": "text", "text": "a"}],
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "hello"},
                {"type": "image", "source": {"type": "url", "url": "data:,a"}}]},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "1",
                 "content": [{"type": "text", "text": "a"}]}]},
        ],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "metadata": {"user_id": "u"}, "output_config": {"format": {"type": "json_schema"}}}),
    ("/v1/messages/count_tokens", {
        "model": "chat", "messages": [{"role": "user", "content": "hello"}], "system": "a"}),
    ("/v1/responses", {
        "model": "chat", "max_output_tokens": 5, "instructions": "a", "store": False,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"},
                                         {"type": "input_image", "image_url": "data:,a"}]},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "a"}],
        "tools": [{"type": "function", "name": "f", "parameters": {}}], "top_logprobs": 1,
        "include": ["message.output_text.logprobs"], "text": {"format": {"type": "text"}}}),
    ("/tokenize", {"model": "chat", "prompt": "hello"}),
    ("/tokenize", {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}),
    ("/detokenize", {"model": "chat", "tokens": [1, 2, 3]}),
]  # fmt: skip
_COMPLETION = {"model": "chat", "prompt": "hello", "max_tokens": 5, "stop": "x", "echo": False}
_KEYS = [
    f"hr-fuzz-{os.getpid()}-default-a", f"hr-fuzz-{os.getpid()}-default-b", "plasma", "../x", "",
]  # fmt: skip
_REGIONS = ["r", "s", "%2e%2e", "a%2Fb"]
_EXTERNAL = {
    "shared_memory": {"prefix": f"hr-fuzz-{os.getpid()}-{{tenant}}-"},
    "references": {"hosts": ["127.0.0.1:9", "none.invalid:443"], "max_bytes": 1024},
}
_URLS = [
    "https://127.0.0.1:9/a", "https://127.0.0.1:9/a?b=c", "https://169.254.169.254/", "s3://b/k",
    "data:image/png;base64,AAECAwQFBgcICQoLDA0ODxAREhMUFRYX", "data:,abc", "https://[::1]:9/",
]  # fmt: skip
_SETTINGS = """\
models:
  m:
    runtime: synthetic
    slo: {latency_ms: 100}
    lengths: {max: 512, buckets: auto}
    batch: {max_size: 32}
    replicas: {min: 1, max: 2}
tenants:
  acme: {weight: 3, priority: interactive}
gateway: {port: 8000, limits: {max_requests: 10}, trusted_proxies: [10.0.0.0/8]}
"""


class Broken(AssertionError):
    """A case ended as none may."""


class Answering(Played):
    """Engines that answer each prompt with a piece and an end."""

    def send(self, replica_id: str, kind: Kind, lease_id: int, body: Sequence[Buffer] = ()) -> bool:
        sent = super().send(replica_id, kind, lease_id, body)
        if kind is Kind.BEGIN and lease_id in self.engine(replica_id).calls:
            self.say(lease_id, b"data: {}\n\n", tokens=(1, 0, 1))
            self.say(lease_id, b"data: [DONE]\n\n", tokens=(1, 0, 2), end=StreamEnd.DONE)
        return sent


# ---- what is drawn ------------------------------------------------------------------------------


def mutated(rng: random.Random, data: bytes) -> bytes:
    for _ in range(rng.choice([0, 0, 0, 1, 1, 2, 4])):
        at, end = sorted((rng.randint(0, len(data)), rng.randint(0, len(data))))
        end = min(end, at + 40)
        way = rng.randrange(4)
        if way == 0:
            data = data[:at] + data[end:]
        elif way == 1:
            data = data[:at] + rng.choice(_BYTES) + data[at:]
        elif way == 2:
            data = data[:at] + data[at:end] * rng.randint(2, 30) + data[end:]
        elif data:
            at %= len(data)
            data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    return data


def _changed(rng: random.Random, value: object, depth: int = 0) -> object:
    """JSON with some of its values others."""
    if rng.random() < 0.04:
        return rng.choice(_ODD)
    if isinstance(value, dict) and depth < 6:
        return {k: _changed(rng, v, depth + 1) for k, v in value.items() if rng.random() > 0.02}
    if isinstance(value, list) and depth < 6:
        return [_changed(rng, each, depth + 1) for each in value]
    return value


def _headers(rng: random.Random) -> list[tuple[bytes, bytes]]:
    return [(rng.choice(_HEADERS), rng.choice(_VALUES)) for _ in range(rng.randint(0, 3))]


# ---- the kinds ----------------------------------------------------------------------------------


class Kinds:
    """Each draws one case of `rng`, and says how it ended. Raises Broken."""

    def __init__(self, stand: Stand, folder: Path) -> None:
        self.stand, self._folder = stand, folder
        drawn = image_models.picture(9, 7)
        self._files = image_models.png(drawn), image_models.jpeg(drawn)
        self.odd: list[str] = []  # answers of 5xx that are allowed, and seldom
        self.all: dict[str, Callable[[random.Random], Awaitable[str]]] = {
            "http": self.http, "tensors": self.tensors, "chat": self.chat,
            "completion": self.completion, "image": self.image, "settings": self.settings,
            "archive": self.archive, "arrow": self.arrow, "external": self.external,
            "other": self.other,
        }  # fmt: skip

    async def http(self, rng: random.Random) -> str:
        body = mutated(rng, json.dumps(_changed(rng, {"inputs": [_TENSOR]})).encode())
        if rng.random() < 0.2:
            body = mutated(rng, gzip.compress(body))
        method = rng.choice(["POST", "POST", "POST", "GET", "PUT", "HEAD", "DELETE", "X"])
        return await self._ask(method, rng.choice(_PATHS), _headers(rng), body)

    async def tensors(self, rng: random.Random) -> str:
        """Binary: a JSON head, and raw numbers behind it."""
        raw = rng.randbytes(rng.choice([0, 24, 24, 24, 25]))
        tensor = {**_TENSOR, "parameters": {"binary_data_size": len(raw)}}
        del tensor["data"]
        head = json.dumps(_changed(rng, {"inputs": [tensor], "outputs": []})).encode()
        length = rng.choice([len(head), len(head), len(head), len(head) + 1, 0, 10**9])
        named = [(b"inference-header-content-length", b"%d" % length)]
        return await self._ask("POST", _PATHS[0], named, mutated(rng, head) + raw)

    async def arrow(self, rng: random.Random) -> str:
        """A column of ragged rows; bytes of it are changed, added and left out."""
        rows = [np.arange(rng.randint(0, 4)) for _ in range(rng.randint(1, 3))]
        sent = RowTensor("ids", "INT64", rows, ())
        said = {"model": "device", "outputs": "[]", "id": "7"}
        stream = write([sent], [column_of(sent, ragged=True)], said, 64)
        named = [(b"content-type", ARROW_STREAM), *_headers(rng)]
        path = rng.choice([_PATHS[0], _PATHS[0], _PATHS[1], "/v1/embeddings"])
        return await self._ask("POST", path, named, mutated(rng, b"".join(stream.parts)))

    async def external(self, rng: random.Random) -> str:
        """Regions of shared memory, some too short or gone, and URLs of nobody; and tensors, media
        and documents that name them."""
        if rng.random() < 0.2:
            asked = _changed(rng, {"key": rng.choice(_KEYS), "byte_size": 48, "offset": 0})
            body = mutated(rng, json.dumps(asked).encode())
            action = rng.choice(["register"] * 4 + ["unregister", "status"])
            path = f"/v2/systemsharedmemory/region/{rng.choice(['r'] * 4 + _REGIONS)}/{action}"
            return await self._ask("GET" if action == "status" else "POST", path, (), body)
        _write_regions(rng)
        region = rng.choice(["r"] * 8 + _REGIONS)
        place = {"shared_memory_region": region, "shared_memory_byte_size": 24}
        place = rng.choice([place, place, {"url": rng.choice(_URLS)}])
        tensor = {**_TENSOR, "parameters": place}
        del tensor["data"]
        output = {"name": "sum", "parameters": {**place, "shared_memory_offset": 24}}
        media = {"type": "image_url", "image_url": {"url": rng.choice(_URLS)}}
        asked, path = rng.choice([
            ({"inputs": [tensor]}, _PATHS[0]),
            ({"inputs": [tensor], "outputs": [output]}, _PATHS[0]),
            ({**_CHAT, "messages": [{"role": "user", "content": [media]}]}, "/v1/chat/completions"),
            ({"instances": [{"url": rng.choice(_URLS)}]}, "/v1/models/tiny:classify"),
        ])  # fmt: skip
        body = mutated(rng, json.dumps(_changed(rng, asked)).encode())
        return await self._ask("POST", path, (), body)

    async def chat(self, rng: random.Random) -> str:
        asked = {**_CHAT, "stream": rng.random() < 0.5}
        body = mutated(rng, json.dumps(_changed(rng, asked)).encode())
        path = rng.choice(["/v1/chat/completions"] * 3 + _PATHS[5:8])
        return await self._ask("POST", path, _headers(rng), body)

    async def other(self, rng: random.Random) -> str:
        """The other ways to generate, and to count tokens."""
        path, asked = rng.choice(_OTHERS)
        asked = {**asked, "stream": rng.random() < 0.5}
        body = mutated(rng, json.dumps(_changed(rng, asked)).encode())
        return await self._ask("POST", path, _headers(rng), body)

    async def completion(self, rng: random.Random) -> str:
        prompt = rng.choice(["hello", ["a", "b"], [1, 2, 3], [[1], [2, 3]]])
        asked = {**_COMPLETION, "prompt": prompt, "stream": rng.random() < 0.5}
        body = mutated(rng, json.dumps(_changed(rng, asked)).encode())
        return await self._ask("POST", "/v1/completions", _headers(rng), body)

    async def image(self, rng: random.Random) -> str:
        """A file alone, or in JSON."""
        file = mutated(rng, rng.choice(self._files))
        kind = rng.choice([b"image/png", b"image/jpeg", b"application/octet-stream"])
        if rng.random() < 0.5:
            instance = {"b64": base64.b64encode(file).decode()}
            asked = _changed(rng, {"instances": [instance], "top_k": 2})
            file, kind = json.dumps(asked).encode(), b"application/json"
        named = [(b"content-type", kind), *_headers(rng)]
        return await self._ask("POST", "/v1/models/tiny:classify", named, file)

    async def _ask(
        self, method: str, path: str, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> str:
        began = time.monotonic()
        answer = await ask(self.stand.app, method, path, headers, body, pieces=True)
        said = f"{answer.status} to {method} {path} {headers} {body!r}"
        if answer.status == 500 or not 200 <= answer.status < 600:
            raise Broken(said)
        if answer.status > 500 and answer.status != _AGAIN_LATER:
            self.odd.append(f"{said} after {time.monotonic() - began:.3f} s: {answer.body!r}")
        return str(answer.status)

    async def settings(self, rng: random.Random) -> str:
        path = self._folder / "settings.yaml"
        path.write_bytes(mutated(rng, _SETTINGS.encode()))
        try:
            load(path)
        except SettingsErrors:
            return "mistakes"
        return "taken"

    async def archive(self, rng: random.Random) -> str:
        suffix = rng.choice([".zip", ".tar", ".tar.gz"])
        path, folder = self._folder / f"a{suffix}", self._folder / "unpacked"
        path.write_bytes(mutated(rng, _archive(rng, suffix)))
        try:
            archive.unpack(path, folder)
        except SourceError:
            return "refused"
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if (self._folder / "outside").exists() or (self._folder.parent / "outside").exists():
            raise Broken("a file was unpacked outside of its folder")
        return "unpacked"


def _write_regions(rng: random.Random) -> None:
    for key in _KEYS[:2]:
        Path("/dev/shm", key).write_bytes(bytes(rng.choice([48, 48, 48, 40, 0])))


def _archive(rng: random.Random, suffix: str) -> bytes:
    """Of a few files; some climb, some are links."""
    out = io.BytesIO()
    names = rng.sample(["a", "b", "d/c", "d/e", "../outside", "a/../../outside"], 3)
    if suffix == ".zip":
        with zipfile.ZipFile(out, "w") as packed:
            for name in names:
                packed.writestr(name, b"x" * 100)
        return out.getvalue()
    with tarfile.open(fileobj=out, mode="w:gz" if suffix.endswith("gz") else "w") as tar:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.type = rng.choice([tarfile.REGTYPE] * 8 + [tarfile.SYMTYPE, tarfile.LNKTYPE])
            entry.linkname = "../outside"
            entry.size = 100 if entry.type == tarfile.REGTYPE else 0
            tar.addfile(entry, io.BytesIO(b"x" * entry.size))
    return out.getvalue()


# ---- the run ------------------------------------------------------------------------------------


@contextmanager
def _kinds() -> Iterator[Kinds]:
    folder = Path(tempfile.mkdtemp(prefix="hostile-")) / "in"
    folder.mkdir()
    tiny = {
        "runtime": "onnxruntime", "task": "classify", "image": {"size": [16]},
        "source": str(image_models.write_model(folder / "tiny")),
    }  # fmt: skip
    stand = Stand({**MODELS, "tiny": tiny}, folder, gateway={"limits": LIMITS, **_EXTERNAL})
    add(stand, described, engines=Answering())
    try:
        yield Kinds(stand, folder)
    finally:
        stand.close()
        shutil.rmtree(folder.parent)
        for key in _KEYS[:2]:
            Path("/dev/shm", key).unlink(missing_ok=True)


Opened = Callable[[], AbstractContextManager[Any]]
"""Opens a stand, and its kinds of cases: `all` by name, `odd`, `stand`."""


async def run(
    count: int, say: Callable[[str], None] = lambda _: None, opened: Opened = _kinds
) -> Counter[str]:
    """How `count` cases ended, by kind. Raises Broken for one that ended as none may, and where
    memory grew by more than 64 MiB after the first fifth."""
    ends: Counter[str] = Counter()
    process, began = psutil.Process(), time.monotonic()
    resident: list[float] = []  # MiB after each tenth
    with opened() as kinds:
        names = list(kinds.all)
        for number in range(count):
            kind = names[number % len(names)]
            ends[f"{kind} {await _one(kinds, kind, number)}"] += 1
            if (number + 1) % max(1, count // _LOOKS) == 0:
                resident.append(process.memory_info().rss / _MIB)
            if number % _SAID_EVERY == _SAID_EVERY - 1:
                say(f"{number + 1} of {count}, {number / (time.monotonic() - began):.0f}/s")
                for channel in kinds.stand.channels.values():
                    _forget(channel)
        await kinds.stand.settled()
    for odd in kinds.odd:
        say(odd)
    say(f"MiB after each tenth: {', '.join(f'{mib:.1f}' for mib in resident)}")
    if (grown := resident[-1] - resident[1]) > MAX_GROWN_MIB:
        raise Broken(f"memory grew by {grown:.0f} MiB after the first fifth")
    return ends


def _forget(channel: object) -> None:
    """What the stand keeps of requests for tests to look at."""
    for kept in ("calls", "begun", "aborted"):
        getattr(channel, kept, []).clear()


async def _one(kinds: Any, kind: str, number: int) -> str:
    try:
        return await kinds.all[kind](random.Random(f"{SEED} {kind} {number}"))
    except Exception as fault:
        raise Broken(f"--only {kind} {number}: {type(fault).__name__}: {fault}") from fault


async def _again(kind: str, number: int, opened: Opened = _kinds) -> str:
    with opened() as kinds:
        return await _one(kinds, kind, number)


def main(about: str | None = __doc__, opened: Opened = _kinds) -> None:
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("count", type=int, nargs="?", default=5000)
    parser.add_argument("--only", nargs=2, metavar=("KIND", "NUMBER"))
    args = parser.parse_args()
    if args.only:
        print(asyncio.run(_again(args.only[0], int(args.only[1]), opened)))
        return
    logging.disable(logging.WARNING)  # a line for each refusal
    ends = asyncio.run(run(args.count, lambda said: print(said, flush=True), opened))
    for end, count in sorted(ends.items()):
        print(f"{count:9,}  {end}")


if __name__ == "__main__":
    main()
