"""Who reads and who waits, step by step."""

from __future__ import annotations

import random
import weakref

import numpy as np
import pytest

from runtimes.generation.scheduler import BLOCK_TOKENS, Scheduler, Sequence, Shape


class Cache:
    """Of one sequence. `places`: that it takes."""

    def __init__(self, source: Cache | None, tokens: int) -> None:
        self.source, self.places = source, tokens


class Engine:
    """A scheduler, whose network does nothing but give the token 7."""

    def __init__(self, *, sequences: int = 4, cache: int = 1000, step: int = 32) -> None:
        self.caches: weakref.WeakSet[Cache] = weakref.WeakSet()
        self.blocks: set[int] = set()  # as it tells
        self.scheduler = Scheduler(Shape(sequences, cache, step), self.begin, self.told)

    def told(self, stored: list[int], removed: list[int]) -> None:
        assert not self.blocks & set(stored)
        assert self.blocks >= set(removed)
        self.blocks |= set(stored)
        self.blocks -= set(removed)

    def begin(self, source: Cache | None, tokens: int, moves: bool) -> Cache:
        if moves:
            source.places = tokens
            return source
        made = Cache(source, tokens)
        self.caches.add(made)
        return made

    @property
    def places(self) -> int:
        return sum(cache.places for cache in self.caches)

    def add(self, prompt: int | list[int], *, priority: int = 0, salt: str = "") -> Sequence:
        ids = list(range(prompt)) if isinstance(prompt, int) else prompt
        sequence = Sequence(None, np.asarray(ids, dtype=np.int64), priority, salt)
        self.scheduler.add(sequence)
        return sequence

    def step(self, *leave: Sequence) -> dict[Sequence, int]:
        """How many tokens each read. `leave`: those that do so meanwhile."""
        parts = self.scheduler.plan()
        assert sum(part.count for part in parts) <= self.scheduler.shape.step_tokens
        for part in parts:
            cache = part.sequence.cache
            cache.source, cache.places = None, max(cache.places, part.start + part.count)
            assert self.places <= self.scheduler.shape.cache_tokens
        for sequence in leave:
            self.scheduler.remove(sequence)
        self.scheduler.read(parts)
        for part in parts:
            if part.draws and part.sequence.running:
                part.sequence.output.append(7)
        return {part.sequence: part.count for part in parts}


def test_a_prompt_is_read_and_gives_a_token_each_step():
    engine = Engine()
    one = engine.add(5)
    assert [engine.step()[one] for _ in range(3)] == [5, 1, 1]
    assert (len(one.output), one.held, engine.scheduler.counts.steps) == (3, 8, 3)


def test_nothing_to_do_is_no_step():
    engine = Engine()
    assert engine.step() == {}
    assert engine.scheduler.counts.steps == 0


def test_a_long_prompt_is_read_in_parts_beside_those_that_are_answered():
    engine = Engine(step=32)
    short = engine.add(5)
    engine.step()
    long = engine.add([9] * 100)
    steps = [engine.step() for _ in range(4)]
    assert [step[short] for step in steps] == [1, 1, 1, 1]
    assert [step[long] for step in steps] == [31, 31, 31, 7]
    assert len(long.output) == 1


def test_no_more_run_than_may_and_the_urgent_join_first():
    engine = Engine(sequences=2)
    late, early, urgent = engine.add(3, priority=1), engine.add(4, priority=1), engine.add(5)
    assert set(engine.step()) == {urgent, late}
    assert (engine.scheduler.running, engine.scheduler.waiting) == (2, 1)
    engine.scheduler.remove(urgent)
    assert early in engine.step()


def test_one_that_waits_can_leave():
    engine = Engine(sequences=1)
    engine.add(3)
    waits = engine.add(4)
    engine.step()
    engine.scheduler.remove(waits)
    engine.scheduler.remove(waits)
    assert engine.scheduler.waiting == 0


def test_a_prompt_without_room_waits_until_there_is():
    engine = Engine(cache=100, step=200)
    first, second = engine.add([1] * 60), engine.add([2] * 60)
    assert set(engine.step()) == {first}
    engine.scheduler.remove(first)
    assert set(engine.step()) == {second}


def test_a_full_cache_makes_the_least_urgent_begin_anew():
    engine = Engine(cache=20, step=50)
    second, first = engine.add([1] * 8, priority=1), engine.add([2] * 8, priority=0)
    while second.running or not engine.scheduler.counts.steps:
        engine.step()
    assert first.running
    assert engine.scheduler.counts.preemptions == 1
    assert (second.held, second.cache) == (0, None)
    outputs = list(second.output)
    engine.scheduler.remove(first)
    assert engine.step() == {second: 8 + len(outputs)}  # all of it is read again
    assert second.output == [*outputs, 7]


def test_one_alone_is_never_preempted():
    engine = Engine(cache=10)
    alone = engine.add(8)
    for _ in range(3):
        engine.step()
    assert (len(alone.output), engine.scheduler.counts.preemptions) == (3, 0)


@pytest.mark.parametrize(
    ("prompt", "found"),
    [(BLOCK_TOKENS, 0), (BLOCK_TOKENS + 1, BLOCK_TOKENS), (3 * BLOCK_TOKENS, 2 * BLOCK_TOKENS)],
)
def test_whole_blocks_of_a_known_prompt_are_not_read_again(prompt, found):
    engine = Engine(step=100)
    first = engine.add(prompt)
    engine.step()
    engine.scheduler.remove(first)
    second = engine.add(prompt)
    assert engine.step()[second] == prompt - found
    assert second.cached == found
    assert engine.scheduler.counts.prefix_hits == found
    assert len(engine.caches) == 2


def test_what_has_ended_is_gone_on_with_where_both_have_no_room():
    engine = Engine(cache=50, step=50)
    first = engine.add(40)
    engine.step()
    engine.scheduler.remove(first)
    (kept,) = engine.caches
    second = engine.add(45)
    assert engine.step()[second] == 45 - 32
    assert second.cache is kept


def test_who_waits_or_has_ended_and_is_forgotten_has_no_cache():
    engine = Engine(cache=40, step=50)
    sequences = [engine.add([number] * 30) for number in range(5)]
    for sequence in sequences:
        assert list(engine.step()) == [sequence]
        assert len(engine.caches) == 1
        engine.scheduler.remove(sequence)


def test_what_was_read_of_one_that_left_meanwhile_is_counted():
    engine = Engine(cache=200, step=64)
    for number in range(6):
        leaves = engine.add([number] * 150)
        engine.step()
        engine.step(leaves)
    again = engine.add([5] * 150)
    engine.step()
    assert again.cached == 128


def test_an_answer_is_known_to_the_next_turn_too():
    engine = Engine(step=100)
    first = engine.add(30)
    for _ in range(20):
        engine.step()
    engine.scheduler.remove(first)
    second = engine.add([*range(30), *first.output, 1, 2])
    engine.step()
    assert second.cached == (30 + 19) // BLOCK_TOKENS * BLOCK_TOKENS


def test_another_salt_finds_nothing():
    engine = Engine(step=100)
    engine.scheduler.remove(_read(engine, 40, salt="acme"))
    other = engine.add(40, salt="batch")
    engine.step()
    assert other.cached == 0


def test_outputs_of_one_prompt_read_it_once():
    engine = Engine(step=32)
    ids = np.arange(64)
    outputs = [Sequence(None, ids, 0, "") for _ in range(3)]
    for output in outputs:
        engine.scheduler.add(output)
    steps = [engine.step() for _ in range(3)]
    assert [list(step.values()) for step in steps] == [[32], [32], [1, 16, 15]]
    assert [output.cached for output in outputs] == [0, 48, 48]


def test_what_has_ended_makes_room_for_what_runs():
    engine = Engine(cache=100, step=100)
    engine.scheduler.remove(_read(engine, [1] * 60))
    engine.scheduler.remove(_read(engine, [2] * 60))
    again = engine.add([1] * 60)
    engine.step()
    assert again.cached == 0  # forgotten for the second
    engine.scheduler.remove(again)
    third = engine.add([1] * 60)
    engine.step()
    assert third.cached == 48


def test_what_failed_is_not_kept():
    engine = Engine(step=100)
    engine.scheduler.drop(_read(engine, 40))
    again = engine.add(40)
    engine.step()
    assert again.cached == 0


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_all_are_answered_and_the_cache_holds(seed):
    """A place is taken by every token but the last."""
    drawn = random.Random(seed)
    engine = Engine(sequences=3, cache=80, step=16)
    wanted: dict[Sequence, int] = {}
    done = 0
    for step in range(2000):
        if step < 300 and drawn.random() < 0.3:
            prompt = [drawn.randrange(3)] * drawn.randrange(1, 50)
            sequence = engine.add(prompt, priority=drawn.randrange(3))
            wanted[sequence] = drawn.randrange(1, 80 - len(prompt))
        leave = [s for s in wanted if s.running and drawn.random() < 0.02]
        engine.step(*leave)
        for sequence in leave:
            del wanted[sequence]
        assert sum(each.read for each in wanted if each.running) <= 80
        for sequence in [s for s, most in wanted.items() if len(s.output) >= most]:
            engine.scheduler.remove(sequence)
            del wanted[sequence]
            done += 1
        if drawn.random() < 0.02 and wanted:  # a caller leaves
            left = drawn.choice(list(wanted))
            engine.scheduler.remove(left)
            del wanted[left]
        if step > 300 and not wanted:
            break
    assert not wanted
    assert done > 10
    assert (engine.scheduler.running, engine.scheduler.waiting) == (0, 0)


@pytest.mark.parametrize("seed", range(5))
def test_blocks_that_are_told_are_those_that_a_prompt_finds(seed: int) -> None:
    drawn = random.Random(seed)
    engine = Engine(sequences=3, cache=200, step=64)
    running: list[Sequence] = []
    found = dropped = 0
    for _ in range(300):
        prompt = [drawn.randrange(3)] * 16 * drawn.randint(0, 3) + [9] * drawn.randint(1, 30)
        sequence = engine.add(prompt, salt=drawn.choice("ab"))
        had = engine.blocks
        expected = 0
        for block in sequence.blocks(len(prompt) - 1):
            if block not in had:
                break
            expected += BLOCK_TOKENS
        joins = len(running) < 3 and engine.scheduler.waiting == 1
        leaving = [each for each in running if drawn.random() < 0.2]
        before = len(had)
        engine.step(*leaving)
        running = [each for each in running if each not in leaving]
        if joins and sequence.running and not engine.scheduler.counts.preemptions:
            assert sequence.cached == expected
            found += expected
        if not sequence.running:
            engine.scheduler.remove(sequence)
        else:
            running.append(sequence)
        dropped += len(engine.blocks) < before
        if drawn.random() < 0.3 and running:
            engine.scheduler.drop(running.pop(0))
    assert found
    assert dropped
    for each in running:
        engine.scheduler.remove(each)
    assert 0 < len(engine.blocks) <= 200 // BLOCK_TOKENS


def _read(engine: Engine, prompt: int | list[int], **more: str) -> Sequence:
    sequence = engine.add(prompt, **more)
    engine.step()
    return sequence
