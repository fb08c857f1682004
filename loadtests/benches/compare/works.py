"""The works on which systems are compared.

`device`: rows of token ids for a pretended device of 5 ms + 0.2 ms a row + 8 µs a padded token, one
batch at a time. `minilm`: English texts, embedded on this machine's processors. Lengths are the
ragged mix's: 70 % of 8-32, 25 % of 64-128, 5 % of 256-512 tokens.
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
MOST_ROWS = 32
EMBEDDING_WIDTH = 384
MINILM_CHANGES = {"precision": "bf16", "slo.latency_ms": 200}


@dataclass(frozen=True, slots=True)
class Workload:
    """`item`: what a row of so many tokens is. `right`: whether an answer is this item's.
    `settings`, `changes`, `adapter`: Headrace's. `start_rate`: where the first search begins,
    after `warm_s` at a half of it. `same_rate`: what all are asked, besides. `fixed_items`: the
    same item for each length."""

    name: str
    title: str
    item: Callable[[int, random.Random], Item]
    right: Callable[[Item, Any], bool]
    adapter: PeerAdapter
    settings: Path
    changes: Mapping[str, Any] = field(default_factory=dict)
    about: str = ""
    slo_s: float = SLO_S
    start_rate: float = 150.0
    same_rate: float = 150.0
    warm_s: float = 4.0
    fixed_items: bool = False


def cost_ms(length: int) -> float:
    """Of the device, for one row of a full batch of its length."""
    return Speed().seconds(MOST_ROWS, length) / MOST_ROWS * 1e3


def _ids(length: int, rng: random.Random) -> Item:
    return token_ids(length, rng)


def _is_sum(item: Item, answer: Any) -> bool:
    return not isinstance(item, str) and answer == float(sum(item))


def _is_embedding(item: Item, answer: Any) -> bool:
    """Of length one; what it says is checked by the figure on answers, not here."""
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
            warm_s=15.0,  # every new shape is compiled when it first comes
        ),
    )
}
