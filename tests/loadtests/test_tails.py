"""Is what a stall costs counted rightly: times, copies, what ran in vain, and the verdicts?"""

from __future__ import annotations

import math

import numpy as np
import pytest

from deployments.settings.tree import Settings
from loadtests.benches.metrics_page import parse
from loadtests.benches.runner import BenchRun, Runs
from loadtests.benches.tails import BENCH, modes_of
from loadtests.benches.tails_trials import (
    BATCHES,
    KINDS,
    REPLICAS,
    STREAMS,
    StallingKind,
    TailTrial,
    counts_of,
    extra_work,
    percentile_of,
    taken_s,
    trial_of,
)
from loadtests.client.player import PlayedRequest
from loadtests.client.protocols.types import AnswerFacts
from loadtests.traffic.plan import Planned

PAGE = """# TYPE headrace_hedges_total counter
headrace_hedges_total{gateway="%(gateway)s",model="hedge"} 3
headrace_hedges_total{gateway="%(gateway)s",model="off"} 0
# TYPE headrace_batches_total counter
headrace_batches_total{gateway="%(gateway)s",model="hedge",end="answered"} 40
headrace_batches_total{gateway="%(gateway)s",model="hedge",end="unused"} 2
headrace_batches_total{gateway="%(gateway)s",model="off",end="answered"} 50
"""


def end(at_s: float, ended_s: float, status: int = 200, heard: AnswerFacts | None = None):
    return PlayedRequest(Planned(at_s, "default", (8,)), at_s, ended_s, status, heard=heard)


def trial(*times_ms: float, answered: float = 100.0, unused: float = 0.0, failed: int = 0):
    counts = {"answered": answered, "unused": unused, "hedges": unused, "ties": 0.0, "dropped": 0.0}
    failures = {"503": failed} if failed else {}
    return TailTrial(len(times_ms) + failed, np.array(times_ms), failures, counts)


def test_counters_are_of_all_gateways_and_of_one_model():
    samples = [each for gateway in "ab" for each in parse(PAGE % {"gateway": gateway})]
    found = counts_of(samples, "hedge")
    assert (found["hedges"], found["answered"], found["unused"], found["ties"]) == (6, 80, 4, 0)
    assert counts_of(samples, "off")["answered"] == 100


def test_a_batch_takes_until_its_answer_and_a_stream_until_its_first_token():
    assert taken_s(end(2.0, 2.5)) == 0.5
    assert taken_s(end(2.0, 2.5, heard=AnswerFacts(first_s=2.125, last_s=2.5))) == 0.125


def test_what_failed_is_no_sample_of_time():
    found = trial_of([end(0.0, 0.25), end(1.0, 9.0, 503), end(2.0, 2.5)], {})
    assert found.times_ms.tolist() == [250.0, 500.0]
    assert (found.offered, found.failed, found.failures) == (3, 1, {"503": 1})


def test_a_percentile_is_over_all_repeats_together():
    assert percentile_of([trial(1.0, 2.0), trial(3.0)], 50) == 2.0
    assert math.isnan(percentile_of([], 50))


def test_extra_work_is_what_ran_in_vain_of_what_answered():
    done = [trial(answered=150, unused=3), trial(answered=50, unused=7)]
    assert extra_work(BATCHES, done) == 0.05
    assert math.isnan(extra_work(BATCHES, []))


def test_streams_that_were_taken_back_are_extra_work_and_batches_are_not():
    done = trial(answered=100, unused=1)
    counts = {**done.counts, "dropped": 4.0}
    dropped = TailTrial(done.offered, done.times_ms, {}, counts)
    assert extra_work(STREAMS, [dropped]) == pytest.approx(0.01 + 0.04 * 22 / 52)
    assert extra_work(BATCHES, [dropped]) == 0.01


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_servers_of_every_kind_have_settings_that_are_valid(kind: StallingKind):
    models = Settings.model_validate(kind.server(list(kind.modes))).models
    assert list(models) == list(kind.modes)
    assert all(model.replicas.initial == REPLICAS for model in models.values())


def test_rate_is_the_share_of_what_the_replicas_can_do():
    assert BATCHES.rate(0.5) == pytest.approx(0.5 * 3 / 0.022)
    assert STREAMS.rate(1.0) == pytest.approx(3 * 8 / (16 * 0.0106))


@pytest.mark.parametrize(
    ("hedged", "held"),
    [
        (trial(20.0, 140.0), [True, True, True]),
        (trial(20.0, 160.0), [False, True, True]),
        (trial(20.0, 310.0), [False, False, True]),
        (trial(20.0, 140.0, unused=5.1), [True, True, False]),
    ],
)
def test_verdicts_compare_each_mode_with_none(hedged: TailTrial, held: list[bool]):
    off = trial(20.0, 300.0)
    runs = [("off", off), ("hedge", hedged), ("tied", trial(20.0, 100.0, failed=1))]
    done = Runs(BenchRun(mode, each, "batches") for mode, each in runs)
    report = BENCH.report(done, BENCH.parser().parse_args(["--kinds", "batches"]))
    assert [verdict.held for verdict in report.verdicts] == [*held, True, True, True, False]


def test_modes_that_are_not_asked_for_are_neither_served_nor_judged():
    options = BENCH.parser().parse_args(["--modes", "off", "hedge"])
    assert modes_of(BATCHES, options) == ["off", "hedge"]
    assert modes_of(STREAMS, options) == list(STREAMS.modes)
    done = Runs(BenchRun(mode, trial(20.0, 300.0), "batches") for mode in ("off", "hedge"))
    options = BENCH.parser().parse_args(["--modes", "off", "hedge", "--kinds", "batches"])
    claims = [verdict.claim for verdict in BENCH.report(done, options).verdicts]
    judged = [claim.split(":")[0] for claim in claims]
    assert judged == ["batches, hedge"] * 3 + ["requests that failed"]
