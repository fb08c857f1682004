"""The command line of a peer's server, the same for every peer.

Needs only the standard library, because it is imported in every peer's own environment.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtests.peers.device import FakeDevice, Speed

DEVICE, MINILM = "device", "minilm"
WORKS = (DEVICE, MINILM)
# Environment variables that say where a peer finds MiniLM.
MODEL = "PEER_MODEL"  # the folder with model.xml that Headrace has staged
TOKENIZER = "PEER_TOKENIZER"  # tokenizer.json in the model's own folder


@dataclass(frozen=True, slots=True)
class PeerOptions:
    """The options of a peer's server."""

    port: int
    work: str
    batch: int  # maximum of items in a batch
    variant: str = ""  # of the peer; "" if it has only one


def parse(about: str | None, argv: Sequence[str] | None = None) -> PeerOptions:
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--work", choices=WORKS, default=DEVICE)
    parser.add_argument("--batch", type=int, default=8, help="most items in a batch (%(default)s)")
    parser.add_argument("--variant", default="")
    found = parser.parse_args(argv)
    return PeerOptions(found.port, found.work, found.batch, found.variant)


def work_of(name: str) -> Callable[[Sequence[Any]], list[Any]]:
    """A function that runs a batch: rows of ids to their sums, or texts to their embeddings."""
    if name == DEVICE:
        return FakeDevice(Speed()).run
    from loadtests.peers.minilm import Embedder  # imports a backend, which the device does not need

    if MODEL not in os.environ:
        raise SystemExit(f"{MODEL} must name a folder with model.xml, {TOKENIZER} its tokeniser")
    embedder = Embedder(Path(os.environ[MODEL]), Path(os.environ[TOKENIZER]))
    embed: Callable[[Sequence[Any]], list[Any]] = embedder.run
    return embed
