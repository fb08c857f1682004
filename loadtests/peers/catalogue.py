"""The other servers that Headrace is compared with: how each is started, and how it is tuned.

A peer is a module that takes the command line of `options`, in a Python environment of its own, and
has an adapter for each kind of work that it can do. `tuning` says which of its documentation's
advice for this work was followed. `batch` is small on the device: there a batch of 32 nearly always
has a long row and takes longer than the SLO.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from loadtests.peers import adapters, venvs
from loadtests.peers.adapters import PeerAdapter
from loadtests.peers.options import DEVICE, MINILM
from loadtests.peers.ray_serve.environment import environment

RAY_SERVE = "loadtests.peers.ray_serve.serve"
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Peer:
    """One of the other servers."""

    name: str
    module: str  # started with `python -m`
    venv: str | None  # name of its environment; None: this process's own
    works: Mapping[str, PeerAdapter]  # its adapters, by kind of work
    tuning: str
    # Maximum of items in a batch, by kind of work.
    batch: Mapping[str, int] = field(default_factory=lambda: {DEVICE: 6, MINILM: 8})
    variant: str = ""
    ready: str = "/"  # the path that answers 200 once the server is ready

    @property
    def on_ray(self) -> bool:
        return self.module == RAY_SERVE


def _both(adapter: PeerAdapter) -> Mapping[str, PeerAdapter]:
    return dict.fromkeys((DEVICE, MINILM), adapter)


def _ray(variant: str, tuning: str) -> Peer:
    return Peer(
        name=f"ray-serve-{variant}",
        module=RAY_SERVE,
        venv=None,
        works=_both(adapters.RAY_SERVE),
        tuning=tuning,
        variant=variant,
    )


PEERS = {
    peer.name: peer
    for peer in (
        _ray("defaults", "none; 5 ongoing requests a replica, so at most 5 a batch"),
        _ray("raised", "`max_ongoing_requests` 256, otherwise as it comes (10 ms for a batch)"),
        _ray(
            "throughput",
            "HAProxy, direct ingress, `RAY_SERVE_THROUGHPUT_OPTIMIZED`, batches gathered for 20 ms "
            "and bounded by rows × longest (`batch_size_fn`, 1,024), 40 ongoing and 8 queued",
        ),
        Peer(
            "litserve",
            "loadtests.peers.litserve.serve",
            "litserve",
            _both(adapters.LITSERVE),
            "`fast_queue`, one worker, `batch_timeout` 2 ms, `timeout` 100 ms on the device",
            ready="/health",
        ),
        Peer(
            "bentoml",
            "loadtests.peers.bentoml.serve",
            "bentoml",
            _both(adapters.BENTOML),
            "`batchable`, one worker, `max_latency_ms` 100 on the device",
            ready="/readyz",
        ),
        Peer(
            "mlserver",
            "loadtests.peers.mlserver.serve",
            "mlserver",
            _both(adapters.MLSERVER),
            "one parallel worker, `max_batch_time` 20 ms, rows as BYTES elements",
            ready="/v2/health/ready",
        ),
        Peer(
            "triton",
            "loadtests.peers.triton.ragged",
            "triton",
            {DEVICE: adapters.TENSORS, MINILM: adapters.TEXT_TENSORS},
            "Python backend, ragged batching, no queue delay, queue timeout 60 ms on the device, "
            "8 HTTP threads",
            ready="/v2/health/ready",
        ),
    )
}


def command_of(peer: Peer, port: int, work: str, batch: int | None = None) -> list[str]:
    """The command that starts a peer. Creates the peer's environment if it does not exist."""
    python = sys.executable if peer.venv is None else str(venvs.make(venvs.PEERS[peer.venv]))
    command = [python, "-m", peer.module, "--port", str(port), "--work", work]
    command += ["--batch", str(batch or peer.batch[work])]
    return [*command, "--variant", peer.variant] if peer.variant else command


def environ_of(peer: Peer) -> dict[str, str]:
    """Environment variables for a peer: the path of this project's modules, and its settings."""
    found = {"PYTHONPATH": str(ROOT)}
    return found | environment(peer.variant) if peer.on_ray else found
