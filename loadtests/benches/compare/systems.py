"""Starts the systems that are compared, and checks their answers.

A system is `headrace`, or a peer by its name in `loadtests.peers.catalogue`; `NAME@16` is a peer
with batches of at most 16 instead of the tuned size. A `Server` is a running system, which is
restarted if it does not recover from a load.
"""

from __future__ import annotations

import random
import statistics
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from loadtests.benches.compare.works import Workload
from loadtests.benches.launched import Launch, RunningServer, ServerTrouble, free_port, launched
from loadtests.benches.reference_embeddings import model_folder
from loadtests.benches.server import HOME_DIR, Settings, changed, headrace
from loadtests.peers.adapters import Item, PeerAdapter
from loadtests.peers.catalogue import PEERS, command_of, environ_of
from loadtests.peers.minilm_files import MODEL, TOKENIZER
from loadtests.peers.options import DEVICE, MINILM

HEADRACE = "headrace"
TENANTS = ("default", "victim", "noisy")
PROBES = 3
CHECKERS = 3  # requests at once: enough for batches of several rows, too few to be refused
SETTLED_S = 0.1
SETTLE_LIMIT_S = 10.0


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
        tuning = "two slots, buckets at 32, 128 and 512" if work.name == DEVICE else work.about
        return System(name, work.adapter, lambda: headrace(settings), 32, tuning, True)
    plain, _, wanted = name.partition("@")
    peer = PEERS[plain]
    batch = int(wanted) if wanted else peer.batch[work.name]

    @contextmanager
    def start() -> Iterator[RunningServer]:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        command = command_of(peer, port, work.name, batch)
        environ = environ_of(peer)
        if work.name == MINILM:
            environ |= model_environ(settings_of(work))
        launch = Launch(name.replace("@", "-"), command, url, url + peer.ready, environ)
        with launched(launch) as running:
            yield running

    return System(name, peer.works[work.name], start, batch, peer.tuning)


def settings_of(work: Workload) -> Settings:
    found: Settings = yaml.safe_load(work.settings.read_text())
    tenants = {f"tenants.{name}.weight": 1 for name in TENANTS}
    return changed(found, {**work.changes, **tenants, "gateway.host": "127.0.0.1"})


def model_environ(settings: Settings) -> dict[str, str]:
    """Environment variables that name the model for peers: Headrace's own staged graph, so that all
    systems run the same. If it is not under `out/bench/home`, Headrace is started once to stage
    it."""
    if not staged():
        with headrace(settings, name="staging"):
            pass
    return {
        MODEL: str(staged()[-1].absolute()),
        TOKENIZER: str(model_folder() / "tokenizer.json"),
    }


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
        self.running: RunningServer | None = None

    def __enter__(self) -> Server:
        self.running = self._open.enter_context(self.system.start())
        return self

    def __exit__(self, *why: Any) -> None:
        self._open.close()

    def again(self) -> None:
        self._open.close()
        self.running = self._open.enter_context(self.system.start())

    @property
    def url(self) -> str:
        assert self.running is not None, "entered"
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
