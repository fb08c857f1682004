"""Sends one load to replicas that stall now and then, and evaluates the answers.

A *kind* is a model that runs batches or one that streams. Its server has a model for each mode to
compare, with replicas of its own and otherwise equal settings, so that modes can take turns without
a restart. A *trial* is Poisson arrivals to one model, at a share of its replicas' capacity, stalls
included. Latencies count from when a request was due to be sent, to the answer (batches) or to the
first token (streams). Work that was done twice is read from the counters of each gateway, at its
own port.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from loadtests.benches import metrics_page
from loadtests.benches.metrics_page import MetricSample
from loadtests.benches.server import SETTINGS_DIR, Settings, headrace
from loadtests.client.http1 import Target
from loadtests.client.player import PlayedRequest, PlayerSettings, play
from loadtests.client.protocols.open_inference import OpenInference
from loadtests.client.protocols.openai import Completions
from loadtests.client.protocols.types import Endpoint
from loadtests.traffic import scenario_file
from loadtests.traffic.plan import TrafficPlan

GATEWAYS, REPLICAS = 2, 3
WARMUP_S = 5.0
SEED = 18

COUNTERS = ("hedges", "hedges_won", "ties", "probes", "retries")
ENDS = ("answered", "unused", "dropped")


@dataclass(frozen=True, slots=True)
class StallingKind:
    """A kind of model whose replicas stall."""

    name: str
    modes: Mapping[str, Settings]  # changes to the model's settings, by mode
    settings: Settings  # of each model
    work_s: float  # a replica's seconds for a request, its share of stalls included
    scenario: Mapping[str, Any]
    wire: type[OpenInference] | type[Completions]
    # Ends of leases whose work another lease did too, and the part of a request's work that was
    # done twice.
    twice: Mapping[str, float]

    def rate(self, load: float) -> float:
        """Requests a second that keep the replicas busy for the share `load` of the time."""
        return load * REPLICAS / self.work_s

    def server(self, modes: Sequence[str]) -> Settings:
        models = {mode: {**self.settings, **self.modes[mode]} for mode in modes}
        return {"models": models, "gateway": {"replicas": GATEWAYS}}


_STALLS = {"hiccup_ms": 300, "hiccup_seed": 1}
_ROWS = {"bands": [{"share": 1, "low": 8, "high": 32}]}
BATCHES = StallingKind(
    name="batches",
    modes={mode: {"hedge": {"mode": mode}} for mode in ("off", "hedge", "tied")},
    settings={
        "runtime": "synthetic",
        "slo": {"latency_ms": 2000},
        "lengths": {"max": 64, "buckets": [64]},
        "batch": {"max_size": 8},
        "profile_s": 1,
        "replicas": {"count": REPLICAS, "num_cpus": 0.05},
        "options": {"base_ms": 15, "per_request_ms": 1, "hiccup_every": 50, **_STALLS},
    },
    work_s=0.015 + 0.001 + 0.3 / 50,
    scenario={"lengths": _ROWS},
    wire=OpenInference,
    twice={"unused": 1.0},
)
_SEQUENCES, _PROMPT, _OUTPUT = 8, 20, 16  # sequences; tokens of a prompt (mean) and of an output
_STEPS = 500  # from one stall to the next
STREAMS = StallingKind(
    name="streams",
    modes={mode: {"hedge": {"mode": mode}} for mode in ("off", "hedge")},
    settings={
        "runtime": "synthetic",
        "task": "generate",
        "slo": {"ttft_ms": 2000},
        "lengths": {"max": 256},
        "replicas": {"count": REPLICAS, "num_cpus": 0.05},
        "options": {
            "base_ms": 10, "max_sequences": _SEQUENCES, "hiccup_every": _STEPS, **_STALLS,
        },
    },
    work_s=_OUTPUT * (0.010 + 0.3 / _STEPS) / _SEQUENCES,  # all sequences share a step
    scenario={"lengths": _ROWS, "output": {"fixed": _OUTPUT}},
    wire=Completions,
    twice={"unused": 1.0, "dropped": (_PROMPT + 2) / (_PROMPT + 2 * _OUTPUT)},
)  # fmt: skip
KINDS = {kind.name: kind for kind in (BATCHES, STREAMS)}


@dataclass(frozen=True, slots=True)
class TailTrial:
    """The result of one load."""

    offered: int
    times_ms: np.ndarray[Any, Any]  # latencies of answered requests
    failures: Mapping[str, int]
    # Increases of the gateways' counters; among them batches (or streams), by how they ended.
    counts: Mapping[str, float] = field(default_factory=dict)

    @property
    def failed(self) -> int:
        return sum(self.failures.values())

    @property
    def copies(self) -> float:
        return self.counts["hedges"] + self.counts["ties"]

    def record(self) -> dict[str, Any]:
        return {
            "offered": self.offered,
            "failures": dict(self.failures),
            "counts": dict(self.counts),
            "ms": {f"p{p:g}": percentile_of([self], p) for p in (50, 90, 99, 99.9, 100)},
        }


def percentile_of(trials: Sequence[TailTrial], percent: float) -> float:
    """A percentile over all trials' requests, since a tail needs many; NaN if there are none."""
    times = [trial.times_ms for trial in trials]
    every = np.concatenate(times) if times else np.empty(0)
    return float(np.percentile(every, percent)) if every.size else float("nan")


def extra_work(kind: StallingKind, trials: Sequence[TailTrial]) -> float:
    """Work of leases whose rows another lease answered, over the work that answered.

    For batches, this is batches that ran in vain. For streams, it is prompts that were read again
    and one token each, in weighted tokens.
    """
    answered = sum(trial.counts["answered"] for trial in trials)
    ends = kind.twice.items()
    twice = sum(share * trial.counts[end] for trial in trials for end, share in ends)
    return twice / answered if answered else float("nan")


@dataclass(frozen=True, slots=True)
class TailServer:
    kind: StallingKind
    url: str
    metrics_port: int

    def play(self, mode: str, load: float, seconds: float, repeat: int) -> TailTrial:
        """Runs a trial. All modes of a repeat get the same arrivals."""
        scenario = scenario_file.check(
            {
                **self.kind.scenario,
                "seed": SEED + repeat,
                "warmup_s": WARMUP_S,
                "duration_s": seconds,
                "arrivals": {"rate": self.kind.rate(load)},
            }
        )
        wire = self.kind.wire(Endpoint(self.url, mode))
        stand = PlayerSettings(Target.parse(self.url), wire.request, wire.listener)
        ends: list[PlayedRequest] = []
        before = self._counts(mode)
        play(TrafficPlan(scenario, Path()), stand, ends.append)
        after = self._counts(mode)
        grown = {name: after[name] - count for name, count in before.items()}
        return trial_of([end for end in ends if end.planned.at_s >= WARMUP_S], grown)

    def _counts(self, mode: str) -> dict[str, float]:
        ports = range(self.metrics_port, self.metrics_port + GATEWAYS)
        pages = [metrics_page.fetch(f"http://127.0.0.1:{port}") for port in ports]
        return counts_of([sample for page in pages for sample in page], mode)


@contextmanager
def serving(kind: StallingKind, modes: Sequence[str]) -> Iterator[TailServer]:
    name = f"tails-{kind.name}"
    with headrace(kind.server(modes), name=name) as running:
        gateway = yaml.safe_load((SETTINGS_DIR / f"{name}.yaml").read_text())["gateway"]
        yield TailServer(kind, running.url, gateway["metrics_port"])


def counts_of(samples: Sequence[MetricSample], model: str) -> dict[str, float]:
    """A model's counters, summed over the gateways."""
    own = [sample for sample in samples if sample.labels.get("model") == model]
    ends = metrics_page.by_label(own, "headrace_batches_total", "end")
    counters = {name: metrics_page.total(own, f"headrace_{name}_total") for name in COUNTERS}
    return counters | {end: ends.get(end, 0.0) for end in ENDS}


def trial_of(ends: Sequence[PlayedRequest], counts: Mapping[str, float]) -> TailTrial:
    times = [taken_s(end) for end in ends if end.ok]
    failures = Counter(str(end.trouble or end.status) for end in ends if not end.ok)
    return TailTrial(len(ends), np.array(times) * 1e3, failures, counts)


def taken_s(end: PlayedRequest) -> float:
    """Seconds to the first token if the answer has tokens, else to the answer's end."""
    if end.heard is None or end.heard.first_s is None:
        return end.latency_s
    return end.heard.first_s - end.planned.at_s
