"""A model that generates is simulated with an engine, and shown by its tokens."""

from __future__ import annotations

from io import StringIO
from math import inf
from pathlib import Path

import pytest
from rich.console import Console

from deployments.settings.plain import parse
from deployments.tools.simulate.command import show, show_beside
from deployments.tools.simulate.sim_setup import Prompts, SimSetupError, set_up
from deployments.tools.simulate.simulation import SimulateOptions, prepare
from loadtests.traffic.plan import Planned
from loadtests.traffic.scenario_file import check

SCENARIOS = Path(__file__).parents[4] / "loadtests" / "scenarios"
MODEL = {"runtime": "synthetic", "task": "generate", "lengths": {"max": 4096}}
SCENARIO = {
    "settings": "x",
    "duration_s": 10,
    "arrivals": {"rate": 10},
    "lengths": {"fixed": 100},
    "output": {"fixed": 50},
    "engine": {"cache_tokens": 5000, "max_sequences": 8, "base_ms": 10},
}


def setup(model=None, **changed):
    return set_up(check(SCENARIO | changed), parse({"models": {"m": MODEL | (model or {})}}))


def result(*changes, fifo=False):
    simulation = prepare(
        SCENARIOS / "generation-mix.yaml", SimulateOptions(("duration_s=10", *changes))
    )
    return simulation, simulation.run(lambda now, requests: None, fifo=fifo)


def test_core_is_told_of_the_engine_what_a_replica_would_say():
    made = setup({"slo": {"ttft_ms": 300, "tpot_ms": 30}})
    core = made.core
    assert core.generation is not None
    assert (core.slo_s, core.generation.tpot_s, core.generation.block_tokens) == (0.3, 0.03, 16)
    assert core.generation.profile[0] == (1, 1, pytest.approx(0.0101))
    assert core.bucket_edges[-1] == 4096
    assert made.engine.cache_tokens == 5000


def test_first_tokens_and_each_one_after_are_shown():
    simulation, end = result()
    assert simulation.left_out == []
    assert all(device.engine is not None for device in simulation.devices)
    total = end.summary.total()
    assert total.first.total == total.latency.total > 50
    assert end.as_json()["tenants"]["chat"]["first_p99_ms"] > 0
    assert not any(end.left_over.values())
    out = StringIO()
    show("mix", end, Console(file=out, width=120))
    show_beside("the same", end, Console(file=out, width=120))
    assert "first p99" in out.getvalue()


def test_the_same_runs_straight_to_the_engines():
    _, end = result(fifo=True)
    assert end.summary.total().first.total > 50
    assert not any(end.left_over.values())


def test_first_token_is_what_is_due():
    _, end = result("settings.models.writer.slo.ttft_ms=1000")
    writers = end.summary.tenants()["writers"]
    assert writers.latency.percentile_s(50) > 5.0
    assert writers.in_slo_share > 0.9


def test_models_without_an_engine_and_engines_without_a_model_are_refused():
    with pytest.raises(SimSetupError, match="device: must be left out; m generates"):
        setup(device={"base_ms": 1})
    with pytest.raises(SimSetupError, match="engine: must be left out; m generates nothing"):
        setup({"task": "tensors"})
    with pytest.raises(SimSetupError, match="is 100; must hold a request of 4096 tokens"):
        setup(engine={"cache_tokens": 100})


def planned(**more):
    return Planned(0.0, "default", (100,), **({"output": 50} | more))


def prompts(**tenant):
    return Prompts(check(SCENARIO | {"tenants": {"default": tenant}}), 4096, 16)


def test_requests_ask_for_what_they_come_to_unless_the_scenario_says_more():
    generation, output = prompts().asked(planned(), 100)
    assert (generation.max_tokens, output) == (50, 50)
    generation, output = prompts(max_tokens=1000).asked(planned(), 100)
    assert (generation.max_tokens, output) == (1000, 50)
    generation, output = prompts(max_tokens=1000).asked(planned(output=5000), 4000)
    assert (generation.max_tokens, output) == (96, 96)


def shared(first, second):
    return sum(a == b for a, b in zip(first.blocks, second.blocks, strict=True))


def test_prompts_begin_alike_as_far_as_tenant_and_session_say():
    asks = prompts(prefix_tokens=48)
    first, second = (asks.asked(planned(), 160)[0] for _ in range(2))
    assert shared(first, second) == 3
    first, second = (asks.asked(planned(session="s"), 160)[0] for _ in range(2))
    assert shared(first, second) == 3 + 3
    assert len(set(first.blocks)) == len(first.blocks) == 10
    assert first.max_tokens < inf


ENGINES = """
models:
  m:
    runtime: synthetic
    task: generate
    lengths: {max: 2048}
    slo: {ttft_ms: 1000}
    replicas:
      groups:
        - {name: fast, options: {base_ms: 5, per_sequence_us: 100, per_prefill_token_us: 20,
                                 max_sequences: 8, cache_tokens: 8000}}
        - {name: slow, options: {base_ms: 40, per_sequence_us: 800, per_prefill_token_us: 160,
                                 max_sequences: 8, cache_tokens: 4000}}
"""
ASKED = """
settings: settings.yaml
duration_s: 12
warmup_s: 3
arrivals: {rate: 10}
lengths: {bands: [{share: 1, low: 100, high: 600}]}
output: {bands: [{share: 1, low: 20, high: 200}]}
"""


def generated(tmp_path, rate):
    (tmp_path / "settings.yaml").write_text(ENGINES)
    (tmp_path / "asked.yaml").write_text(ASKED)
    changes = SimulateOptions((f"arrivals.rate={rate}",))
    return prepare(tmp_path / "asked.yaml", changes).run(lambda now, requests: None)


def test_engines_of_two_groups_share_a_queue_and_lose_nothing(tmp_path):
    end = generated(tmp_path, 14)
    assert not any(end.left_over.values())
    (core,) = end.cores
    speeds = {group.name: group.speed for group in core.groups}
    assert speeds["fast"] == 1.0
    assert 0.02 < speeds["slow"] < 0.6
    total = end.summary.total()
    assert total.latency.total > 0.9 * total.offered


def test_the_slower_engines_are_spared_while_the_faster_ones_have_room(tmp_path):
    end = generated(tmp_path, 2)
    assert end.summary.total().first.percentile_s(50) < 0.1
