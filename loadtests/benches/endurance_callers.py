"""All callers of the endurance bench, in a separate process.

In one process with the rest of the bench (which reads metrics and process tables and starts
commands) callers would be delayed, and the delay would count against the server. There are three
kinds: an open loop to the model that changes; an open loop of ragged requests, some of which
misbehave; and a closed loop of streams, whose callers partly read slowly or leave early. Each
answer is checked, and each request's outcome logged.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

from loadtests.benches import changing_model
from loadtests.benches.generation import punctual
from loadtests.benches.request_log import ANYBODY, LoggedRequest, RequestLog
from loadtests.benches.runner import say
from loadtests.benches.server import Settings
from loadtests.client.client_faults import ClientFaults, malformed_requests
from loadtests.client.connection import ClientConnection
from loadtests.client.http1 import Response, Target, render
from loadtests.client.load import Call, Load, LoadResult, OpenLoop, run
from loadtests.traffic.workload import infer_body, ragged_lengths, token_ids

RAGGED, WRITER = "ragged", "writer"
SEQUENCES = 8
RAGGED_SETTINGS: Settings = {
    "runtime": "synthetic",
    "slo": {"latency_ms": 3000},
    "lengths": {"max": 512, "buckets": "auto"},
    "batch": {"max_size": 16, "max_tokens": 2048},
    "replicas": {"count": 2},
    "options": {"base_ms": 40, "per_request_ms": 2, "per_token_us": 300},
}
WRITER_SETTINGS: Settings = {
    "runtime": "synthetic",
    "task": "generate",
    "slo": {"ttft_ms": 5000, "tpot_ms": 200},
    "lengths": {"max": 2048},
    "replicas": {"count": 2},
    "options": {"base_ms": 100, "max_sequences": SEQUENCES},
}
TENANTS = {"large": {"weight": 3}, "small": {"weight": 1}, "default": {"weight": 1}}
ASKING = ("large", "small")
ROWS, CLIENTS, LIMIT_S = 500, 256, 30.0
SATURATING = 64
READ_BYTES, BUFFER_BYTES = 1024, 4096
SLOW_SHARE = 0.3
SLOW_PAUSE_S = 0.3  # between reads: 3.4 kB/s, of streams of about 5 kB/s
LEAVES = 0.1  # share of streams that their callers leave early
STREAM_S = 120.0
AGAIN_S = 1.0
SAY_S = 30.0
LEFT_S = 180.0  # after the stop, until the last request has an outcome
Told = Callable[[LoggedRequest], object]


@dataclass(frozen=True, slots=True)
class Asking:
    """The load of all callers."""

    url: str
    rate: float  # ragged requests a second
    seconds: float  # how long the open loops send
    client_faults: float  # share of ragged requests that misbehave
    streams: int  # callers of the streaming model


@dataclass(slots=True)
class Asked:
    """The callers' results; empty until all callers have stopped."""

    log: RequestLog
    ragged: LoadResult | None = None


@contextmanager
def asking(plan: Asking) -> Iterator[Asked]:
    """Callers send requests while this context is entered; it yields their results, which are
    filled in at its end. Raises EOFError if the callers' process has died."""
    found = Asked(RequestLog())
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_ask, args=(plan, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield found
        ours.send("stop")
        if ours.poll(LEFT_S):
            found.log, found.ragged = ours.recv()
    finally:
        process.terminate()
        process.join()


def _ask(plan: Asking, pipe: Connection) -> None:
    with punctual():
        pipe.send(asyncio.run(_all(plan, pipe)))


async def _all(plan: Asking, pipe: Connection) -> tuple[RequestLog, LoadResult]:
    """Streams until the pipe says something; the open loops end by themselves."""
    log, over = RequestLog(), asyncio.Event()
    streams = StreamCallers(Target.parse(f"{plan.url}/v1/completions"), WRITER, log.note)
    streaming = asyncio.create_task(streams.run(plan.streams, over))
    ragged = asyncio.create_task(_ask_ragged(plan, log))
    changing = asyncio.create_task(_ask_changing(plan, log))
    saying = asyncio.create_task(_say(log))
    asyncio.get_running_loop().add_reader(pipe.fileno(), over.set)
    await over.wait()
    for who in (WRITER, ANYBODY):
        log.ended(who, time.monotonic())
    result, _, _ = await asyncio.gather(ragged, changing, streaming)
    saying.cancel()
    return log, result


async def _say(log: RequestLog) -> None:
    began_s = time.monotonic()
    while True:
        await asyncio.sleep(SAY_S)
        gap_s, _ = log.gaps.get(ANYBODY, (0.0, 0.0))
        counts = ", ".join(f"{what} {log.total(what)}" for what in ("answered", "refused", "lost"))
        passed_min = (time.monotonic() - began_s) / 60
        say(f"{passed_min:.1f} min: {counts}, longest gap {gap_s:.2f} s")


# ---- of the models that run batches --------------------------------------------------------------


class CheckedCallers(OpenLoop):
    """Compares each answer with its row's sum, so that an answer to another row is detected.
    `sums`: the right answer to each call."""

    def __init__(self, model: str, load: Load, sums: Sequence[float], told: Told) -> None:
        super().__init__(load)
        self._model, self._sums, self._told = model, sums, told

    def answered(self, connection: ClientConnection, answer: Response) -> None:
        if not self.misbehaves(connection):
            why = why_not(answer, self._sums[connection.slot])
            refused = answer.status in (429, 503) and answer.retry_after_s > 0
            self._tell(connection, why, refused)
        super().answered(connection, answer)

    def broke(self, connection: ClientConnection, kind: str) -> None:
        if not self.misbehaves(connection) and kind not in ("idle closed", "end"):
            self._tell(connection, kind)
        super().broke(connection, kind)

    def _tell(self, connection: ClientConnection, why: str, refused: bool = False) -> None:
        began_s = connection.sent_at
        self._told(LoggedRequest(self._model, began_s, time.perf_counter(), why, refused))


def why_not(answer: Response, right: float) -> str:
    """What is wrong with an answer; "" if nothing is."""
    if answer.status != 200:
        return f"{answer.status} {answer.body[:200].decode('latin-1')}"
    try:
        said = json.loads(answer.body)["outputs"][0]["data"]
    except (ValueError, LookupError, TypeError):
        return f"wrong: {answer.body[:200].decode('latin-1')}"
    return "" if said == [right] else f"wrong: {said} for [{right}]"


def load_of(url: str, model: str, rows: Sequence[Sequence[int]], seconds: float) -> Load:
    """Rows alternately from two tenants of different weights."""
    target = Target.parse(f"{url}/v2/models/{model}/infer")
    calls = tuple(
        Call(
            render(target, infer_body("ids", row), headers={"x-tenant": ASKING[n % len(ASKING)]}),
            len(row),
        )
        for n, row in enumerate(rows)
    )
    return Load(target, calls, clients=CLIENTS, seconds=seconds, timeout_s=LIMIT_S)


def ragged_rows() -> list[list[int]]:
    rng = random.Random(0)
    return [token_ids(length, rng) for length in ragged_lengths(ROWS, rng)]


def capacity(url: str, seconds: float) -> float:
    """Ragged requests a second that are answered in a closed loop."""
    load = load_of(url, RAGGED, ragged_rows(), seconds)
    return run(replace(load, clients=SATURATING, warmup_s=3.0)).rate


async def _ask_ragged(plan: Asking, log: RequestLog) -> LoadResult:
    """A third of those that misbehave do so in each of three ways."""
    rows = ragged_rows()
    load = load_of(plan.url, RAGGED, rows, plan.seconds)
    malformed = malformed_requests(load.target, infer_body("ids", [101, 2023, 102]))
    bad = ClientFaults(*(plan.client_faults / 3,) * 3, malformed_requests=malformed)
    load = replace(load, rate=plan.rate, client_faults=bad)
    return await _asked(RAGGED, load, rows, log)


async def _ask_changing(plan: Asking, log: RequestLog) -> LoadResult:
    model, rows = changing_model.MODEL, [changing_model.ASKED]
    load = load_of(plan.url, model, rows, plan.seconds)
    return await _asked(model, replace(load, rate=changing_model.RATE), rows, log)


async def _asked(
    model: str, load: Load, rows: Sequence[Sequence[int]], log: RequestLog
) -> LoadResult:
    sums = [float(sum(row)) for row in rows]
    result = await CheckedCallers(model, load, sums, log.note).run()
    log.ended(model, time.monotonic())
    return result


# ---- of the model that streams -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StreamCallers:
    """A caller sends its next request when its stream has ended, over a new connection with small
    buffers, so that unread bytes accumulate at the server and not here."""

    target: Target
    model: str
    told: Told

    async def run(self, number: int, over: asyncio.Event) -> None:
        """Runs so many callers until `over` is set; returns when every stream has ended."""
        slow = round(number * SLOW_SHARE)
        await asyncio.gather(*(self._ask_again(n, n < slow, over) for n in range(number)))

    async def _ask_again(self, number: int, slow: bool, over: asyncio.Event) -> None:
        drawn = random.Random(number)
        while not over.is_set():
            began_s = time.monotonic()
            most = drawn.randrange(2, 40) if drawn.random() < LEAVES else 0
            answer = await self._stream(self._request(drawn), SLOW_PAUSE_S if slow else 0.0, most)
            why = "" if most and answer.startswith(b"HTTP/1.1 200") else why_not_streamed(answer)
            refused = why[:3] in ("429", "503") and b"\nretry-after:" in answer.lower()
            self.told(LoggedRequest(self.model, began_s, time.monotonic(), why, refused))
            if why:
                await asyncio.sleep(AGAIN_S)

    def _request(self, drawn: random.Random) -> bytes:
        prompt = [drawn.randrange(10, 250) for _ in range(drawn.randrange(8, 200))]
        body = {
            "model": self.model, "prompt": prompt, "max_tokens": drawn.randrange(20, 300),
            "ignore_eos": True, "stream": True,
        }  # fmt: skip
        headers = {"connection": "close", "x-timeout-ms": f"{STREAM_S * 1000:.0f}"}
        return render(self.target, json.dumps(body).encode(), headers=headers)

    async def _stream(self, request: bytes, pause_s: float, most: int) -> bytes:
        """The head and the last bytes of an answer, or the error that ended it.

        `most`: the number of reads after which the caller leaves; 0: it reads the whole answer.
        """
        answer, reads = b"", 0
        try:
            async with asyncio.timeout(STREAM_S), _connected(self.target) as (reader, writer):
                writer.write(request)
                while data := await reader.read(READ_BYTES):
                    answer = answer[:2048] + answer[2048:][-READ_BYTES:] + data
                    reads += 1
                    if reads == most:
                        break
                    await asyncio.sleep(pause_s)
        except (OSError, TimeoutError) as error:
            return answer + f" {type(error).__name__}: {error}".encode()
        return answer


@asynccontextmanager
async def _connected(
    target: Target,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection with small buffers, which is aborted at the end."""
    plain = socket.socket()
    try:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        plain.setblocking(False)
        await asyncio.get_running_loop().sock_connect(plain, (target.host, target.port))
        reader, writer = await asyncio.open_connection(sock=plain, limit=READ_BYTES)
    except BaseException:
        plain.close()
        raise
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def why_not_streamed(answer: bytes) -> str:
    """What is wrong with a complete answer; "" if nothing is."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head[9:12].decode("latin-1") if head.startswith(b"HTTP/1.1 ") else ""
    if status == "200" and b"data: [DONE]" in body and b'"error"' not in body:
        return ""
    if not status:
        return f"no answer {answer[-200:].decode('latin-1')}".strip()
    said = " ".join(body[-200:].decode("latin-1").split())
    if status != "200":
        return f"{status} {said}"
    return f"ended by an error: {said}" if b'"error"' in body else "cut off"
