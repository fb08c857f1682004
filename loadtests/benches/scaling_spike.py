"""Bench: how long after the onset of a spike does a real server have enough capacity again?

`python -m loadtests.benches.scaling_spike`: one replica with a capacity of about 50/s gets a fifth
of that for `CALM_S`, and then 1.6 times that until the end. The cases differ in how the second
replica starts: from the model's files elsewhere (`cold`), from the converted artifact on the node
(`staged`), as a hot spare (`spare`), or as a replica of the shared pool (`pool`). There is enough
capacity from the time on at which every `WINDOW_S` seconds have at least 95 % of their arrivals
answered within the SLO; a refusal is a miss. Replicas report the phases of their starts: `process`
is from the beginning of the process until the model's own code runs (Ray's worker and all imports).

Promises: enough capacity comes at least five times sooner with the pool than cold, and at once
(within half a second) with a spare. One gateway; a row takes 20 ms on a device that sleeps or on
one thread, so that two processors suffice, which the client shares. The language model runs one
sequence at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from loadtests.benches.launched import RunningServer
from loadtests.benches.runner import Bench, BenchRun, Option, Options, Runs, say
from loadtests.benches.scenario_load import BenchScenario, measured, played
from loadtests.benches.server import Settings, command_line, example, headrace
from loadtests.client.player import PlayedRequest
from loadtests.client.protocols.open_inference import OpenInference
from loadtests.client.protocols.openai import Chat
from loadtests.client.protocols.types import Endpoint
from loadtests.results.report_table import BenchVerdict, Cell, Table, at_least, at_most, ratio
from loadtests.traffic import scenario_file
from loadtests.traffic.plan import Planned

COLD, STAGED, SPARE, POOL = "cold", "staged", "spare", "pool"
KINDS = (COLD, STAGED, SPARE, POOL)
DEVICE, MINILM, LLM = "device", "minilm", "llm"
HOME = Path("out/bench/spike")
CALM_S, SPIKE_S = 15.0, 45.0
SPARE_CALM_S = 45.0  # longer: a spare is added only once there is demand, and then has to start
CALM_SHARE, SPIKE_SHARE = 0.2, 1.6
BIN_S, WINDOW_S = 0.5, 5.0
MIN_IN_TIME = 0.95
MAX_REPLICAS = 2
MAX_ROWS = 4  # in a batch: short beside the SLO, and enough for the calm on one replica
HOT_S, LOOKS_S = 120.0, 1.0
MIN_FASTER = 5.0
LLM_SPIKE_S = 120.0  # longer, since its engine takes longer to start


@dataclass(frozen=True, slots=True)
class Piece:
    """A model, and the load that one of its replicas can take."""

    model: dict[str, Any]
    capacity: float  # of one replica, requests a second
    length: int  # of a row or prompt, tokens
    output: int = 0  # tokens of an answer; 0: the model does not generate
    slo_s: float = 1.0
    spike_s: float = SPIKE_S
    kinds: tuple[str, ...] = KINDS

    def request(self, url: str, name: str) -> Callable[[Planned], bytes]:
        """A function that renders requests to the server at `url`."""
        protocol: OpenInference | Chat = OpenInference(Endpoint(url, name))
        if self.output:
            protocol = Chat(Endpoint(url, name, extra={"ignore_eos": True}, stream=False))
        protocol.prepare()
        return protocol.request


def pieces(load_s: float) -> dict[str, Piece]:
    device = {
        "runtime": "synthetic",
        "lengths": {"max": 512},
        "options": {"base_ms": 0, "per_request_ms": 20, "load_s": load_s},
    }
    minilm = example(MINILM)["models"][MINILM]
    llm = example(LLM)["models"][LLM]
    llm = llm | {"options": llm["options"] | {"max_num_seqs": 1}}
    return {
        DEVICE: Piece(device, 50.0, 24),
        MINILM: Piece(minilm, 40.0, 128),
        LLM: Piece(llm, 4.5, 24, output=128, spike_s=LLM_SPIKE_S, kinds=(COLD, STAGED, SPARE)),
    }


@dataclass(frozen=True, slots=True)
class Spike:
    """The result of one spike. Tuples have an item for each `BIN_S` seconds after the onset."""

    model: str
    kind: str
    hot_before: int  # replicas that gateways could reach just before the onset, the pool's included
    kept: tuple[int, ...]  # of `offered`, requests that were answered within the SLO
    offered: tuple[int, ...]
    start_s: dict[str, float]  # seconds of each phase of the last start

    @property
    def missed(self) -> int:
        return sum(self.offered) - sum(self.kept)

    @property
    def enough_s(self) -> float:
        """Seconds from the onset until there was enough capacity; NaN if there never was."""
        size = round(WINDOW_S / BIN_S)
        starts = range(len(self.kept) - size + 1)
        short = [at for at in starts if not self._enough(slice(at, at + size))]
        back = short[-1] + 1 if short else 0
        return float("nan") if back == len(starts) else back * BIN_S

    def _enough(self, bins: slice) -> bool:
        return sum(self.kept[bins]) >= MIN_IN_TIME * sum(self.offered[bins])


def settings_of(name: str, piece: Piece, kind: str) -> Settings:
    replicas = {"min": 1, "max": MAX_REPLICAS, "threads": 1, "num_cpus": 0.1}
    if kind == SPARE:
        replicas["spare"] = 1
    pool = {"min": 1, "max": 1, "num_cpus": 0.1, "memory_mib": 2048}
    model = piece.model | {"replicas": replicas}
    if not piece.output:
        model |= {"slo": {"latency_ms": piece.slo_s * 1e3}, "batch": {"max_size": MAX_ROWS}}
    return {
        "models": {name: model},
        "gateway": {"replicas": 1},
        **({"scaling": {"pool": pool}} if kind == POOL else {}),
    }


def scenario_of(piece: Piece, share: float, seconds: float, settings: Settings) -> BenchScenario:
    """A scenario of so many seconds at a share of one replica's capacity."""
    scenario = scenario_file.check(
        {
            "duration_s": seconds,
            "arrivals": {"rate": piece.capacity * share},
            "lengths": _all(piece.length),
            **({"output": _all(piece.output)} if piece.output else {}),
        }
    )
    return BenchScenario(Path("spike"), (), scenario, settings)


def _all(length: int) -> dict[str, Any]:
    return {"bands": [{"share": 1, "low": length, "high": length}]}


def spiked(name: str, piece: Piece, kind: str) -> Spike:
    """Runs one spike on a server that starts with an empty cache."""
    home = HOME / f"{name}-{kind}"
    shutil.rmtree(home, ignore_errors=True)
    settings = settings_of(name, piece, kind)
    calm_s = SPARE_CALM_S if kind == SPARE else CALM_S
    calm = scenario_of(piece, CALM_SHARE, calm_s, settings)
    spike = scenario_of(piece, SPIKE_SHARE, piece.spike_s, settings)
    with headrace(settings, name=f"spike-{name}-{kind}", home=home) as running:
        until_hot(running)
        if kind == COLD:
            shutil.rmtree(home / "cache" / "headrace" / "staged", ignore_errors=True)
        render = piece.request(running.url, name)
        played(calm, running.url, lambda url: render)
        hot = status_of(running)["replicas_ready"]
        ends, _ = played(spike, running.url, lambda url: render)
        start_s = status_of(running)["start_s"]
    shutil.rmtree(home, ignore_errors=True)
    found = by_bin(measured(spike, ends), piece)
    return replace(found, model=name, kind=kind, hot_before=hot, start_s=start_s)


def by_bin(ends: Sequence[PlayedRequest], piece: Piece) -> Spike:
    offered: Counter[int] = Counter()
    kept: Counter[int] = Counter()
    for end in ends:
        at = int(end.planned.at_s / BIN_S)
        offered[at] += 1
        kept[at] += end.ok and end.latency_s <= piece.slo_s
    bins = range(round(piece.spike_s / BIN_S))
    kept_at, offered_at = (tuple(each[at] for at in bins) for each in (kept, offered))
    return Spike("", "", 0, kept_at, offered_at, {})


def status_of(running: RunningServer) -> dict[str, Any]:
    """The status of the server's only model."""
    port = running.url.rpartition(":")[2]
    state = HOME / running.name.removeprefix("spike-") / "state"
    command = [*command_line(), "status", "--json", "--port", port]
    environ = {**os.environ, "XDG_STATE_HOME": str(state.absolute())}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environ)
    found: dict[str, Any] = json.loads(done.stdout)["models"][0]
    return found


def until_hot(running: RunningServer) -> None:
    """Raises TimeoutError."""
    end = time.monotonic() + HOT_S
    while time.monotonic() < end:
        with contextlib.suppress(subprocess.CalledProcessError):
            if status_of(running)["replicas_ready"]:
                return
        time.sleep(LOOKS_S)
    raise TimeoutError(f"{running.name} has no hot replica")


# ---- the report ---------------------------------------------------------------------------------


def runs(options: Options) -> Iterator[BenchRun]:
    known = pieces(options.load_s)
    for _ in range(options.repeats):
        for name in options.models:
            for kind in (kind for kind in options.kinds if kind in known[name].kinds):
                spike = spiked(name, known[name], kind)
                phases = ", ".join(f"{p} {s:.1f}" for p, s in spike.start_s.items())
                say(f"{name} {kind}: {spike.hot_before} hot, enough after {spike.enough_s:g} s, "
                    f"{spike.missed} missed of {sum(spike.offered)}; start: {phases}")  # fmt: skip
                yield BenchRun(kind, spike, name)


def tables(done: Runs, options: Options) -> Iterator[Table]:
    for name in options.models:
        kinds = [kind for kind in options.kinds if done.of(kind, name).results]
        rows = tuple(_row(kind, done.of(kind, name)) for kind in kinds)
        headers = ("capacity from", "hot before", "enough after s", "least–most", "missed", "of")
        yield Table(f"{name}: a spike to 1.6 of one replica's capacity", headers, rows)
        spikes = [each for kind in kinds for each in done.of(kind, name).results]
        phases = list(dict.fromkeys(phase for each in spikes for phase in each.start_s))
        cells = tuple(
            (each.kind, *(each.start_s.get(phase, 0.0) for phase in phases)) for each in spikes
        )
        yield Table(f"{name}: the last start, s by phase", ("capacity from", *phases), cells)


def _row(kind: str, mine: Runs) -> tuple[Cell, ...]:
    return (
        kind, mine.median("hot_before"), mine.median("enough_s"), mine.spread("enough_s"),
        mine.median("missed"), mine.median(lambda spike: sum(spike.offered)),
    )  # fmt: skip


def bars(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    for name in options.models:
        mine = {kind: done.of(kind, name) for kind in options.kinds}
        enough_s = {k: found.median("enough_s") for k, found in mine.items() if found.results}
        if COLD in enough_s and POOL in enough_s:
            claim = f"{name}: with the pool at least {MIN_FASTER:g} times sooner than cold"
            pool_s = max(enough_s[POOL], BIN_S)  # at once is less than a bin
            yield at_least(claim, ratio(enough_s[COLD], pool_s), MIN_FASTER)
        if SPARE in enough_s:
            yield at_most(f"{name}: with a spare at once", enough_s[SPARE], BIN_S, " s")


BENCH = Bench(
    name="scaling_spike",
    about=__doc__,
    title="From a spike to enough capacity",
    options={
        "models": Option([DEVICE, MINILM], choices=(DEVICE, MINILM, LLM)),
        "kinds": Option(list(KINDS), choices=KINDS),
        "repeats": Option(1),
        "load_s": Option(10.0, "of the synthetic device (%(default)s)"),
    },
    measure=runs,
    tables=tables,
    bars=bars,
    notes=(
        "A generating model is in no pool: its engine owns its process. The device's `load_s` "
        "stands for reading weights, which no cache on the node shortens.",
    ),
    record=asdict,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
