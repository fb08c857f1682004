"""How fast these processors compute and copy at most, with the threads that a model has.

A square matrix product in the backend's own library and number format, and a copy of memory larger
than the caches, each timed for a fraction of a second and the fastest kept: what the device does
when nothing else is in the way. Against it a model's own rates are judged.

Linear algebra outside a backend's library runs in a process of its own, because the number of its
threads is fixed once it is loaded. Source: Williams et al., "Roofline" (2009) for the two peaks.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

import numpy as np

SIZE = 1024  # of the matrices: 12 MiB for three of FP32
_WORK = 2.0 * SIZE**3
_COPY_BYTES = 256 << 20
_MIN_RUNS = 3
_PRODUCT = (
    "import json, os; os.environ.update(dict.fromkeys(('OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS', "
    "'OMP_NUM_THREADS', 'VECLIB_MAXIMUM_THREADS'), '{threads}'));"
    "from runtimes.peaks import of_numpy; print(json.dumps(of_numpy({seconds})))"
)


def flops(runtime: str, precision: str, threads: int, seconds: float) -> float | None:
    """Floating-point operations a second of a matrix product; None where it cannot be told."""
    if precision not in ("fp32", "bf16"):
        return None
    if runtime == "torch":  # with the threads that the loaded model has set for its process
        torch: Any = importlib.import_module("torch")
        kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
        left, right = (torch.ones(SIZE, SIZE, dtype=kind) for _ in range(2))
        with torch.inference_mode():
            return _WORK / _min_s(lambda: torch.mm(left, right), seconds)
    if runtime == "openvino":
        return _of_openvino(precision, threads, seconds)
    if precision != "fp32":
        return None
    # S603: our own interpreter and our own code.
    code = _PRODUCT.format(threads=threads, seconds=seconds)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    return float(json.loads(done.stdout)) if done.returncode == 0 else None


def copied_bytes(threads: int, seconds: float) -> float:
    """Bytes a second, read and written ones both counted, of `threads` that copy at once."""
    share = _COPY_BYTES // threads
    pairs = [(np.zeros(share, np.uint8), np.ones(share, np.uint8)) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        min_s = _min_s(lambda: list(pool.map(lambda pair: np.copyto(*pair), pairs)), seconds)
    return 2 * share * threads / min_s


def of_numpy(seconds: float) -> float:
    """As `flops`, with as many threads as the process has been given."""
    left, right = (np.ones((SIZE, SIZE), np.float32) for _ in range(2))
    out = np.empty_like(left)
    return _WORK / _min_s(lambda: np.matmul(left, right, out=out), seconds)


def _of_openvino(precision: str, threads: int, seconds: float) -> float:
    from runtimes.openvino.model import library
    from runtimes.openvino.runtime import HINTS

    ov = library()
    opset: Any = importlib.import_module("openvino.opset13")
    given = opset.parameter([SIZE, SIZE], np.float32)
    weights = opset.constant(np.ones((SIZE, SIZE), np.float32))
    model = ov.Model([opset.matmul(given, weights, False, True)], [given])
    config = {
        "INFERENCE_PRECISION_HINT": HINTS[precision],
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
    }
    request = ov.Core().compile_model(model, "CPU", config).create_infer_request()
    request.set_input_tensor(ov.Tensor(np.ones((SIZE, SIZE), np.float32)))
    return _WORK / _min_s(request.infer, seconds)


def _min_s(run: Callable[[], object], seconds: float) -> float:
    run()
    end = perf_counter() + seconds
    took: list[float] = []
    while len(took) < _MIN_RUNS or perf_counter() < end:
        begin = perf_counter()
        run()
        took.append(perf_counter() - begin)
    return min(took)
