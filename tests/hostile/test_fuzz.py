"""5,000 mutated requests, tensors, chats, images, regions, settings, archives; `make fuzz`: a
million."""

from __future__ import annotations

import fuzzing
import pytest

CASES = 5000


async def test_no_mutation_makes_a_500_or_leaves_memory():
    ends = await fuzzing.run(CASES)
    assert ends.total() == CASES
    answered = {
        f"{kind} 200" for kind in ("http", "tensors", "chat", "completion", "image", "external")
    }
    assert answered | {"settings taken", "archive unpacked"} <= set(ends)


async def test_a_failure_is_drawn_again_by_its_number():
    assert await fuzzing._again("settings", 3) == await fuzzing._again("settings", 3)
    with pytest.raises(fuzzing.Broken, match="--only nothing 1: KeyError"):
        await fuzzing._again("nothing", 1)
