"""A grammar that the engine cannot compile refuses its request, and is no fault of the engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from runtimes import catalog

MISSING = catalog.available("vllm", "generate")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
]


async def _ending(tokens: list[int]) -> AsyncIterator[Any]:
    part = SimpleNamespace(index=0, token_ids=tokens, finish_reason="error")
    yield SimpleNamespace(
        request_id="r", prompt_token_ids=[1], num_cached_tokens=0, outputs=[part], finished=True
    )


@pytest.mark.parametrize(
    ("demand", "tokens", "refused"),
    [({"regex": "a"}, [], True), ({"regex": "a"}, [5], False), (None, [], False)],
)
async def test_an_error_before_the_first_token_of_a_grammar_is_a_refusal(
    demand: Any, tokens: list[int], refused: bool
) -> None:
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams

    from runtimes.vllm.counts import TOKEN_COUNTER, Counted, TokenCounter

    TOKEN_COUNTER.set(TokenCounter(16))
    counted = Counted(SimpleNamespace(generate=lambda *_: _ending(tokens)))
    asked = SamplingParams(
        structured_outputs=None if demand is None else StructuredOutputsParams(**demand)
    )
    outputs = counted.generate("a", asked, "r")
    if refused:
        with pytest.raises(VLLMValidationError, match="no grammar can be made"):
            [each async for each in outputs]
    else:
        assert len([each async for each in outputs]) == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_grammars_are_compiled_when_nothing_else_runs(is_async: bool) -> None:
    import os
    import threading
    from concurrent.futures import ThreadPoolExecutor

    from vllm.utils.import_utils import resolve_obj_by_qualname
    from vllm.v1.core.sched.scheduler import Scheduler

    from runtimes.vllm import grammars

    chosen = resolve_obj_by_qualname(grammars.scheduler(is_async=is_async))
    assert issubclass(chosen, Scheduler)
    manager = SimpleNamespace(executor=ThreadPoolExecutor(1))
    with pytest.raises(TypeError):  # vLLM's own has no arguments to go on with
        chosen(structured_output_manager=manager)

    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    assert manager.executor.submit(niceness).result(10) == 19
    assert niceness() < 19
    manager.executor.shutdown()
