"""How every backend declares itself, starts, stages, reports and ends; and that all agree.

The same cases as for the answers. Starting is tested with one case a backend.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from runtime_cases import (
    Case,
    answer_and_close,
    each_backend,
    each_from_files,
    everything,
    settings,
)

from runtimes import catalog
from runtimes.errors import BadRows, LoadError, RefusedArtifact, RuntimeFault
from runtimes.testing import LONGEST, assert_close, batch_of

# ---- declarations, health, times ----------------------------------------------------------


@everything
def test_limits_stay_what_they_were(running):
    before = running.limits()
    running.run(batch_of(before, (2,)))
    assert running.limits() == before
    assert before.platform
    assert before.length_input is None or before.length_input in {s.name for s in before.inputs}


@everything
def test_loaded_backend_is_healthy(running):
    running.health()


# ---- starting and ending ------------------------------------------------------------------


@each_backend
def test_closing_twice_is_fine_and_running_after_it_is_not(case, sources, cache):
    runtime = catalog.create(settings(case, sources, cache))
    runtime.load()
    batch = batch_of(runtime.limits(), (2,))
    runtime.run(batch)
    runtime.close()
    runtime.close()
    with pytest.raises(RuntimeFault):
        runtime.run(batch)
    with pytest.raises(RuntimeFault):
        runtime.health()


@each_backend
def test_start_tells_its_progress(case, sources, cache):
    told: list[tuple[str, float]] = []
    runtime = catalog.create(
        settings(case, sources, cache, progress=lambda *step: told.append(step))
    )
    runtime.load()
    runtime.warm()
    runtime.close()
    assert {phase for phase, _ in told} >= {"staging", "warming"}
    assert {phase for phase, _ in told} <= {"staging", "compiling", "warming"}
    assert all(0 <= fraction <= 1 for _, fraction in told)
    assert told[-1] == ("warming", 1.0)


@each_backend
def test_unknown_option_is_a_load_error_that_names_it(case, sources, cache):
    spoiled = replace(settings(case, sources, cache), options={"no_such_option": 1})
    with pytest.raises(LoadError, match="no_such_option"):
        catalog.create(spoiled)


@each_backend
def test_unknown_precision_is_a_load_error_that_names_it(case, sources, cache):
    with pytest.raises(LoadError, match="fp3"):
        catalog.create(replace(settings(case, sources, cache), precision="fp3"))


@each_backend
@pytest.mark.parametrize("longest", [1, 2, LONGEST])
def test_longest_row_is_what_the_settings_say(case, longest, sources, cache):
    runtime = catalog.create(settings(case, sources, cache, max_length=longest))
    runtime.load()
    limits = runtime.limits()
    assert limits.max_length == longest
    runtime.run(batch_of(limits, (longest,)))
    with pytest.raises(BadRows):
        runtime.run(batch_of(limits, (longest + 1,)))
    runtime.close()


@each_from_files
def test_longest_row_beyond_the_model_is_a_load_error_that_says_what_would_do(case, sources, cache):
    runtime = catalog.create(settings(case, sources, cache, max_length=LONGEST + 1))
    with pytest.raises(LoadError, match=rf"set lengths\.max to {LONGEST} or less"):
        runtime.load()


@each_backend
def test_length_input_that_the_model_lacks_is_a_load_error(case, sources, cache):
    runtime = catalog.create(settings(case, sources, cache, length_input="no_such_input"))
    with pytest.raises(LoadError, match=r"lengths\.input .*no_such_input"):
        runtime.load()


@each_from_files
def test_missing_source_is_a_load_error_that_names_the_path(case, sources, cache, tmp_path):
    absent = tmp_path / "absent.onnx"
    runtime = catalog.create(replace(settings(case, sources, cache), source=absent))
    with pytest.raises(LoadError, match=r"absent\.onnx"):
        runtime.load()


@each_from_files
def test_pickles_are_refused_unopened(case, sources, cache, tmp_path):
    marker = tmp_path / "executed"
    pickled = tmp_path / "model.pt"
    pickled.write_bytes(b"cos\nsystem\n(S'touch " + str(marker).encode() + b"'\ntR.")
    runtime = catalog.create(replace(settings(case, sources, cache), source=pickled))
    with pytest.raises(RefusedArtifact):
        runtime.load()
    assert not marker.exists()


@each_from_files
def test_second_load_finds_everything_staged(case, sources, tmp_path):
    chosen = settings(case, sources, tmp_path / "cache")
    first = answer_and_close(chosen)
    stamps = _stamps(tmp_path / "cache")
    assert stamps
    second = answer_and_close(chosen)
    assert _stamps(tmp_path / "cache") == stamps
    for name, ragged in first.outputs.items():
        assert_close(ragged.data, second.outputs[name].data)


def _stamps(folder: Path) -> dict[str, int]:
    """Modification times of what is staged; lock files carry no content."""
    files = (file for file in folder.rglob("*") if file.is_file() and file.suffix != ".lock")
    return {str(file): file.stat().st_mtime_ns for file in files}


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_one_thread_means_one_processor_busy(runtime, sources, cache):
    if (os.cpu_count() or 1) < 2:
        pytest.skip("one processor cannot show a second thread")
    chosen = settings(Case(runtime, "heavy.onnx"), sources, cache, max_size=256)
    backend = catalog.create(chosen)
    backend.load()
    batch = batch_of(backend.limits(), (1,) * 256)
    backend.run(batch)
    # A second thread would be busy in every round; what earlier tests left running is so in some.
    shares = [share_of_a_processor(lambda: backend.run(batch)) for _ in range(10)]
    backend.close()
    assert min(shares) < 1.2


def share_of_a_processor(run: Callable[[], object]) -> float:
    """Processor time of this process, all its threads, for each second of ten runs."""
    wall, busy = time.perf_counter(), time.process_time()
    for _ in range(10):
        run()
    return (time.process_time() - busy) / (time.perf_counter() - wall)


@pytest.mark.parametrize("threads", [1, 2])
def test_torch_uses_the_threads_it_is_given(threads, sources, cache):
    backend = catalog.create(
        settings(Case("torch", "bert", "embed"), sources, cache, threads=threads)
    )
    backend.load()
    assert sys.modules["torch"].get_num_threads() == threads
    backend.close()


# ---- agreement between backends -----------------------------------------------------------


@pytest.mark.parametrize("task", ["embed", "tensors", "classify"])
@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_backends_agree_on_the_same_weights(runtime, task, sources, cache):
    theirs = answer_and_close(settings(Case(runtime, "bert", task), sources, cache))
    torchs = answer_and_close(settings(Case("torch", "bert", task), sources, cache))
    assert set(theirs.outputs) == set(torchs.outputs)
    for name, ragged in torchs.outputs.items():
        np.testing.assert_allclose(theirs.outputs[name].data, ragged.data, atol=1e-4)
