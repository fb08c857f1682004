"""Do the benches that need a server make their tables and thresholds of what one would have
given?"""

from __future__ import annotations

import itertools
import json
import threading
from contextlib import nullcontext
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from loadtests.benches import (
    generation,
    generator,
    memory_start,
    overhead,
    policies,
    ragged_embeddings,
    simulated_against_real,
    small_generation,
)
from loadtests.benches.generation import Streamed
from loadtests.benches.runner import Bench, Runs
from loadtests.benches.server import ProcessUsage, RunningServer
from loadtests.client.load import LoadResult, LoadTally
from loadtests.results.report_table import BenchReport, as_markdown

PAGE = """# TYPE headrace_stage_seconds histogram
headrace_stage_seconds_count{stage="run"} %(n)d
headrace_stage_seconds_sum{stage="run"} %(n)d
"""


def reported(bench: Bench, *arguments: str) -> BenchReport:
    """Of a run of the bench, as `main` makes it; it must survive being written and shown."""
    options = bench.parser().parse_args(arguments)
    report = bench.report(Runs(bench.told(options)), options)
    assert json.dumps(asdict(report), default=float)
    assert as_markdown(report)
    return report


def answered(seconds: float, ok: int = 3000, weight: int = 10) -> LoadResult:
    tally = LoadTally(begin=0.0)
    for _ in range(ok):
        tally.answered(1.0, 0.995, 200, weight)
    return LoadResult.of(tally, seconds, client_cpu_s=0.05)


@pytest.fixture
def server(monkeypatch):
    """One whose processes use ever more; nothing is started."""
    spent = itertools.count(1)

    class Played(RunningServer):
        def usage(self, *, memory: bool = False) -> list[ProcessUsage]:
            return [ProcessUsage(1, "gateway replica", float(next(spent)), 2**20, 2**19)]

    return lambda name="headrace": Played(name, "http://here", "mark", 9.0, None)


def test_only_the_server_that_is_to_be_scraped_is_and_both_trace(server, monkeypatch):
    given, scraped = {}, threading.Event()
    monkeypatch.setattr(
        overhead,
        "headrace",
        lambda settings, name: (given.update({name: settings}), nullcontext(server(name)))[1],
    )
    monkeypatch.setattr(overhead.metrics_page, "fetch", lambda url: scraped.set())
    with overhead.serving("headrace-traced"):
        pass
    assert not scraped.is_set()
    with overhead.serving("headrace-scraped"):
        assert scraped.wait(10)
    assert [each["gateway"]["tracing"]["sample_ratio"] for each in given.values()] == [0.01] * 2


def test_overhead_compares_systems_by_clients_and_shows_where_time_goes(server, monkeypatch):
    pages, loads = itertools.count(1), []
    monkeypatch.setattr(overhead, "serving", lambda name: nullcontext(server(name)))
    monkeypatch.setattr(overhead, "run", lambda load: (loads.append(load), answered(1.0))[1])
    monkeypatch.setattr(
        overhead, "metrics_of", lambda _: overhead.metrics_page.parse(PAGE % {"n": next(pages)})
    )
    systems = ("headrace", "headrace-traced", "triton")
    report = reported(
        overhead.BENCH, "--systems", *systems, "--clients", "1", "32", "--repeats", "1"
    )
    assert [load.clients for load in loads[:4]] == [1, 1, 32, 32]
    assert [table.caption for table in report.tables] == [
        "1 client", "32 clients", "Headrace, CPU µs a request by process",
        "Headrace, time by stage at 32 clients",
    ]  # fmt: skip
    assert report.tables[1].rows[2][:5] == (
        "triton",
        3000.0,
        "3,000–3,000",
        *[pytest.approx(5)] * 2,
    )
    claims = {verdict.claim: verdict.held for verdict in report.verdicts}
    assert claims == {
        "headrace-traced: at least 95 % of the throughput at 1 clients": True,
        "at least 2,500 req/s at 32 clients": True,
        "headrace-traced: at least 95 % of the throughput at 32 clients": True,
        "at least 1 × triton at 32 clients": True,
        "one client's median at most 2 ms above the device's time": False,
    }


def test_what_http_leaves_of_a_loop_is_judged(server, monkeypatch):
    loop = {"tokens_per_s": 40_000.0, "rows_per_s": 500.0}
    monkeypatch.setattr(ragged_embeddings, "headrace", lambda *_, **__: nullcontext(server()))
    monkeypatch.setattr(ragged_embeddings, "run", lambda load: answered(1.0))
    monkeypatch.setattr(ragged_embeddings, "looped", lambda *_: loop)
    report = reported(ragged_embeddings.BENCH, "--rows", "20", "--repeats", "2")
    assert [row[:2] for row in report.tables[0].rows] == [
        ("through HTTP", 30_000.0), ("in a loop, sorted batches", 40_000.0)
    ]  # fmt: skip
    assert [verdict.held for verdict in report.verdicts] == [False, True]


def test_starts_are_cold_and_staged_and_memory_is_listed_by_role(server, monkeypatch, tmp_path):
    monkeypatch.setattr(memory_start, "HOME", tmp_path)
    monkeypatch.setattr(memory_start, "headrace", lambda *_, **__: nullcontext(server()))
    monkeypatch.setattr(memory_start, "run", lambda load: answered(1.0))
    report = reported(memory_start.BENCH, "--examples", "device")
    assert report.tables[0].rows == (
        ("cold", 9.0, "9.00–9.00"), ("staged", 9.0, "9.00–9.00")
    )  # fmt: skip
    assert report.tables[1].rows[-1] == ("all", 1, 1.0, 0.5)


def test_streams_are_compared_with_vllms_own_server(server, monkeypatch):
    async def measured(self, running, options):
        return Streamed(1.0, 100, [0.3], [0.05], ["a"], 0.1)

    monkeypatch.setattr(generation, "ours", lambda size: nullcontext(server()))
    monkeypatch.setattr(generation, "theirs", lambda size, name: nullcontext(server()))
    monkeypatch.setattr(generation.StreamsClient, "measured", measured)
    report = reported(generation.BENCH, "--sizes", "large", "--repeats", "1")
    assert report.held
    assert report.tables[0].caption == "large: 8 layers of 1024, 16 streams at once"
    assert [row[0] for row in report.tables[0].rows] == ["headrace", "vllm", "vllm as it comes"]


def test_a_few_users_streams_are_compared_with_transformers_own_server(server, monkeypatch):
    """By each answer's own usage, its first text and the time that all took."""
    users = []

    async def streamed(url, model, many, answers):
        users.append((model == "llm", many, answers))
        return small_generation.Streamed(2.0, 100 * many, [0.3])

    monkeypatch.setattr(small_generation, "started", lambda side, size: nullcontext(server()))
    monkeypatch.setattr(small_generation, "streamed", streamed)
    monkeypatch.setattr(small_generation, "made", lambda size: f"/models/{size}")
    sides = (small_generation.TORCH, small_generation.TRANSFORMERS)
    report = reported(
        small_generation.BENCH, "--systems", *sides, "--sizes", "toy", "--users", "1", "2",
        "--repeats", "1",
    )  # fmt: skip
    assert report.held
    assert users == [(True, 1, 6), (True, 2, 6), (False, 1, 6), (False, 2, 6)]
    assert [table.caption for table in report.tables] == [
        "toy: 2 layers of 128, 1 user", "toy: 2 layers of 128, 2 users"
    ]  # fmt: skip
    assert report.tables[1].rows[0][:2] == (small_generation.TORCH, 100.0)


def test_the_simulator_is_judged_by_the_medians_of_all_seeds(monkeypatch):
    def compared(name, seed, changes):
        real, said = {50: 100.0, 90: 1.0, 99: 100.0}, {50: 80.0 + seed, 90: 1.0, 99: 90.0}
        return simulated_against_real.SimulatedAndReal(real, said, 1.0, 0.9, 1.0, 4.0, 0.5, 2.0)

    monkeypatch.setattr(simulated_against_real, "compared", compared)
    report = reported(simulated_against_real.BENCH)
    assert [verdict.measured for verdict in report.verdicts] == [
        "-18.0%", "+0.0%", "-10.0%", "-10.0%"
    ]  # fmt: skip
    assert [row[0] for row in report.tables[0].rows] == ["seed 1", "seed 2", "seed 3"]


def test_policies_are_judged_by_what_the_simulator_says(monkeypatch):
    tenant = {
        "offered": 9, "in_slo": 1.0, "p50_ms": 1.0, "p99_ms": 9.0, "wait_p99_ms": 1.0,
        "device_s": 4.0,
    }  # fmt: skip
    names = ("chat", "documents", "one", "two", "three", "four")
    tenants = {name: tenant | {"device_s": 1.0 + 3 * (name == "four")} for name in names}
    found = {
        "offered": 100, "seconds": 10.0, "in_slo": 0.995, "in_slo_per_s": 815.0, "p50_ms": 1.0,
        "p99_ms": 9.0, "rejected": 0, "reasons": {}, "retries": 0, "hedge_ratio": 0.0,
        "extra_work": 0.01, "longest_batch_ms": 2.0, "jain": 1.0, "tenants": tenants,
        "buckets": {e: {"offered": 9, "in_slo": 1.0} for e in ("32", "128", "512")},
        "time_series": {k: {"default": [1] * 60} for k in ("offered", "in_slo")},
        "left_over": {"rows": 0},
    }  # fmt: skip
    found["fifo"] = found
    asked = []
    monkeypatch.setattr(policies, "simulate", lambda path, more: (asked.append(more), found)[1])
    report = reported(policies.BENCH)
    assert ("--set", "arrivals.rate=8200") in asked
    broken = [verdict.claim for verdict in report.verdicts if not verdict.held]
    assert broken == ["hiccups: p99 at most half"]
    assert len(report.tables) == 5


def test_a_generator_without_wrk_is_measured_alone(server, monkeypatch):
    monkeypatch.setattr(generator, "trivial_server", lambda *_: nullcontext(server()))
    monkeypatch.setattr(generator.shutil, "which", lambda name: None)
    total = SimpleNamespace(offered=9, latency=SimpleNamespace(total=9))
    lag = SimpleNamespace(percentile_s=lambda percent: 1e-4)
    client = SimpleNamespace(lag=lag, cpu_us=90.0, behind="")
    record = SimpleNamespace(client=client, total=lambda: total)
    monkeypatch.setattr(generator, "played", lambda *_: record)
    monkeypatch.setattr(generator, "_us", lambda call, given: (call(given), 2.0)[1])
    report = reported(generator.BENCH, "--rates", "5000")
    assert [table.rows[0][0] for table in report.tables] == [5000.0, "a body rendered, oip"]
    assert report.held
