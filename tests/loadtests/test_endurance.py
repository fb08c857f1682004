from __future__ import annotations

import asyncio
import itertools
import json
import random
import signal
import threading
from collections import Counter
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import yaml

from loadtests.benches import changing_model, memory_growth, process_faults
from loadtests.benches.changing_model import BAD, GOOD, MODEL, MadeChange, change, kind_of, version
from loadtests.benches.endurance import (
    ALL,
    BENCH,
    STRUCK,
    Endured,
    notes,
    record,
    tables,
    thresholds,
    wrong_errors,
)
from loadtests.benches.endurance_callers import StreamCallers, why_not, why_not_streamed
from loadtests.benches.memory_growth import LEVELS, ServerSample, lived, whole
from loadtests.benches.process_faults import Injected, ProcessFault, Struck, schedule
from loadtests.benches.request_log import (
    ANYBODY,
    LoggedRequest,
    RequestLog,
    beyond,
    by_fault,
    silence_s,
)
from loadtests.benches.runner import BenchRun, Options, Runs
from loadtests.benches.server import MIB
from loadtests.client.http1 import Response, Target
from loadtests.client.load import LoadResult, LoadTally

GATEWAY = Struck("a gateway", r"^gateway", 2, frozenset({"writer"}))
EDGE = Struck("HAProxy", r"^haproxy", 1, ALL, port=True)


def injected(
    struck: Struck = GATEWAY, number: signal.Signals = signal.SIGKILL, at_s: float = 100.0
) -> Injected:
    return Injected(ProcessFault(struck, number), at_s, at_s + 1.0, back_s=5.0)


def lost(began_s: float, ended_s: float, caller: str = "writer") -> LoggedRequest:
    return LoggedRequest(caller, began_s, ended_s, "closed")


# ---- what a fault promises ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "fault", "promised"),
    [
        (lost(99.0, 100.5), injected(), True),
        (lost(98.0, 99.0), injected(), False),
        (lost(101.5, 102.0), injected(), False),
        (lost(99.0, 100.5, "ragged"), injected(), False),
        (lost(99.0, 100.5), injected(number=signal.SIGSTOP), False),
        (lost(102.9, 102.9, "ragged"), injected(EDGE), True),
        (lost(103.1, 103.1, "ragged"), injected(EDGE), False),
    ],
)
def test_only_what_was_under_way_at_what_died_may_be_lost(request_, fault, promised):
    assert (beyond([request_], [fault]) == []) is promised


def test_what_failed_counts_for_the_fault_before_it():
    faults = [injected(at_s=100.0), injected(at_s=200.0)]
    failed = [lost(1.0, 2.0), lost(99.0, 150.0), lost(199.0, 200.0)]
    assert by_fault(failed, faults) == {-1: failed[:1], 0: failed[1:2], 1: failed[2:]}


def test_log_tells_refused_from_lost_and_knows_the_longest_gap():
    log = RequestLog()
    for caller, ended_s in (("ragged", 1.0), ("ragged", 2.0), ("writer", 4.0), ("ragged", 5.0)):
        log.note(LoggedRequest(caller, ended_s - 0.5, ended_s))
    log.ended("writer", 6.0)
    log.ended("streams that nobody asked for", 6.0)
    log.note(LoggedRequest("ragged", 1.0, 3.0, "503 full", refused=True))
    log.note(lost(1.0, 3.0, "ragged"))
    assert log.counts["ragged"] == Counter(answered=3, refused=1, lost=1)
    assert log.gaps == {"ragged": (3.0, 2.0), "writer": (2.0, 4.0), ANYBODY: (2.0, 2.0)}
    assert log.silences == [(1.0, 1.0), (2.0, 2.0), (1.0, 4.0)]
    assert silence_s(log, 3.0, 3.5) == 2.0
    assert silence_s(log, 6.0, 7.0) == 0.0
    assert [each.why for each in log.lost] == ["closed"]


# ---- faults -------------------------------------------------------------------------------------


def test_every_process_meets_every_signal_in_an_order_that_the_seed_decides():
    faults = schedule(STRUCK, random.Random(1))
    assert len(set(faults)) == len(faults) == 3 * len(STRUCK)
    assert faults == schedule(STRUCK, random.Random(1)) != schedule(STRUCK, random.Random(2))


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("ray::ServeReplica:gateway:gateway", "a gateway"),
        ("ray::ServeReplica:model-ragged:model", "a replica of the ragged model"),
        ("ray::ServeReplica:model-writer:model", "a replica that streams"),
        ("ray::ServeReplica:model-writer:anchor", "an anchor"),
        ("/x/bin/haproxy -db -f /tmp/y/haproxy.cfg -sf 1", "HAProxy"),
        ("/x/bin/haproxy -db -f /tmp/y/haproxy.cfg.stand-in", None),
        ("python /x/bin/headrace-haproxy -db -f /tmp/y/haproxy.cfg", None),
    ],
)
def test_processes_are_told_by_their_titles(title, name):
    assert [each.name for each in STRUCK if each.is_it(title)] == ([name] if name else [])


def test_what_is_to_end_is_not_there_in_its_own_place(monkeypatch):
    there = [(SimpleNamespace(pid=pid), "gateway") for pid in (1, 2)]
    monkeypatch.setattr(process_faults, "titled", lambda running: there)
    assert process_faults.missing(object(), [GATEWAY]) == []
    assert process_faults.missing(object(), [GATEWAY], {1}) == ["a gateway"]


# ---- answers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Response(200, b'{"outputs": [{"data": [3.0]}]}', True), ""),
        (Response(200, b'{"outputs": [{"data": [4.0]}]}', True), "wrong: [4.0] for [3.0]"),
        (Response(200, b"[]", True), "wrong: []"),
        (Response(503, b"full", True, 1.0), "503 full"),
    ],
)
def test_a_ragged_answer_must_be_its_rows_sum(answer, why):
    assert why_not(answer, 3.0) == why


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\ndata: {}\n\ndata: [DONE]\n\n", ""),
        (b"HTTP/1.1 200 OK\r\n\r\ndata: {}", "cut off"),
        (b'HTTP/1.1 200 OK\r\n\r\ndata: {"error"}\n\ndata: [DONE]', "ended by an error: data"),
        (b"HTTP/1.1 503 no\r\n\r\nfull", "503 full"),
        (b"", "no answer"),
    ],
)
def test_a_stream_must_come_to_its_end(answer, why):
    said = why_not_streamed(answer)
    assert said.startswith(why)
    assert bool(said) is bool(why)


async def test_streams_are_asked_again_until_all_is_over():
    asked, over, told = [], asyncio.Event(), []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.append(1)
        if len(asked) == 3:
            over.set()
        writer.write(b"HTTP/1.1 200 OK\r\n\r\ndata: [DONE]\n\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        target = Target("127.0.0.1", port, "/v1/completions")
        callers = StreamCallers(target, "writer", told.append)
        await asyncio.wait_for(callers.run(1, over), 10)
    assert len(asked) >= 3
    assert {each.why for each in told} == {""}


def test_only_500_and_its_like_are_wrong_whatever_was_asked():
    tally = LoadTally(begin=0.0)
    for status in (200, 503, 504, 500):
        tally.answered(1.0, 0.9, status, 1)
    for kind in ("malformed 400", "malformed 500", "disconnect left"):
        tally.misbehaved(1.0, kind)
    found = wrong_errors(LoadResult.of(tally, 1.0, 0.0))
    assert found == {"status 500": 1, "malformed 500": 1}


# ---- changes ------------------------------------------------------------------------------------


def test_every_third_version_is_good_the_others_take_turns_and_none_is_the_one_before():
    kinds = [kind_of(change) for change in range(1, 10)]
    assert kinds[2::3] == [GOOD] * 3
    assert [kind for kind in kinds if kind != GOOD] == list(BAD)
    for step in (1, 3):
        versions = [version(change) for change in range(0, 28, step)]
        assert all(before != after for before, after in itertools.pairwise(versions))


@pytest.mark.parametrize(
    ("number", "code", "said", "ended"),
    [
        (3, 0, "changed: changing", True),
        (3, 1, "changing: aborted, the live version goes on", False),
        (3, None, "not ended after 300 s", False),
        (1, 1, "model changing cannot start and goes on as it was", True),
        (1, 1, "changing: aborted, the live version goes on", True),
        (1, 1, "ClusterError: no Ray dashboard answers", False),
        (1, 0, "changing: promoted", False),
        (1, None, "not ended after 300 s", False),
    ],
)
def test_a_bad_version_is_taken_back_for_what_it_is(
    monkeypatch, tmp_path, number, code, said, ended
):
    file = tmp_path / "settings.yaml"
    file.write_text("models: {other: {runtime: synthetic}}")
    monkeypatch.setattr(changing_model, "_apply", lambda *_: (code, said))
    assert change(object(), number, file=file, home=tmp_path).ended is ended
    assert yaml.safe_load(file.read_text())["models"] == {
        "other": {"runtime": "synthetic"}, MODEL: yaml.safe_load(yaml.safe_dump(version(number))),
    }  # fmt: skip


# ---- memory -------------------------------------------------------------------------------------


def sample(at_s: float, **mib: float) -> ServerSample:
    rss = {name.replace("_", " "): int(each * MIB) for name, each in mib.items()}
    return ServerSample(at_s, rss, dict.fromkeys(LEVELS, 0.0))


def test_memory_grows_by_the_slope_of_the_last_two_thirds():
    samples = [sample(60.0 * n, gateway_1=100 if n < 3 else 100 + 2 * (n - 3)) for n in range(9)]
    (only,) = lived(samples)
    assert (only.role, only.began_mib, only.share) == ("gateway", 100, pytest.approx(0.1))
    assert whole(samples).share == pytest.approx(0.1)


def test_samples_are_taken_until_the_watch_is_over(monkeypatch):
    taken = threading.Event()
    monkeypatch.setattr(memory_growth, "sample", lambda running, at_s: (taken.set(), at_s)[1])
    with memory_growth.watching(object(), 0.001) as samples:
        assert taken.wait(10)
    assert samples
    assert samples == sorted(samples)


# ---- the report ---------------------------------------------------------------------------------


def endured() -> Endured:
    found = Endured(0.0, 100.0, faults=[injected()])
    found.log.note(LoggedRequest("ragged", 1.0, 1.5))
    found.log.note(LoggedRequest("ragged", 2.0, 2.5))
    found.changes = [
        MadeChange(3, "good", 90.0, 101.0, False, "struck"),
        MadeChange(4, "slow", 1.0, 2.0, True, ""),
    ]
    found.samples = [sample(5.0 * n, gateway_1=100, gcs_2=100) for n in range(9)]
    found.levels = {"one": dict.fromkeys(LEVELS, 0.0), "two": dict.fromkeys(LEVELS, 0.0)}
    return found


def broken(found: Endured) -> list[str]:
    return [
        each.claim
        for each in thresholds(Runs((BenchRun("endured", found),)), Options())
        if not each.held
    ]


def test_a_good_change_may_be_lost_to_a_fault():
    assert broken(endured()) == []


def test_nobody_is_answered_while_haproxy_is_stopped():
    found = endured()
    found.log.note(LoggedRequest("ragged", 2.0, 8.0))
    assert len(broken(found)) == 1
    found.faults.append(Injected(ProcessFault(EDGE, signal.SIGSTOP), 2.6, 7.6, 5.0))
    assert broken(found) == []


def test_each_promise_is_seen_broken():
    found = endured()
    found.faults.append(Injected(ProcessFault(EDGE, signal.SIGKILL), 500.0, 501.0))
    found.changes += [
        MadeChange(6, "good", 200.0, 201.0, False, ""), MadeChange(7, "wrong", 1.0, 2.0, False, "")
    ]  # fmt: skip
    found.log.note(LoggedRequest("ragged", 9.0, 10.0))
    found.log.note(LoggedRequest("ragged", 9.0, 10.0, "wrong: [4.0] for [3.0]"))
    found.levels["two"]["headrace_queue_rows"] = 1.0
    found.samples[-1].levels["headrace_accounting_drift"] = -1.0
    for n, each in enumerate(found.samples):
        each.rss_bytes["gcs 2"] += n * 10 * MIB
    assert broken(found) == [
        "requests lost beyond what was under way at what died",
        "answers that were wrong",
        "longest time without an answer to anybody, but while HAProxy was stopped",
        "what died came back",
        "good changes not made, no fault about",
        "bad changes not taken back",
        "nothing is held at the end",
        "accounted − actual, at any time",
        "memory of Ray's own: grown by at most 5%",
        "memory of all together: grown by at most 5%",
    ]


def test_the_report_has_all_of_it():
    runs = Runs((BenchRun("endured", endured()),))
    options = Options(seed=1, load=0.6, minutes=1)
    assert len(list(tables(runs, options))) == 5
    assert any("struck" in note for note in notes(runs, options))
    assert json.loads(json.dumps(asdict(BENCH.report(runs, options))))["raw"]
    assert record(runs[0].result)["faults"] == [["a gateway: SIGKILL", 100.0, 101.0, 5.0]]
