"""Bench: how long does the first caller of a sleeping model wait, and does anything else wake it?

`python -m loadtests.benches.scale_to_zero --asleep-s 3600`: serves a synthetic model with `min: 0`
that takes `--load-s` to load. First, several times, the model falls asleep and one request wakes
it. Then 50 requests come at once, with long deadlines. Then the model gets no requests for
`--asleep-s`, while the registry, the autoscaler and the gateway are killed in turn and pages about
the model are read every second. Every request must be answered; several replicas must wake for the
50 requests, and none while there are no requests.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from statistics import median

from loadtests.benches.launched import RunningServer, get_status
from loadtests.benches.processes import marked
from loadtests.benches.runner import Bench, BenchRun, Option, Options, Runs, say
from loadtests.benches.server import Settings, headrace
from loadtests.results.report_table import BenchVerdict, Table, at_least, at_most

FIRST, FIFTY, ALONE = "first request", "fifty at once", "left alone"
CALLERS = 50
WAIT_S = 120.0
LOOKS_S = 0.1
MAX_REPLICAS = 4
BODY = {"inputs": [{"name": "ids", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]}]}
PAGES = ("metrics", "v2/models/sleepy", "v2/models/sleepy/ready", "v1/models", "readyz")
KILLED = ("ray::RegistryActor", "ray::AutoscalerActor", "ray::ServeReplica:gateway:",
          "ray::ServeReplica:model-sleepy:anchor")  # fmt: skip
REPLICA = "ray::ServeReplica:model-sleepy:model"


@dataclass(frozen=True, slots=True)
class Awakening:
    """One wake-up by one or more requests."""

    first_s: float  # from the first request to the first answer
    last_s: float  # from the first request to the last answer
    replicas: int  # that ran at once, at most
    lost: int  # requests without a right answer


@dataclass(frozen=True, slots=True)
class Rest:
    """The time without requests."""

    seconds: float
    killed: int  # processes
    pages: int  # of `asked`, pages that were answered with 200
    asked: int
    woken: int  # replicas that were seen


def settings(options: Options) -> Settings:
    sleepy = {
        "runtime": "synthetic",
        "options": {"base_ms": 100, "load_s": options.load_s},
        "batch": {"max_size": 1},
        "slo": {"latency_ms": 500, "timeout_ms": 1000 * WAIT_S},
        "replicas": {"min": 0, "max": MAX_REPLICAS, "num_cpus": 0.1},
        "scaling": {"policy": "scale-to-zero", "idle_s": options.idle_s},
    }
    return {"models": {"sleepy": sleepy}}


# ---- what is there -------------------------------------------------------------------------------


def pids(running: RunningServer, title: str) -> set[int]:
    return {p.pid for p in marked(running.mark) if " ".join(p.cmdline()).startswith(title)}


def until_asleep(running: RunningServer, limit_s: float = 120.0) -> None:
    end = time.perf_counter() + limit_s
    while pids(running, REPLICA):
        if time.perf_counter() > end:
            raise RuntimeError(f"the model does not sleep after {limit_s:g} s")
        time.sleep(LOOKS_S)


# ---- awakenings ----------------------------------------------------------------------------------


def asked(running: RunningServer) -> float | None:
    """Seconds to a right answer; None if there was a wrong answer or none."""
    began = time.perf_counter()
    request = urllib.request.Request(
        f"{running.url}/v2/models/sleepy/infer",
        json.dumps(BODY).encode(),
        {"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            right = json.load(answer)["outputs"][0]["data"] == [3.0]
    except (urllib.error.URLError, TimeoutError) as wrong:
        say(f"no answer: {wrong}")
        return None
    return time.perf_counter() - began if right else None


def awakening(running: RunningServer, callers: int) -> Awakening:
    until_asleep(running)
    most = 0
    with ThreadPoolExecutor(callers) as pool:
        answers = [pool.submit(asked, running) for _ in range(callers)]
        while not all(answer.done() for answer in answers):
            most = max(most, len(pids(running, REPLICA)))
            time.sleep(LOOKS_S)
    took = sorted(seconds for answer in answers if (seconds := answer.result()) is not None)
    first_s, last_s = (took[0], took[-1]) if took else (WAIT_S, WAIT_S)
    return Awakening(first_s, last_s, most, callers - len(took))


# ---- left alone ----------------------------------------------------------------------------------


def rest(running: RunningServer, seconds: float) -> Rest:
    """Kills each of `KILLED` in turn, at equal intervals, and reads pages meanwhile."""
    until_asleep(running)
    began, woken, killed, pages, questions = time.perf_counter(), set[int](), 0, 0, 0
    due = [began + seconds * (number + 1) / (len(KILLED) + 2) for number in range(len(KILLED))]
    while (now := time.perf_counter()) < began + seconds:
        if killed < len(due) and now >= due[killed]:
            for process in marked(running.mark):
                if " ".join(process.cmdline()).startswith(KILLED[killed]):
                    process.kill()
            say(f"killed {KILLED[killed]}")
            killed += 1
        for page in PAGES:
            questions += 1
            pages += get_status(f"{running.url}/{page}") == 200
        woken |= pids(running, REPLICA)
        time.sleep(1.0)
    return Rest(seconds, killed, pages, questions, len(woken))


# ---- the bench -----------------------------------------------------------------------------------


def runs(options: Options) -> Iterator[BenchRun]:
    with headrace(settings(options), name="scale-to-zero") as running:
        for _ in range(options.repeats):
            yield BenchRun(FIRST, awakening(running, 1))
            yield BenchRun(FIFTY, awakening(running, CALLERS))
        yield BenchRun(ALONE, rest(running, options.asleep_s))
        yield BenchRun(FIRST, awakening(running, 1))


def tables(done: Runs, options: Options) -> Iterator[Table]:
    rows = [
        (
            side, mine.median("first_s"), mine.spread("first_s"), mine.median("last_s"),
            mine.median("replicas"), int(mine.total("lost")),
        )
        for side in (FIRST, FIFTY)
        for mine in (done.of(side),)
    ]  # fmt: skip
    headers = ("from zero", "first answer, s", "least–most", "last answer, s", "woken", "lost")
    yield Table(f"A model that loads for {options.load_s:g} s", headers, tuple(rows))
    (alone,) = done.of(ALONE).results
    row = (alone.seconds, alone.killed, alone.asked, alone.asked - alone.pages, alone.woken)
    left = ("asleep, s", "processes killed", "pages asked for", "unanswered", "replicas woken")
    yield Table("Left alone", left, (row,))


def bars(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    awakenings = [*done.of(FIRST).results, *done.of(FIFTY).results]
    yield at_most("no request lost", sum(each.lost for each in awakenings), 0)
    woken = median([each.replicas for each in done.of(FIFTY).results])
    yield at_least("fifty at once wake several replicas", woken, 2)
    (alone,) = done.of(ALONE).results
    yield at_most("replicas woken while it was left alone", alone.woken, 0)


BENCH = Bench(
    name="scale_to_zero",
    about=__doc__,
    title="Scale to zero",
    options={
        "repeats": Option(3),
        "load_s": Option(1.0, "that loading the model takes"),
        "idle_s": Option(5.0, "without a request before it sleeps"),
        "asleep_s": Option(60.0, "that it is left alone"),
    },
    measure=runs,
    tables=tables,
    bars=bars,
    record=asdict,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
