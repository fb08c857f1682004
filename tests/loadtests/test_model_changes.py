from __future__ import annotations

import asyncio
import itertools
from math import inf

import httpx
import pytest
import yaml

from loadtests.benches import changing_model
from loadtests.benches.changing_model import (
    BAD,
    GOOD,
    MODEL,
    Callers,
    MadeChange,
    change,
    kind_of,
    version,
)
from loadtests.benches.model_changes import Changes, bars, tables
from loadtests.benches.request_log import LoggedRequest
from loadtests.benches.runner import BenchRun, Runs


def test_every_third_version_is_good_and_the_others_take_turns():
    kinds = [kind_of(change) for change in range(1, 10)]
    assert kinds[2::3] == [GOOD] * 3
    assert [kind for kind in kinds if kind != GOOD] == list(BAD)
    assert kind_of(0) == GOOD


def test_no_version_is_the_one_before():
    versions = [version(change) for change in range(28)]
    assert all(before != after for before, after in itertools.pairwise(versions))
    good = [version(change) for change in range(0, 28, 3)]
    assert all(before != after for before, after in itertools.pairwise(good))


def test_a_version_that_cannot_be_loaded_names_a_file_that_is_there_and_no_graph():
    model = version(1)
    assert (model["runtime"], model["source"]) == ("onnxruntime", changing_model.RUBBISH)


@pytest.mark.parametrize(
    ("status", "answer", "headers", "failed", "refused"),
    [
        (200, 6.0, {}, False, False),
        (200, 5.0, {}, True, False),
        (503, 6.0, {}, True, False),
        (503, 6.0, {"retry-after": "1"}, True, True),
    ],
)
async def test_only_the_right_answer_counts(status, answer, headers, failed, refused):
    told = []
    callers = Callers("http://here", told.append)
    reply = httpx.Response(status, json={"outputs": [{"data": [answer]}]}, headers=headers)
    async with httpx.AsyncClient(transport=httpx.MockTransport(lambda _: reply)) as http:
        await callers._ask(http)
    assert [(bool(each.why), each.refused) for each in told] == [(failed, refused)]


async def test_callers_ask_on_whether_answers_come_or_not(monkeypatch):
    callers = Callers("http://here", lambda _: None)
    asked, let_go = [], asyncio.Event()

    async def ask(http: httpx.AsyncClient) -> None:
        asked.append(1)
        if len(asked) == 3:
            callers.stop()
            let_go.set()
        await let_go.wait()

    monkeypatch.setattr(callers, "_ask", ask)
    await asyncio.wait_for(callers.run(), 10)
    assert len(asked) == 3


def test_answers_count_as_slow_by_a_change_when_they_began_before_it_ended():
    found = Changes()
    found.told(LoggedRequest(MODEL, 0.0, 1.0))
    found.changed_until_s = inf
    found.told(LoggedRequest(MODEL, 2.0, 5.0))
    found.changed_until_s = 6.0
    found.told(LoggedRequest(MODEL, 5.5, 9.5, "503"))
    found.told(LoggedRequest(MODEL, 6.5, 7.0))
    assert (found.quiet_s, found.longest_s, found.failures) == (1.0, 4.0, ["503"])


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


def made(number: int, ended: bool) -> MadeChange:
    return MadeChange(number, kind_of(number), 0.0, 1.0, ended, "")


def test_what_was_not_done_breaks_its_promise():
    changes = [made(3, True), made(6, True), made(9, False), made(1, True), made(7, True)]
    found = Changes(changes, asked=5, failures=["503"])
    done = Runs((BenchRun("changes", found),))
    verdicts = list(bars(done, object()))
    assert [each.held for each in verdicts] == [False, False, True]


def test_a_kind_that_never_ended_well_has_no_time():
    found = Changes([made(4, False)], asked=1)
    kinds, _ = tables(Runs((BenchRun("changes", found),)), object())
    assert str(kinds.rows[0][3]) == "nan"
