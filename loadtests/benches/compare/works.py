"""The kinds of work on which systems are compared.

`device`: rows of token ids for a fake device that takes 5 ms + 0.2 ms a row + 8 µs a padded token,
one batch at a time. `minilm`: English texts, embedded on this machine's CPU. Lengths are those of
the ragged mix: 70 % have 8-32, 25 % 64-128 and 5 % 256-512 tokens.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtests.peers import adapters
from loadtests.peers.adapters import Item, PeerAdapter
from loadtests.peers.device import Speed
from loadtests.peers.options import DEVICE, MINILM
from loadtests.traffic.texts import text_of
from loadtests.traffic.workload import RAGGED_MIX, token_ids

SLO_S = 0.1
EDGES = tuple(band.high for band in RAGGED_MIX)
MAX_ROWS = 32
EMBEDDING_WIDTH = 384
MINILM_CHANGES = {"precision": "bf16", "slo.latency_ms": 200}


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
    changes: Mapping[str, Any] = field(default_factory=dict)
    about: str = ""
    slo_s: float = SLO_S
    start_rate: float = 150.0  # of the first search, after `warm_s` at half of this rate
    same_rate: float = 150.0  # at which all systems are measured too
    warm_s: float = 4.0
    fixed_items: bool = False  # rows of the same length are the same


def cost_ms(length: int) -> float:
    """The device's milliseconds for a row as part of a full batch of its length."""
    return Speed().seconds(MAX_ROWS, length) / MAX_ROWS * 1e3


def _ids(length: int, rng: random.Random) -> Item:
    return token_ids(length, rng)


def _is_sum(item: Item, answer: Any) -> bool:
    return not isinstance(item, str) and answer == float(sum(item))


def _is_embedding(item: Item, answer: Any) -> bool:
    """Whether the answer is a vector of length one; the bench `answers` checks its direction."""
    if len(answer) != EMBEDDING_WIDTH:
        return False
    return math.isclose(math.sqrt(sum(value * value for value in answer)), 1.0, abs_tol=0.02)


WORKS = {
    work.name: work
    for work in (
        Workload(
            DEVICE,
            "a device of 5 ms + 0.2 ms·B + 8 µs·B·L",
            _ids,
            _is_sum,
            adapters.TENSORS,
            Path("loadtests/scenarios/device.yaml"),
            fixed_items=True,
        ),
        Workload(
            MINILM,
            "MiniLM embeddings of ragged texts",
            text_of,
            _is_embedding,
            adapters.EMBEDDINGS,
            Path("examples/minilm.yaml"),
            {f"models.minilm.{name}": value for name, value in MINILM_CHANGES.items()},
            "OpenVINO bf16, otherwise as `examples/minilm.yaml`",
            slo_s=0.2,
            start_rate=60.0,
            same_rate=20.0,
            warm_s=15.0,  # long, because every new shape is compiled when it first comes
        ),
    )
}
