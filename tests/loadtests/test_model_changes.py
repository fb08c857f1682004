from __future__ import annotations

import asyncio
import itertools

import httpx
import pytest

from loadtests.benches import model_changes
from loadtests.benches.model_changes import Callers, Changes, bars, is_bad, settings
from loadtests.benches.runner import BenchRun, Runs


def test_every_third_change_is_bad_and_every_other_one_differs():
    kinds = [is_bad(change) for change in range(1, 7)]
    assert kinds == [False, True, False, False, True, False]
    good = [settings(change) for change in range(7) if not is_bad(change)]
    assert all(before != after for before, after in itertools.pairwise(good))


def test_a_bad_version_names_a_file_that_is_there_and_no_graph():
    model = settings(2)["models"][model_changes.MODEL]
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
    found = Changes(good=3, changed=2, bad=2, taken_back=2, asked=5, failures=["503"])
    done = Runs((BenchRun("changes", found),))
    verdicts = list(bars(done, object()))
    assert [each.held for each in verdicts] == [False, False, True]
