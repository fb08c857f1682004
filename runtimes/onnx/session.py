"""Sessions of ONNX Runtime, and the library itself.

`opened` refuses a provider that the library went on without; `plain` opens a graph as it is stored,
to look at its values; `optimise` stores what the library's optimisations make of a graph. The
library is imported on use.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runtimes.errors import LoadError, MissingBackend
from runtimes.onnx.session_options import CPU, ERRORS_ONLY, Provider


def library() -> Any:
    """The `onnxruntime` module. Raises `MissingBackend` where it is not installed."""
    try:
        return importlib.import_module("onnxruntime")
    except ImportError as error:
        raise MissingBackend(
            "the onnxruntime runtime needs its package: pip install 'headrace[onnxruntime]' "
            f"({error})"
        ) from error


def preload(module: Any) -> None:
    """Loads CUDA and cuDNN from NVIDIA's own packages where they are installed: the library looks
    for them on the system alone, so that its CUDA provider would not start. What is not found is
    left for the start of the provider to miss."""
    found = getattr(module, "preload_dlls", None)  # since ONNX Runtime 1.21
    if found is not None:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints a line for each it misses
            found()


def opened(file: Path, session_options: Any, wanted: Sequence[Provider] = ((CPU, {}),)) -> Any:
    """Raises `LoadError` for a model that cannot be loaded, `MissingBackend` for a provider that
    did not start."""
    try:
        made = library().InferenceSession(str(file), session_options, providers=list(wanted))
    except Exception as error:  # the library's errors share no base class
        raise LoadError(f"ONNX Runtime cannot load the model: {error}") from error
    # The library goes on without a provider that it cannot start.
    missing = [name for name, _ in wanted if name not in made.get_providers()]
    if missing:
        raise MissingBackend(
            f"ONNX Runtime could not start {' and '.join(missing)}, see its log: its libraries "
            "(CUDA, cuDNN, TensorRT) must be of the versions that this build asks for"
        )
    return made


def plain(file: Path) -> Any:
    """Of the graph as it is stored, without optimisations."""
    levels = library().GraphOptimizationLevel
    return opened(file, _session_options(levels.ORT_DISABLE_ALL))


def optimise(stored: Path) -> None:
    """Writes model.onnx beside it, with its weights in model.weights."""
    levels, folder = library().GraphOptimizationLevel, stored.parent
    made = _session_options(levels.ORT_ENABLE_ALL)
    made.optimized_model_filepath = str(folder / "model.onnx")
    made.add_session_config_entry(
        "session.optimized_model_external_initializers_file_name", "model.weights"
    )
    opened(stored, made)


def _session_options(level: Any) -> Any:
    made = library().SessionOptions()
    made.log_severity_level = ERRORS_ONLY
    made.graph_optimization_level = level
    return made
