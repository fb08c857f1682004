"""5,000 mutated requests, tensors, chats, images, settings, archives…; `make fuzz`: a million."""

from __future__ import annotations

import fuzz_grpc
import fuzzing
import pytest

CASES = 5000


async def test_no_mutation_makes_a_500_or_leaves_memory():
    ends = await fuzzing.run(CASES)
    assert ends.total() == CASES
    kinds = ("http", "tensors", "chat", "completion", "image", "arrow", "external")
    answered = {f"{kind} 200" for kind in kinds}
    assert answered | {"settings taken", "archive unpacked"} <= set(ends)


async def test_a_failure_is_drawn_again_by_its_number():
    assert await fuzzing._again("settings", 3) == await fuzzing._again("settings", 3)
    with pytest.raises(fuzzing.Broken, match="--only nothing 1: KeyError"):
        await fuzzing._again("nothing", 1)


async def test_no_mutated_grpc_call_is_an_internal_error_or_leaves_anything():
    ends = await fuzz_grpc.run(3000)
    assert ends.total() == 3000
    assert {
        f"{kind} 0" for kind in ("infer", "text", "stream", "page", "health", "reflection")
    } <= set(ends)
