"""The model of an engine, step by step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runtimes.synthetic.engine import EngineShape, Sequence, SyntheticEngine

SHAPE = EngineShape(0.01, 0.001, 0.0001, cache_tokens=1000, step_tokens=100)


def finish(engine: SyntheticEngine) -> list[float]:
    """Seconds of each step until it is idle."""
    steps = []
    while not engine.idle:
        steps.append(engine.begin_step())
        engine.end_step()
        assert len(steps) < 10_000
    assert engine.held == 0
    return steps


def step(engine: SyntheticEngine) -> list[Sequence]:
    engine.begin_step()
    return engine.end_step()


def test_step_takes_its_base_and_what_it_gives_and_reads():
    engine = SHAPE.engine()
    sequence = engine.add("a", 40, 3, ())
    assert finish(engine) == pytest.approx([0.014, 0.011, 0.011])
    assert sequence.device_s == pytest.approx(0.036)
    assert engine.counts.steps == 3


def test_drag_counts_as_device_time():
    engine = SHAPE.engine()
    sequence = engine.add("a", 40, 1, ())
    engine.begin_step()
    assert engine.end_step(2.0) == [sequence]
    assert sequence.device_s == pytest.approx(0.028)


@pytest.mark.parametrize(("prompt", "steps"), [(1, 1), (99, 1), (100, 1), (101, 2), (250, 3)])
def test_long_prompt_is_read_over_several_steps(prompt: int, steps: int):
    engine = SHAPE.engine()
    engine.add("a", prompt, 1, ())
    assert len(finish(engine)) == steps


def test_one_that_was_read_gets_a_token_while_another_is_read():
    engine = SHAPE.engine()
    first = engine.add("first", 10, 5, ())
    second = engine.add("second", 150, 1, ())
    assert step(engine) == [first]
    assert step(engine) == [first, second]
    assert (second.held, second.done, first.held) == (0, True, 12)


def test_chunk_bounds_what_one_sequence_reads_in_a_step():
    engine = replace(SHAPE, chunk_tokens=60).engine()
    long, short = engine.add("long", 120, 1, ()), engine.add("short", 40, 1, ())
    assert step(engine) == [short]
    assert step(engine) == [long]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_sequences_over_the_limit_wait(count: int):
    engine = replace(SHAPE, max_sequences=2).engine()
    for number in range(count):
        engine.add(number, 10, 2, ())
    engine.begin_step()
    assert (engine.running, engine.waiting) == (min(2, count), max(0, count - 2))
    engine.end_step()
    finish(engine)


def test_full_cache_preempts_the_last_and_all_end():
    engine = replace(SHAPE, cache_tokens=60).engine()
    sequences = [engine.add(number, 10, 40, ()) for number in range(3)]
    finish(engine)
    assert [sequence.output for sequence in sequences] == [40, 40, 40]
    assert engine.counts.preemptions > 0
    assert engine.counts.max_held <= 60


@pytest.mark.parametrize(("blocks", "cached"), [((1, 2), 32), ((1, 9), 16), ((8, 9), 0), ((), 0)])
def test_what_a_prompt_begins_with_alike_is_not_read_again(blocks: tuple[int, ...], cached: int):
    engine = SHAPE.engine()
    engine.add("before", 40, 1, (1, 2))
    finish(engine)
    after = engine.add("after", 40, 1, blocks)
    assert finish(engine) == pytest.approx([0.01 + (40 - cached) * 0.0001])
    assert after.cached == cached
    assert (engine.counts.prefix_queries, engine.counts.prefix_hits) == (80, cached)


def test_last_token_of_a_known_prompt_is_read_all_the_same():
    engine = SHAPE.engine()
    for _ in range(2):
        sequence = engine.add("a", 32, 1, (1, 2))
        finish(engine)
    assert sequence.cached == 31


def test_blocks_used_least_recently_are_forgotten_the_ends_of_prompts_first():
    engine = replace(SHAPE, cache_tokens=48).engine()  # three blocks
    for blocks in ((1, 2), (3, 4)):
        engine.add("a", 33, 1, blocks)
        finish(engine)
    again = engine.add("a", 33, 1, (1, 2))
    finish(engine)
    assert again.cached == 16


def test_without_blocks_nothing_is_looked_up():
    engine = replace(SHAPE, block_tokens=0).engine()
    engine.add("a", 40, 1, ())
    finish(engine)
    assert engine.counts.prefix_queries == 0


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_aborted_one_holds_nothing_and_gets_nothing(steps: int):
    engine = SHAPE.engine()
    sequence, other = engine.add("a", 40, 9, ()), engine.add("b", 40, 9, ())
    for _ in range(steps):
        step(engine)
    engine.begin_step()
    engine.abort(sequence)
    engine.abort(sequence)
    assert sequence.held == 0
    assert engine.end_step() == [other]
    finish(engine)
    assert sequence.output == steps
