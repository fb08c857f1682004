"""How tokens are drawn."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from runtimes.generation import requests
from runtimes.generation.requests import Defaults
from runtimes.generation.sampling import Drawn, Sampler

SCORES = [0.0, 1.0, 2.0, 3.0, -1.0]
END = 3


def drawn(index: int = 0, prompt: tuple[int, ...] = (0,), times: int = 1, **fields) -> list[Drawn]:
    """What so many steps on the same numbers give."""
    body = json.dumps({"prompt": "a", **fields}).encode()
    asked = requests.read("completions", body, "llm", Defaults(ends=frozenset({END})))
    sampler, output, found = Sampler(asked.sampling, index), [], []
    for _ in range(times):
        found.append(sampler.draw(torch.tensor(SCORES), np.asarray(prompt), output))
        output.append(found[-1].token)
    return found


def tokens(**fields) -> list[int]:
    return [each.token for each in drawn(**fields)]


def test_without_temperature_the_likeliest_is_taken():
    assert tokens(temperature=0, times=3) == [3, 3, 3]


def test_a_seed_draws_the_same_and_each_output_its_own():
    first = tokens(seed=5, times=30)
    assert tokens(seed=5, times=30) == first
    assert tokens(seed=5, times=30, index=1) != first
    assert tokens(seed=6, times=30) != first
    assert len(set(first)) > 1


def test_without_a_seed_chance_differs():
    assert tokens(times=30) != tokens(times=30)


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"top_k": 2}, {2, 3}), ({"top_k": 1}, {3}), ({"top_p": 0.5}, {3}),
        ({"top_p": 0.8}, {2, 3}), ({"min_p": 0.3}, {2, 3}), ({"top_k": 3, "top_p": 0.7}, {2, 3}),
        ({"temperature": 0.01}, {3}), ({"logit_bias": {"3": -100}, "top_k": 1}, {2}),
        ({"top_k": 99}, {0, 1, 2, 3, 4}),
    ],
)  # fmt: skip
def test_only_what_may_be_drawn_is(fields, kept):
    assert set(tokens(seed=1, times=400, **fields)) == kept


def test_an_end_waits_for_the_fewest_tokens():
    assert tokens(temperature=0, min_tokens=2, times=3) == [2, 2, 3]


def test_presence_counts_the_output_once_and_frequency_each_time():
    assert tokens(temperature=0, presence_penalty=1.5, times=4) == [3, 2, 3, 3]
    assert tokens(temperature=0, frequency_penalty=1.0, times=4, prompt=(3, 3)) == [3, 2, 3, 1]


def test_repetition_counts_the_prompt_too():
    assert tokens(temperature=0, repetition_penalty=2, prompt=(3,)) == [2]
    assert tokens(temperature=0, repetition_penalty=2, times=2) == [3, 2]


def test_logprobs_are_of_the_networks_own_numbers():
    told = torch.tensor(SCORES).log_softmax(-1)
    (one,) = drawn(temperature=0.1, top_k=1, logprobs=2, logit_bias={"0": 100})
    assert one.token == 0
    assert one.logprob == pytest.approx(float(told[0]))
    assert one.others == ((3, pytest.approx(float(told[3]))), (2, pytest.approx(float(told[2]))))
    assert drawn(temperature=0)[0].logprob is None
