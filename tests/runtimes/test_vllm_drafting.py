"""Proposals are made where they pay, at each number of sequences, and tried again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from runtimes.vllm import drafting
from runtimes.vllm.drafting import STAY, TRIAL, ChoosesDrafting, Drafting

MOST, SEQUENCES = 4, 20


def run(chosen: Drafting, lookup: list[int], sequences: int, steps: int, kept: float) -> int:
    """Steps of 1 ms, and of 1.5 ms with proposals, of which the share `kept` is. Returns how many
    of them had some."""
    proposed = 0
    for _ in range(steps):
        ahead = lookup[sequences]
        proposed += ahead > 0
        tokens = sequences * (1 + round(ahead * kept))
        chosen.step(sequences, tokens, 0.0015 if ahead else 0.001)
    return proposed


@pytest.mark.parametrize("sequences", [1, 2, 3, 4, 5, 8, 9, 16, 17, 20])
def test_what_gives_more_is_kept(sequences: int) -> None:
    for kept in (0.0, 0.5):
        lookup = [0] + [MOST] * SEQUENCES
        chosen = Drafting(lookup, MOST)
        run(chosen, lookup, sequences, 3 * TRIAL, kept)
        assert lookup[sequences] == (MOST if kept else 0)
        with_proposals = run(chosen, lookup, sequences, 20 * STAY, kept) / (20 * STAY)
        assert with_proposals == pytest.approx(1.0 if kept else 0.0, abs=0.03)


def test_each_range_of_sequences_has_its_own_answer() -> None:
    lookup = [0] + [MOST] * SEQUENCES
    chosen = Drafting(lookup, MOST)
    for sequences in (2, 6):
        run(chosen, lookup, sequences, 3 * TRIAL, 0.5 if sequences < 4 else 0.0)
    assert lookup == [0] + [MOST] * 4 + [0] * 4 + [MOST] * 12


def test_it_is_tried_again_when_texts_change() -> None:
    lookup = [0] + [MOST] * SEQUENCES
    chosen = Drafting(lookup, MOST)
    run(chosen, lookup, 8, 3 * TRIAL, 0.0)
    assert lookup[8] == 0
    run(chosen, lookup, 8, STAY + 2 * TRIAL, 0.5)
    assert lookup[8] == MOST


class Engine:
    """What a scheduler of vLLM's has."""

    def __init__(self, ranges: list[Any] | None) -> None:
        asked = SimpleNamespace(num_speculative_tokens_per_batch_size=ranges)
        self.vllm_config = SimpleNamespace(speculative_config=asked)
        self.dynamic_sd_lookup, self.num_spec_tokens = [0] + [MOST] * SEQUENCES, MOST
        self.unfinished = True

    def update_from_output(self, scheduled: Any, ran: Any) -> Any:
        outputs = [SimpleNamespace(new_token_ids=[1] * ran) for _ in scheduled.num_scheduled_tokens]
        return {0: SimpleNamespace(outputs=outputs)}

    def has_unfinished_requests(self) -> bool:
        return self.unfinished


class Scheduler(ChoosesDrafting, Engine):
    pass


def step(tokens: int, proposed: int) -> Any:
    return SimpleNamespace(
        num_scheduled_tokens={"a": tokens}, scheduled_spec_decode_tokens={"a": [1] * proposed}
    )


def test_steps_count_only_while_the_engine_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(drafting.time, "perf_counter", lambda: now[0])
    told: list[tuple[int, int, float]] = []
    monkeypatch.setattr(Drafting, "step", lambda self, *said: told.append(said))
    scheduler = Scheduler([[1, 99, MOST]])
    for tokens, proposed, wrote, unfinished in (
        (64, 0, 1, True),  # a prompt
        (5, 4, 3, True),
        (1, 0, 1, False),  # the last one, and then nothing for a second
        (5, 4, 3, True),
        (1, 0, 1, True),
    ):
        now[0] += 1.0
        scheduler.unfinished = unfinished
        scheduler.update_from_output(step(tokens, proposed), wrote)
    assert told == [(1, 3, 1.0), (1, 1, 1.0), (1, 1, 1.0)]


@pytest.mark.parametrize("ranges", [None, [[1, 4, MOST], [5, 99, 0]]])
def test_who_did_not_ask_gets_nothing(ranges: list[Any] | None) -> None:
    scheduler = Scheduler(ranges)
    for _ in range(10 * TRIAL):
        scheduler.update_from_output(step(1, 0), 1)
    assert scheduler.dynamic_sd_lookup == [0] + [MOST] * SEQUENCES
