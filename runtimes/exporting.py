"""Writes the ONNX file of a Hugging Face folder, once a node, in a process of its own.

The process (`runtimes.torch.export`) loads torch and transformers, so that no replica has to. It
may not connect to anything and ends with its caller. The caller ends it when it holds too much
memory or takes too long: under a limit of the system's, torch can hang instead of fail. What it
writes is staged under all that shapes it: the folder's files, the versions of torch, transformers
and the exporter, the task and the pooling. Replicas that start together wait for the one export.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import IO, Any

import psutil

from runtimes import host, staging
from runtimes.errors import LoadError, MissingBackend
from runtimes.folder import pooling_of
from runtimes.graph.bert import is_built
from runtimes.graph.options import GraphOptions
from runtimes.source import Source, SourceKind, inspect, streamed_weights
from runtimes.types import RuntimeSettings

FILE = "model.onnx"
LIMIT_S = 900.0
PACKAGES = ("torch", "transformers", "onnxscript")
LAYOUT = "2"  # raised when the same inputs get exported differently
_FREE_BYTES = 4 << 30  # for the libraries, beside the weights
_COPIES = 6  # of the weights that an export holds at most
_LOOK_S = 0.1


def key(source: Source, settings: RuntimeSettings, options: GraphOptions) -> list[str]:
    """What shapes the export besides the folder's files, and whether its operators are standard."""
    versions = [_version(name) for name in PACKAGES]
    chosen = pooling_of(source.path, options.pooling, options.normalize)
    images = ["images"] if settings.row_shapes is not None else []
    return ["export", LAYOUT, *versions, settings.task, repr(chosen), *images]


def exported(
    source: Source, settings: RuntimeSettings, options: GraphOptions, *, standard: bool
) -> Path:
    """The ONNX file. `standard`: it has no operators of ONNX Runtime's own. Raises `LoadError`;
    `MissingBackend` where a package is not installed."""
    parts = _parts(source, settings, options, standard)

    def build(folder: Path) -> None:
        missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
        if missing:
            raise MissingBackend(
                f"{source.path} is exported to ONNX at its first start, which needs "
                f"{', '.join(missing)}: pip install 'headrace[export]'"
            )
        weights = sum(file.stat().st_size for file in source.weights)
        memory = _FREE_BYTES + _COPIES * weights
        order = _order(source, settings, options, folder) | {"standard": standard}
        _run(order, settings, memory)

    return staging.staged(settings.cache_dir, parts, build) / FILE


def language_model(folder: Path, settings: RuntimeSettings) -> Path:
    """The folder of a language model's graph for OpenVINO (`runtimes.openvino.causal`). Raises
    `LoadError`; `MissingBackend` where a package is not installed."""
    weights = streamed_weights(folder)
    digest = staging.digest_of([folder / "config.json", *weights], folder, settings.cache_dir)
    packages = ("torch", "transformers", "openvino")
    parts = [digest, "language model", LAYOUT, *map(_version, packages)]

    def build(out: Path) -> None:
        size = sum(file.stat().st_size for file in weights)
        threads = settings.threads or host.allowed_cpus()
        order = {"folder": str(folder), "out": str(out), "task": "generate", "threads": threads}
        _run(order, settings, _FREE_BYTES + _COPIES * size)

    return staging.staged(settings.cache_dir, parts, build)


def is_due(settings: RuntimeSettings, options: object) -> bool:
    """Whether the model's next start on this node exports its folder. `settings`: as the backend
    gets them (`catalog.as_run`); `options`: the backend's, parsed. Raises `LoadError`."""
    if not isinstance(options, GraphOptions) or settings.source is None:
        return False
    source = inspect(settings.source, settings.cache_dir)
    if source.kind is not SourceKind.HUGGING_FACE:
        return False
    declared = pooling_of(source.path, options.pooling, options.normalize)
    return not is_built(source.path, settings.task, declared) and not any(
        staging.is_staged(settings.cache_dir, _parts(source, settings, options, standard))
        for standard in (False, True)
    )


def _parts(
    source: Source, settings: RuntimeSettings, options: GraphOptions, standard: bool
) -> list[str]:
    return [source.digest, *key(source, settings, options), f"standard {standard}"]


def _order(
    source: Source, settings: RuntimeSettings, options: GraphOptions, out: Path
) -> dict[str, Any]:
    return {
        "folder": str(source.path),
        "out": str(out),
        "task": settings.task,
        "pooling": options.pooling,
        "normalize": options.normalize,
        "images": settings.row_shapes is not None,
        "threads": settings.threads or host.allowed_cpus(),
    }


def _run(order: dict[str, Any], settings: RuntimeSettings, memory: int) -> None:
    with (
        tempfile.TemporaryFile() as complaints,
        subprocess.Popen(
            [sys.executable, "-m", "runtimes.torch.export"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            cwd=Path(__file__).parents[1],  # where `-m` finds this package
        ) as child,
    ):
        bounds = _Bounds(child, memory)
        bounds.start()
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(json.dumps(order) + "\n")
            child.stdin.flush()
            wrong = ""
            for answer in _answers(child.stdout):
                wrong = answer.get("error", wrong)
                settings.progress("staging", answer.get("done", 0.0))
            status = child.wait()
        finally:
            child.kill()
        bounds.join()
        wrong = bounds.passed or wrong
        if wrong or status:
            raise LoadError(
                f"{order['folder']} cannot be exported: {wrong or _end_of(status, complaints)}"
            )


class _Bounds(threading.Thread):
    """Ends a process that holds more than `memory` bytes or runs for longer than `LIMIT_S`."""

    def __init__(self, child: subprocess.Popen[str], memory: int) -> None:
        super().__init__(daemon=True)
        self.passed = ""  # the bound that ended it, in words
        self._child = child
        self._memory = memory

    def run(self) -> None:
        latest = time.perf_counter() + LIMIT_S
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self._child.pid)
            while self._child.returncode is None:
                if process.memory_info().rss > self._memory:
                    self.passed = f"it needs more than {self._memory >> 20} MiB of memory"
                elif time.perf_counter() > latest:
                    self.passed = f"it took longer than {LIMIT_S:.0f} s"
                if self.passed:
                    self._child.kill()
                    return
                time.sleep(_LOOK_S)


def _answers(stream: IO[str]) -> Iterator[dict[str, Any]]:
    for line in stream:
        try:
            answer = json.loads(line)
        except ValueError:
            continue
        if isinstance(answer, dict):
            yield answer


def _end_of(status: int, complaints: IO[bytes]) -> str:
    """Why a process ended that said nothing."""
    if status == -9:
        return "the process was killed; there may not be enough memory"
    complaints.seek(0)
    last = complaints.read()[-2000:].decode(errors="replace").strip().splitlines()
    ended = f"the process ended by signal {-status}" if status < 0 else f"exit code {status}"
    return f"{ended}: {last[-1][:400]}" if last else ended


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
