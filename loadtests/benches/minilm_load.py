"""Makes the requests of the ragged mix for MiniLM.

A request has one row of token ids: 70 % have 8–32, 25 % 64–128 and 5 % 256–512 tokens. They are
drawn once from a seed and sent in random order by a closed loop. A call's weight is its number of
tokens, so that a load's weight rate is tokens a second.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from loadtests.client.binary_tensors import binary_infer
from loadtests.client.http1 import Target, render
from loadtests.client.load import Call, Load
from loadtests.client.mischief import Mischief
from loadtests.traffic.workload import infer_body, token_ids

INPUT = "input_ids"
PATH = "/v2/models/minilm/infer"


def ids_of(lengths: Sequence[int], seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [token_ids(length, rng) for length in lengths]


def calls(target: Target, rows: Sequence[Sequence[int]], *, binary: bool) -> tuple[Call, ...]:
    made = []
    for ids in rows:
        if binary:
            body, headers = binary_infer(INPUT, ids)
            made.append(Call(render(target, body, headers=headers), len(ids)))
        else:
            made.append(Call(render(target, infer_body(INPUT, ids)), len(ids)))
    return tuple(made)


def minilm_load(
    url: str,
    lengths: Sequence[int],
    *,
    clients: int,
    seconds: float,
    binary: bool = True,
    mischief: Mischief | None = None,
) -> Load:
    target = Target.parse(url + PATH)
    return Load(
        target,
        calls(target, ids_of(lengths, seed=1), binary=binary),
        clients=clients,
        seconds=seconds,
        mischief=mischief or Mischief(),
    )
