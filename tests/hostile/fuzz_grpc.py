"""`python tests/hostile/fuzz_grpc.py N`: N gRPC calls whose messages, frames, metadata and chunks
were valid before they were mutated; what each ends in, counted.

Calls go to the gateway as HAProxy would hand them on. A call may end in any status but UNKNOWN and
INTERNAL; a message of a stream in its answer or its error; nothing may be under way or held behind
it. The same seed draws the same cases; `--only KIND NUMBER` draws one again.
"""

from __future__ import annotations

import asyncio
import gzip
import random
import shutil
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "deployments"), str(Path(__file__).parents[2])]
sys.path.insert(0, str(Path(__file__).parent))

import fuzzing  # noqa: E402
from fuzzing import LIMITS, MODELS, Broken  # noqa: E402
from fuzzing import mutated as changed  # noqa: E402
from generating import Played, add  # noqa: E402
from in_process import Stand  # noqa: E402

from deployments.contract.channel.frames import Buffer, Kind  # noqa: E402
from deployments.contract.channel.stream_messages import StreamEnd  # noqa: E402
from deployments.gateway.grpc import frames, messages  # noqa: E402
from tests.deployments.conftest import described  # noqa: E402

_SERVICE = f"/{messages.INFERENCE}/"
_PAGES = [
    "ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelConfig",
    "ModelStatistics", "RepositoryIndex", "TraceSetting", "RepositoryModelLoad", "", "x/y",
]  # fmt: skip
_METADATA = [
    (b"grpc-timeout", [b"1S", b"100m", b"0m", b"1", b"99999999H", b"-1S", b""]),
    (b"grpc-encoding", [b"gzip", b"deflate", b"identity", b"snappy", b""]),
    (b"x-timeout-ms", [b"5", b"-1", b"nan", b"1e400"]),
    (b"x-priority", [b"bulk", b"none"]),
    (b"x-session-id", [b"a", b"", b"\xff"]),
    (b"content-type", [b"application/grpc", b"application/json", b""]),
    (b"x-idempotent", [b"false", b"maybe"]),
    (b"authorization", [b"Bearer x"]),
]
_WRONG = {b"2", b"13"}
_CHANGED = 0.3  # of what is drawn
_ODD = [0, 1, -1, 2**31 - 1, 2**31, 2**63 - 1, -(2**63)]


class Completing(Played):
    """Engines that complete each prompt, or refuse it, or answer what is no completion."""

    def send(self, replica_id: str, kind: Kind, lease_id: int, body: Sequence[Buffer] = ()) -> bool:
        sent = super().send(replica_id, kind, lease_id, body)
        call = self.engine(replica_id).calls.get(lease_id) if kind is Kind.BEGIN else None
        if call is None:
            return sent
        way, choice = lease_id % 7, b'{"choices": [{"index": 0, "text": "x"}]}'
        if way == 0:
            choice = b'{"choices": 3}'
        if b'"stream": true' in call.body:
            self.say(lease_id, b"data: %b\n\n" % choice, tokens=(1, 0, 1))
            choice = b"data: [DONE]\n\n"
        self.say(lease_id, choice, tokens=(1, 0, 2), end=StreamEnd.DONE)
        return sent


class Kinds:
    """Each draws one case of `rng`, and says how it ended. Raises Broken."""

    def __init__(self, stand: Stand) -> None:
        self.stand = stand
        self.odd: list[str] = []
        self.all: dict[str, Callable[[random.Random], Awaitable[str]]] = {
            "infer": self.infer, "text": self.text, "stream": self.stream, "page": self.page,
            "health": self.health, "reflection": self.reflection,
        }  # fmt: skip

    async def infer(self, rng: random.Random) -> str:
        return await self._call(rng, _SERVICE + "ModelInfer", [_request(rng)])

    async def text(self, rng: random.Random) -> str:
        return await self._call(rng, _SERVICE + "ModelInfer", [_prompt(rng)])

    async def stream(self, rng: random.Random) -> str:
        drawn = [rng.choice([_request, _prompt])(rng) for _ in range(rng.randint(0, 6))]
        return await self._call(rng, _SERVICE + "ModelStreamInfer", drawn)

    async def page(self, rng: random.Random) -> str:
        name = rng.choice(["device", "chat", "", "no such", "a/b", "\u00e9", "x" * 300])
        asked = messages.message("inference.ModelReadyRequest")(name=name, version=rng.choice("1 "))
        path = _SERVICE + rng.choice(_PAGES)
        return await self._call(rng, path, [mutated(rng, asked.SerializeToString())])

    async def health(self, rng: random.Random) -> str:
        asked = messages.message("grpc.health.v1.HealthCheckRequest")(
            service=rng.choice(["", "device", messages.INFERENCE, "nobody"])
        )
        path = f"/{messages.HEALTH}/Check"
        return await self._call(rng, path, [mutated(rng, asked.SerializeToString())])

    async def reflection(self, rng: random.Random) -> str:
        kind = messages.message("grpc.reflection.v1.ServerReflectionRequest")
        drawn = [
            mutated(rng, kind(**{field: value}).SerializeToString())
            for field, value in rng.choices(
                [("list_services", "*"), ("file_containing_symbol", "inference.ModelInferRequest"),
                 ("file_by_filename", "../x"), ("all_extension_numbers_of_type", "a")], k=3,
            )
        ]  # fmt: skip
        return await self._call(
            rng, f"/{rng.choice(messages.REFLECTION)}/ServerReflectionInfo", drawn
        )

    async def _call(self, rng: random.Random, path: str, drawn: list[bytes]) -> str:
        headers = {b"content-type": b"application/grpc", b"transfer-encoding": b"chunked"}
        for name, values in rng.sample(_METADATA, rng.choice([0] * 6 + [1, 2])):
            headers[name] = rng.choice(values)
        body = b"".join(_framed(rng, headers, each) for each in drawn)
        if rng.random() < 0.3:
            body = mutated(rng, body)
        status = await self._answered(path, list(headers.items()), _chunks(rng, body))
        if status in _WRONG:
            raise Broken(f"status {status.decode()} of {path} {headers} {body!r}")
        if self.stand.app.under_way:
            raise Broken(f"{self.stand.app.under_way} under way behind {path} {body!r}")
        return status.decode()

    async def _answered(
        self, path: str, headers: list[tuple[bytes, bytes]], chunks: list[bytes]
    ) -> bytes:
        sent: list[Any] = []
        never = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if not chunks:
                await never.wait()
            part = chunks.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(chunks)}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "raw_path": path.encode(), "headers": headers}
        async with asyncio.timeout(30):
            await self.stand.app(scope, receive, send)
        start, last = sent[0], sent[-1]
        if start["status"] != 200:
            raise Broken(f"HTTP {start['status']} of {path} {headers}")
        named = dict([*start["headers"], *last.get("headers", ())])
        if b"grpc-status" not in named:
            raise Broken(f"no status of {path} {headers}: {sent}")
        return named[b"grpc-status"]


def _request(rng: random.Random) -> bytes:
    """A `ModelInferRequest`, some of whose values are wrong, serialised and mutated."""
    made = messages.ModelInferRequest(
        model_name=rng.choice(["device"] * 8 + ["", "nobody", "chat"]),
        model_version=rng.choice([""] * 9 + ["1", "\u00e9"]),
        id=rng.choice(["", "a"]),
    )
    for _ in range(rng.choice([1] * 12 + [0, 2])):
        entry = made.inputs.add(
            name=rng.choice(["ids"] * 9 + ["x"]),
            datatype=rng.choice(["INT64"] * 9 + ["FP16", "BYTES", "BOOL", "", "int"]),
        )
        entry.shape.extend(rng.choice([[1, 3]] * 9 + [[], [3], [1, rng.choice(_ODD)]]))
        if rng.random() < 0.5:
            made.raw_input_contents.append(rng.randbytes(rng.choice([24, 24, 24, 0, 25])))
        else:
            entry.contents.int64_contents.extend(rng.choice([[1, 2, 3]] * 4 + [[], _ODD[:3]]))
        if rng.random() < 0.1:
            entry.parameters[
                rng.choice(["shared_memory_region", "binary_data_size", ""])
            ].int64_param = 3
    if rng.random() < 0.1:
        made.parameters[rng.choice(["timeout", "sequence_id"])].int64_param = rng.choice(_ODD)
    if rng.random() < 0.2:
        made.outputs.add(name=rng.choice(["sum", "x"]))
    return mutated(rng, made.SerializeToString())


def _prompt(rng: random.Random) -> bytes:
    made = messages.ModelInferRequest(model_name="chat")
    text = made.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    text.contents.bytes_contents.append(rng.choice([b"hello", b"", b"\xff", b"a" * 500]))
    if rng.random() < 0.5:
        flag = made.inputs.add(name="stream", datatype="BOOL", shape=[1])
        flag.contents.bool_contents.append(rng.random() < 0.5)
    if rng.random() < 0.5:
        sampling = made.inputs.add(name="sampling_parameters", datatype="BYTES", shape=[1])
        sampling.contents.bytes_contents.append(
            mutated(rng, rng.choice([b'{"max_tokens": 5}', b'{"n": 2}', b"[]", b'{"prompt": "x"}']))
        )
    return mutated(rng, made.SerializeToString())


def _framed(rng: random.Random, headers: dict[bytes, bytes], message: bytes) -> bytes:
    way = rng.random()
    if way < 0.1:
        pack = rng.choice([gzip.compress, zlib.compress])
        headers.setdefault(b"grpc-encoding", b"gzip" if pack is gzip.compress else b"deflate")
        message = mutated(rng, pack(message * rng.choice([1, 1, 3000])))
        return frames.prefix(len(message), compressed=True) + message
    size = len(message) if way < 0.95 else rng.choice([0, len(message) + 1, 2**32 - 1])
    return frames.prefix(size) + message


def _chunks(rng: random.Random, body: bytes) -> list[bytes]:
    cuts = sorted(rng.randint(0, len(body)) for _ in range(rng.choice([0, 0, 1, 3, 8])))
    return [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]


def mutated(rng: random.Random, data: bytes) -> bytes:
    return changed(rng, data) if rng.random() < _CHANGED else data


# ---- the run ------------------------------------------------------------------------------------


@contextmanager
def _kinds() -> Iterator[Kinds]:
    folder = Path(tempfile.mkdtemp(prefix="hostile-"))
    gateway = {"limits": LIMITS, "grpc": {"max_message_bytes": 65_536}}
    stand = Stand(MODELS, folder, gateway=gateway)
    add(stand, described, engines=Completing())
    try:
        yield Kinds(stand)
    finally:
        stand.close()
        shutil.rmtree(folder)


async def run(count: int, say: Callable[[str], None] = lambda _: None) -> Counter[str]:
    return await fuzzing.run(count, say, _kinds)


if __name__ == "__main__":
    fuzzing.main(__doc__, _kinds)
