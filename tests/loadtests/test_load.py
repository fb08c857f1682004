"""Does the client drive a server as it was told, and tell truthfully what came back?

The server is an `asyncio` one in the same process; a run ends by its number of requests or within
hundredths of a second.
"""

import asyncio
import math
import socket
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from loadtests.client.client_faults import ClientFaults, malformed_requests
from loadtests.client.http1 import Target, render
from loadtests.client.load import Call, Load, LoadResult, LoadTally, run_async

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
BUSY = b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n"
CLOSE = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok"


class Server(asyncio.Protocol):
    """Answers each whole request (by its Content-Length) with what `answer` makes of it; None
    leaves it unanswered, b"" closes the connection."""

    def __init__(self, answer: Callable[[bytes], bytes | None], log: list[bytes]) -> None:
        self._answer, self._log, self._buffer = answer, log, b""

    def connection_made(self, transport):
        self._transport = transport
        self._log.append(b"connected")

    def connection_lost(self, exc):
        self._log.append(b"lost")

    def data_received(self, data):
        self._buffer += data
        head, _, body = self._buffer.partition(b"\r\n\r\n")
        marker = b"content-length: "
        length = int(head.split(marker)[1].split(b"\r\n")[0]) if marker in head else 0
        if b"\r\n\r\n" not in self._buffer or len(body) < length:
            return
        self._log.append(self._buffer)
        answer, self._buffer = self._answer(self._buffer), b""
        if answer:
            self._transport.write(answer)
        if answer in (b"", CLOSE):
            self._transport.close()


@asynccontextmanager
async def serving(answer: Callable[[bytes], bytes | None]):
    log: list[bytes] = []
    server = await asyncio.get_running_loop().create_server(
        lambda: Server(answer, log), "127.0.0.1", 0
    )
    host, port = server.sockets[0].getsockname()
    try:
        yield Target(host, port, "/infer"), log
    finally:
        server.close()


@contextmanager
def free_port() -> Iterator[int]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]  # bound and not listening: connections are refused


def load(target: Target, bodies: tuple[bytes, ...] = (b"{}",), **more) -> Load:
    calls = tuple(Call(render(target, body), weight=len(body)) for body in bodies)
    return Load(target, calls, **{"seconds": 5.0, "timeout_s": 1.0, **more})


@pytest.mark.parametrize("clients", [1, 2, 8])
async def test_closed_loop_sends_as_many_as_asked_over_kept_connections(clients):
    async with serving(lambda _: OK) as (target, log):
        result = await run_async(load(target, clients=clients, max_requests=20))
    assert (result.ok, result.errors) == (20, {})
    assert result.weight == 40
    assert log.count(b"connected") == clients
    assert result.seconds < 1


async def test_run_ends_with_its_time():
    async with serving(lambda _: OK) as (target, _):
        result = await run_async(load(target, seconds=0.2, warmup_s=0.01))
    assert result.ok > 0
    assert result.seconds == pytest.approx(0.2, abs=0.02)


async def test_statuses_are_counted_apart():
    answers = iter([OK, BUSY, OK, BUSY, BUSY])
    async with serving(lambda _: next(answers)) as (target, _):
        result = await run_async(load(target, max_requests=5))
    assert (result.ok, result.errors) == (2, {"status 503": 3})


async def test_server_that_closes_after_each_answer_is_reconnected_to():
    async with serving(lambda _: CLOSE) as (target, log):
        result = await run_async(load(target, max_requests=3))
    assert (result.ok, result.errors) == (3, {})
    assert log.count(b"connected") >= 3


@pytest.mark.parametrize(
    ("answer", "kind"),
    [(b"", "closed"), (b"rubbish\r\n\r\n", "bad answer"), (OK + b"!", "bad answer")],
)
async def test_broken_answers_are_errors_by_kind(answer, kind):
    async with serving(lambda _: answer) as (target, _):
        result = await run_async(load(target, max_requests=2))
    assert (result.ok, result.errors) == (0, {kind: 2})


async def test_unanswered_request_times_out_and_frees_the_run():
    async with serving(lambda _: None) as (target, _):
        result = await run_async(load(target, max_requests=1, timeout_s=0.02))
    assert result.errors == {"timeout": 1}


async def test_refused_connection_is_an_error():
    with free_port() as port:
        result = await run_async(load(Target("127.0.0.1", port, "/"), seconds=0.3))
    assert set(result.errors) == {"connect"}


async def test_open_loop_sends_at_its_rate_whatever_the_answers_take():
    async with serving(lambda _: OK) as (target, _):
        result = await run_async(load(target, clients=16, rate=1000, seconds=0.1))
    assert result.errors == {}
    assert result.ok == pytest.approx(100, abs=40)


async def test_open_loop_counts_what_never_found_a_connection():
    async with serving(lambda _: None) as (target, _):
        result = await run_async(
            load(target, clients=1, rate=400, seconds=0.05, timeout_s=0.02, seed=3)
        )
    assert result.ok == 0
    assert result.failed == pytest.approx(20, abs=15)
    assert {"timeout", "unsent"} >= set(result.errors)


async def test_misbehaving_requests_are_no_samples_and_are_counted_by_kind():
    async with serving(lambda sent: BUSY if b"x-timeout-ms" in sent else OK) as (target, _):
        result = await run_async(
            load(
                target,
                max_requests=60,
                client_faults=ClientFaults(hurry=0.5, disconnect=0.2),
                seed=1,
            )
        )
    assert result.errors == {}
    assert result.client_faults["hurry 503"] == pytest.approx(30, abs=12)
    assert result.ok + sum(result.client_faults.values()) == 60


async def test_one_who_disconnects_is_gone_for_the_server_too():
    client_faults = ClientFaults(disconnect=1.0, disconnect_within_s=0.002)
    async with serving(lambda _: None) as (target, log):
        result = await run_async(load(target, max_requests=3, client_faults=client_faults))
        await asyncio.sleep(0)
    assert result.client_faults == {"disconnect left": 3}
    assert log.count(b"lost") >= 2


async def test_malformed_is_sent_as_it_is():
    target = Target("127.0.0.1", 1, "/infer")
    malformed = malformed_requests(target, b'{"inputs":[{"shape":[1,1],"data":[1,2]}]}')
    assert len(set(malformed)) == len(malformed)
    async with serving(lambda _: BUSY) as (target, log):
        client_faults = ClientFaults(
            malformed=1.0, malformed_requests=(b"BREW / HTTP/1.1\r\n\r\n",)
        )
        result = await run_async(load(target, max_requests=2, client_faults=client_faults))
    assert result.client_faults == {"malformed 503": 2}
    assert log.count(b"BREW / HTTP/1.1\r\n\r\n") == 2


@pytest.mark.parametrize("shares", [(0.5, 0.5, 0.1), (-0.1, 0, 0), (0, 0, 0.1)])
def test_impossible_shares_are_refused(shares):
    with pytest.raises(ValueError, match="share"):
        ClientFaults(*shares)


@pytest.mark.parametrize("wrong", [{"clients": 0}, {"seconds": 0}, {"rate": -1}])
def test_impossible_load_is_refused(wrong):
    with pytest.raises(ValueError, match="needed"):
        load(Target("h", 1, "/"), **wrong)


# ---- what is counted -----------------------------------------------------------------------------


def result_of(tally: LoadTally, seconds: float = 2.0, cpu_s: float = 0.0) -> LoadResult:
    return LoadResult.of(tally, seconds, cpu_s)


@pytest.mark.parametrize(("now", "counted"), [(0.9, 0), (1.0, 1), (3.0, 1), (3.1, 0)])
def test_only_answers_inside_the_window_count(now, counted):
    tally = LoadTally(begin=1.0, end=3.0)
    tally.answered(now, now - 0.5, 200, 1)
    tally.failed(now, now - 0.5, "closed")
    tally.misbehaved(now, "malformed 400")
    result = result_of(tally)
    assert (result.ok, result.failed, sum(result.client_faults.values())) == (counted,) * 3


def test_open_loop_counts_by_when_a_request_was_meant_to_be_sent():
    tally = LoadTally(begin=1.0, end=3.0, by_arrival=True)
    tally.answered(9.0, 2.0, 200, 1)  # far too late an answer, but to a request of the window
    tally.answered(2.0, 0.5, 200, 1)
    tally.failed(9.0, 2.0, "timeout")
    result = result_of(tally)
    assert (result.ok, result.errors) == (1, {"timeout": 1})
    assert result.latency_ms(50) == pytest.approx(7000.0)


def test_refused_answers_are_errors_by_status_and_no_latency_sample():
    tally = LoadTally(begin=0.0)
    for status in (200, 204, 503, 503, 400):
        tally.answered(1.0, 0.9, status, 10)
    result = result_of(tally)
    assert result.errors == {"status 503": 2, "status 400": 1}
    assert (result.ok, result.weight, result.rate, result.weight_rate) == (2, 20, 1.0, 10.0)


def test_share_within_a_limit_is_of_all_that_was_asked():
    tally = LoadTally(begin=0.0)
    for latency in (0.01, 0.02, 0.2):
        tally.answered(1.0, 1.0 - latency, 200, 1)
    tally.failed(1.0, 0.5, "timeout")
    assert result_of(tally).within(100.0) == pytest.approx(0.5)


def test_nothing_answered_gives_no_numbers_rather_than_zeros():
    result = result_of(LoadTally(begin=0.0))
    assert math.isnan(result.latency_ms(50))
    assert math.isnan(result.cpu_us)
    assert (result.rate, result.within(1.0)) == (0.0, 0.0)


def test_client_cpu_is_shared_out_over_all_answers():
    tally = LoadTally(begin=0.0)
    tally.answered(1.0, 0.9, 200, 1)
    tally.misbehaved(1.0, "malformed 400")
    assert result_of(tally, cpu_s=40e-6).cpu_us == pytest.approx(20.0)
