"""Bench: how much do copies reduce tail latency where replicas stall, and what do they cost?

`python -m loadtests.benches.tails`: two gateways and three replicas of a synthetic device that
stalls for 300 ms now and then, independently, as garbage collection or a throttled device would.
The same arrivals go in turn to a model without copies (`hedge.mode: off`), with copies of batches
that take long (`hedge`), and with copies also of batches staged behind another (`tied`). A model
that generates follows, without and with copies of requests whose first token takes long; its
latency is the time to the first token. Every mode has replicas of its own.

Promises: with copies, p99 is at most 0.35 of p99 without (streams: 0.16), p99.9 is no worse, extra
work is at most 3 % (batches whose rows another one answered; prompts that two replicas read), and
no request fails.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from loadtests.benches import metrics_page
from loadtests.benches.played import percentile, played, speaking
from loadtests.benches.runner import (
    Bench,
    BenchOption,
    BenchRun,
    Options,
    Runs,
    in_turn,
    spread,
    total,
)
from loadtests.benches.server import SETTINGS_DIR, RunningServer, Settings, headrace
from loadtests.client.player import PlayedRequest
from loadtests.client.protocols.open_inference import OpenInference
from loadtests.client.protocols.openai import Completions
from loadtests.client.protocols.types import Endpoint
from loadtests.results.report_table import BenchVerdict, Cell, at_most, ratio
from loadtests.traffic import scenario_file

GATEWAYS, REPLICAS = 2, 3
WARMUP_S = 5.0
OFF = "off"
MAX_P999, MAX_EXTRA = 1.0, 0.03
COUNTERS = ("hedges", "hedges_won", "ties", "probes", "retries")
ENDS = ("answered", "unused", "dropped")
_STALLS = {"hiccup_ms": 300, "hiccup_seed": 1}
_LENGTHS = {"bands": [{"share": 1, "low": 8, "high": 32}]}
_REPLICAS = {"count": REPLICAS, "num_cpus": 0.05}


@dataclass(frozen=True, slots=True)
class StallingKind:
    """A kind of model whose replicas stall."""

    modes: tuple[str, ...]
    settings: Settings  # of each model; each mode has one
    work_s: float  # a replica's seconds for a request, its share of stalls included
    scenario: Mapping[str, Any]
    wire: type[OpenInference] | type[Completions]
    # Ends of leases whose work another lease did too, and the part of a request's work that was
    # done twice.
    twice: Mapping[str, float]
    max_p99: float

    def server(self, modes: list[str]) -> Settings:
        models = {mode: {**self.settings, "hedge": {"mode": mode}} for mode in modes}
        return {"models": models, "gateway": {"replicas": GATEWAYS}}


BATCHES = StallingKind(
    modes=(OFF, "hedge", "tied"),
    settings={
        "runtime": "synthetic",
        "slo": {"latency_ms": 2000},
        "lengths": {"max": 64, "buckets": [64]},
        "batch": {"max_size": 8},
        "profile_s": 1,
        "replicas": _REPLICAS,
        "options": {"base_ms": 15, "per_request_ms": 1, "hiccup_every": 50, **_STALLS},
    },
    work_s=0.015 + 0.001 + 0.3 / 50,
    scenario={"lengths": _LENGTHS},
    wire=OpenInference,
    twice={"unused": 1.0},
    max_p99=0.35,
)
_SEQUENCES, _PROMPT, _OUTPUT = 8, 20, 16  # sequences; tokens of a prompt (mean) and of an output
_STEPS = 500  # from one stall to the next
STREAMS = StallingKind(
    modes=(OFF, "hedge"),
    settings={
        "runtime": "synthetic",
        "task": "generate",
        "slo": {"ttft_ms": 2000},
        "lengths": {"max": 256},
        "replicas": _REPLICAS,
        "options": {
            "base_ms": 10, "max_sequences": _SEQUENCES, "hiccup_every": _STEPS, **_STALLS,
        },
    },
    work_s=_OUTPUT * (0.010 + 0.3 / _STEPS) / _SEQUENCES,  # all sequences share a step
    scenario={"lengths": _LENGTHS, "output": {"fixed": _OUTPUT}},
    wire=Completions,
    twice={"unused": 1.0, "dropped": (_PROMPT + 2) / (_PROMPT + 2 * _OUTPUT)},
    max_p99=0.16,
)  # fmt: skip
KINDS = {"batches": BATCHES, "streams": STREAMS}


@dataclass(frozen=True, slots=True)
class TailTrial:
    """The result of one load. `counts`: increases of the gateways' counters, among them batches (or
    streams) by how they ended."""

    ends: list[PlayedRequest]
    counts: Mapping[str, float]

    @property
    def offered(self) -> int:
        return len(self.ends)

    @property
    def failed(self) -> int:
        return sum(not end.ok for end in self.ends)

    @property
    def copies(self) -> float:
        return self.counts["hedges"] + self.counts["ties"]

    def record(self) -> dict[str, Any]:
        failures = Counter(str(end.trouble or end.status) for end in self.ends if not end.ok)
        times = {f"p{p:g}": percentile_of([self], p) for p in (50, 90, 99, 99.9, 100)}
        counts = dict(self.counts)
        return {"offered": self.offered, "failures": failures, "counts": counts, "ms": times}


def percentile_of(trials: list[TailTrial], percent: float) -> float:
    """In ms, over all trials' requests, since a tail needs many."""
    every = [end for trial in trials for end in trial.ends if end.ok]
    return percentile([1e3 * taken_s(end) for end in every], percent)


def taken_s(end: PlayedRequest) -> float:
    """Seconds to the first token if the answer has tokens, else to the answer's end."""
    if end.heard is None or end.heard.first_s is None:
        return end.latency_s
    return end.heard.first_s - end.planned.at_s


def extra_work(kind: StallingKind, trials: list[TailTrial]) -> float:
    """Work of leases whose rows another lease answered, over the work that answered: batches that
    ran in vain; of streams, prompts that were read again and one token each, in weighted tokens."""
    answered = sum(trial.counts["answered"] for trial in trials)
    twice = sum(share * trial.counts[end] for trial in trials for end, share in kind.twice.items())
    return twice / answered if answered else float("nan")


def counts_of(samples: list[metrics_page.MetricSample], model: str) -> dict[str, float]:
    """A model's counters, summed over the gateways."""
    own = [sample for sample in samples if sample.labels.get("model") == model]
    ends = metrics_page.by_label(own, "headrace_batches_total", "end")
    counters = {name: metrics_page.total(own, f"headrace_{name}_total") for name in COUNTERS}
    return counters | {end: ends.get(end, 0.0) for end in ENDS}


# ---- runs ----------------------------------------------------------------------------------------


def runs(options: Options) -> Iterator[BenchRun]:
    for name in options.kinds:
        kind = KINDS[name]
        modes = [mode for mode in kind.modes if mode in options.modes]
        if not modes:
            continue
        with headrace(kind.server(modes), name=f"tails-{name}") as running:
            for repeat, mode in in_turn(modes, options.repeats):
                yield BenchRun(mode, trial(running, name, mode, options, repeat), name)


def trial(running: RunningServer, name: str, mode: str, options: Options, repeat: int) -> TailTrial:
    """One load on one model. All modes of a repeat get the same arrivals."""
    kind = KINDS[name]
    scenario = scenario_file.check(
        {
            **kind.scenario,
            "seed": 1 + repeat,
            "warmup_s": WARMUP_S,
            "duration_s": options.seconds,
            "arrivals": {"rate": options.load * REPLICAS / kind.work_s},
        }
    )
    gateway = yaml.safe_load((SETTINGS_DIR / f"tails-{name}.yaml").read_text())["gateway"]
    ports = range(gateway["metrics_port"], gateway["metrics_port"] + GATEWAYS)

    def counts() -> dict[str, float]:
        pages = [metrics_page.fetch(f"http://127.0.0.1:{port}") for port in ports]
        return counts_of([sample for page in pages for sample in page], mode)

    before = counts()
    stand = speaking(kind.wire(Endpoint(running.url, mode)))
    found = played(running, scenario, stand, slo_s=2.0)
    after = counts()
    return TailTrial(list(found.ends), {each: after[each] - n for each, n in before.items()})


# ---- the report ----------------------------------------------------------------------------------


def pooled(percent: float) -> tuple[str, Any]:
    return f"p{percent:g} ms", lambda mine: percentile_of(mine.results, percent)


def extra(mine: Runs) -> Cell:
    return f"{extra_work(KINDS[mine[0].case], mine.results):.1%}"


def caption(name: str, options: Options) -> str:
    rate = options.load * REPLICAS / KINDS[name].work_s
    what = "to the first token, " if KINDS[name] is STREAMS else ""
    return f"{name}, {what}{rate:.0f} requests/s, {options.load:.0%} busy"


def thresholds(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    for name in options.kinds:
        kind, without = KINDS[name], done.of(OFF, name).results
        for mode in [each for each in kind.modes if each != OFF and each in options.modes]:
            mine = done.of(mode, name).results
            for percent, most in ((99, kind.max_p99), (99.9, MAX_P999)):
                times = ratio(percentile_of(mine, percent), percentile_of(without, percent))
                claim = f"{name}, {mode}: p{percent:g} of that without copies, at most {most:g}"
                yield at_most(claim, times, most, " ×")
            claim = f"{name}, {mode}: extra work, at most {MAX_EXTRA:.0%}"
            yield at_most(claim, extra_work(kind, mine), MAX_EXTRA)
    yield at_most("requests that failed", done.total("failed"), 0)


BENCH = Bench(
    name="tails",
    about=__doc__,
    title="What a stall costs callers, and what copies cost",
    options={
        "seconds": BenchOption(25.0, "of each run"),
        "repeats": BenchOption(2, "of every mode"),
        "load": BenchOption(0.45, "share of the replicas' time"),
        "kinds": BenchOption(list(KINDS), choices=KINDS),
        "modes": BenchOption(list(BATCHES.modes), choices=BATCHES.modes),
    },
    measure=runs,
    columns=(
        ("requests", total("offered")),
        *(pooled(percent) for percent in (50, 99, 99.9)),
        ("p99 ms, least–most", spread(lambda trial: percentile_of([trial], 99))),
        ("copies", total("copies")),
        ("extra work", extra),
        ("failed", total("failed")),
    ),
    caption=caption,
    thresholds=thresholds,
    notes=(
        "Percentiles are over all repeats together. Batches take 15 ms and 1 ms a row, one in "
        "fifty 300 ms more; streams have 16 tokens at 10 ms a step, one step in 500 takes 300 ms "
        "more. What a replica had begun to stream when it stalled waits for it all the same.",
    ),
    record=TailTrial.record,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
