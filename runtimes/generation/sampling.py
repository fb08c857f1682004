"""Which token comes next, by the numbers that the network gives each?

In vLLM's order: log-probabilities are told of the network's own numbers; then biases, the fewest
tokens, penalties, temperature, `min_p`, `top_k` and `top_p`, with transformers' own processors
where it has one. Presence and frequency count the output alone, repetition the prompt as well. The
same seed draws the same tokens whoever runs beside it. This module imports torch and transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)

from runtimes.generation.requests import Sampling

_LEAST = -9999.0  # in place of minus infinity, which JSON has not; as in vLLM


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token; with its log-probability and its likeliest alternatives (the token itself first)
    where they are asked for."""

    token: int
    logprob: float | None = None
    others: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Of one output."""

    def __init__(self, sampling: Sampling, index: int) -> None:
        """`index`: of the output among those of its request, which all draw differently."""
        self._sampling = sampling
        self._random = torch.Generator()
        if sampling.seed is None:
            self._random.seed()
        else:
            self._random.manual_seed((sampling.seed + index) % 2**63)
        self._bias = list(sampling.logit_bias), list(sampling.logit_bias.values())
        self._counted: dict[int, int] = {}
        self._changes = self._before()
        self._warpers = self._behind()

    @property
    def _penalised(self) -> bool:
        return bool(self._sampling.presence_penalty or self._sampling.frequency_penalty)

    def draw(self, scores: torch.Tensor, prompt: np.ndarray, output: Sequence[int]) -> Drawn:  # type: ignore[type-arg]
        """`scores`: float32 [vocabulary], which may be written to."""
        told = None
        if self._sampling.logprobs is not None:
            told = torch.log_softmax(scores, dim=-1)
        token = self._chosen(self._changed(scores, prompt, output))
        if self._penalised:
            self._counted[token] = self._counted.get(token, 0) + 1
        if told is None:
            return Drawn(token)
        others = [(token, float(told[token]))]
        if self._sampling.logprobs:
            best = told.topk(min(self._sampling.logprobs, len(told)))
            pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            others = [(other, value) for other, value in pairs]
        finite = tuple((other, max(value, _LEAST)) for other, value in others)
        return Drawn(token, max(float(told[token]), _LEAST), finite)

    def _changed(
        self,
        scores: torch.Tensor,
        prompt: np.ndarray,  # type: ignore[type-arg]
        output: Sequence[int],
    ) -> torch.Tensor:
        said = self._sampling
        ids, values = self._bias
        if ids:
            scores[ids] += torch.tensor(values)
        if len(output) < said.min_tokens and said.ends:
            scores[list(said.ends)] = -torch.inf
        if self._changes:
            read = torch.from_numpy(np.concatenate([prompt, np.asarray(output, dtype=np.int64)]))
            scores = self._changes(cast(torch.LongTensor, read[None]), scores[None])[0]
        if self._penalised and self._counted:
            counts = torch.tensor(list(self._counted.values()), dtype=torch.float32)
            scores[list(self._counted)] -= said.frequency_penalty * counts + said.presence_penalty
        return scores

    def _chosen(self, scores: torch.Tensor) -> int:
        said = self._sampling
        if said.is_greedy:
            return int(scores.argmax())
        ids = None
        if 0 < said.top_k < len(scores):  # first, so that the rest has fewer to sort
            scores, ids = scores.topk(said.top_k)
        # None of these looks at the tokens before.
        nothing = cast(torch.LongTensor, torch.empty(1, 0, dtype=torch.int64))
        scores = self._warpers(nothing, scores[None])[0]
        chosen = int(torch.multinomial(scores.softmax(-1), 1, generator=self._random))
        return chosen if ids is None else int(ids[chosen])

    def _before(self) -> LogitsProcessorList:
        penalty = self._sampling.repetition_penalty
        made: list[LogitsProcessor] = []
        if penalty != 1:
            made.append(RepetitionPenaltyLogitsProcessor(float(penalty)))
        return LogitsProcessorList(made)

    def _behind(self) -> LogitsProcessorList:
        said = self._sampling
        made: list[LogitsProcessor] = []
        if said.is_greedy:
            return LogitsProcessorList(made)
        if said.temperature != 1:
            made.append(TemperatureLogitsWarper(float(said.temperature)))
        if said.min_p:
            made.append(MinPLogitsWarper(float(said.min_p)))
        if said.top_p < 1:
            made.append(TopPLogitsWarper(float(said.top_p)))
        return LogitsProcessorList(made)
