from __future__ import annotations

import asyncio
import itertools

import httpx
import pytest

from loadtests.benches import model_changes
from loadtests.benches.model_changes import (
    BAD,
    GOOD,
    Callers,
    Changes,
    KindOfChange,
    bars,
    kind_of,
    settings,
    tables,
)
from loadtests.benches.runner import BenchRun, Runs


def test_every_third_version_is_good_and_the_others_take_turns():
    kinds = [kind_of(change) for change in range(1, 10)]
    assert kinds[2::3] == [GOOD] * 3
    assert [kind for kind in kinds if kind != GOOD] == list(BAD)
    assert kind_of(0) == GOOD


def test_no_version_is_the_one_before():
    versions = [settings(change) for change in range(28)]
    assert all(before != after for before, after in itertools.pairwise(versions))
    good = [settings(change) for change in range(0, 28, 3)]
    assert all(before != after for before, after in itertools.pairwise(good))


def test_a_version_that_cannot_be_loaded_names_a_file_that_is_there_and_no_graph():
    model = settings(1)["models"][model_changes.MODEL]
    assert (model["runtime"], model["source"]) == ("onnxruntime", model_changes.RUBBISH)


@pytest.mark.parametrize(
    ("status", "answer", "failed"), [(200, 6.0, 0), (200, 5.0, 1), (503, 6.0, 1)]
)
async def test_only_the_right_answer_counts(status, answer, failed):
    found = Changes()
    callers = Callers("http://here", found)
    reply = httpx.Response(status, json={"outputs": [{"data": [answer]}]})
    async with httpx.AsyncClient(transport=httpx.MockTransport(lambda _: reply)) as http:
        await callers._ask(http)
    assert (found.asked, len(found.failures)) == (1, failed)


async def test_callers_ask_on_whether_answers_come_or_not(monkeypatch):
    callers = Callers("http://here", Changes())
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


def test_what_was_not_done_breaks_its_promise():
    kinds = {GOOD: KindOfChange(3, [1.0, 2.0]), "slow": KindOfChange(2, [1.0, 2.0])}
    found = Changes(kinds, asked=5, failures=["503"])
    done = Runs((BenchRun("changes", found),))
    verdicts = list(bars(done, object()))
    assert [each.held for each in verdicts] == [False, False, True]


def test_a_kind_that_never_ended_well_has_no_time():
    found = Changes({"slow": KindOfChange(2, [])}, asked=1)
    kinds, _ = tables(Runs((BenchRun("changes", found),)), object())
    assert str(kinds.rows[0][3]) == "nan"
