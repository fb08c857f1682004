"""Where does the engine compile grammars, so that nobody waits for another's?

vLLM compiles them in threads of the engine's process, as many as half the processors, and each may
take all processors for seconds. Here there are more of them, so that a small grammar does not wait
behind a large one, and the system runs them only when nothing else wants the processor. They let go
of the interpreter while they compile. What a grammar may be is bounded by `structured_outputs`.

The engine's process makes its scheduler from a class that it is given by name; that is where the
threads are put in, what tells of blocks (`block_events`), and what chooses whether tokens are
proposed (`drafting`). Leans on vLLM 0.32's insides.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from runtimes.vllm.block_events import TellsBlocks
from runtimes.vllm.drafting import ChoosesDrafting

THREADS = 8
_NICENESS = 19  # threads that these start have it as well


def scheduler(*, is_async: bool) -> str:
    """The name of the class that stands for vLLM's own."""
    chosen = AsynchronousScheduler if is_async else SynchronousScheduler
    return f"{__name__}.{chosen.__name__}"


class SynchronousScheduler(TellsBlocks, ChoosesDrafting, Scheduler):  # type: ignore[misc]
    def __init__(self, *args: Any, structured_output_manager: Any, **more: Any) -> None:
        _compile_behind(structured_output_manager)
        super().__init__(*args, structured_output_manager=structured_output_manager, **more)


class AsynchronousScheduler(TellsBlocks, ChoosesDrafting, AsyncScheduler):  # type: ignore[misc]
    def __init__(self, *args: Any, structured_output_manager: Any, **more: Any) -> None:
        _compile_behind(structured_output_manager)
        super().__init__(*args, structured_output_manager=structured_output_manager, **more)


def _compile_behind(manager: Any) -> None:
    manager.executor.shutdown(wait=False)
    manager.executor = ThreadPoolExecutor(THREADS, "grammar", initializer=_step_back)


def _step_back() -> None:
    """On Linux a thread has a niceness of its own."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
