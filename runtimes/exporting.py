"""Writes the ONNX file of a Hugging Face folder, once a node, in a process of its own.

The process (`runtimes.torch.export`) loads torch and transformers, so that no replica has to. It
may not connect to anything, has a bound of memory and of time, and ends with its caller. What it
writes is staged under all that shapes it: the folder's files, the versions of torch, transformers
and the exporter, the task and the pooling. Replicas that start together wait for the one export.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from runtimes import host, staging
from runtimes.errors import LoadError, MissingBackend
from runtimes.folder import pooling_of
from runtimes.graph.options import GraphOptions
from runtimes.source import Source
from runtimes.types import RuntimeSettings

FILE = "model.onnx"
LIMIT_S = 900.0
PACKAGES = ("torch", "transformers", "onnxscript")
LAYOUT = "1"  # raised when the same inputs get exported differently
_FREE_BYTES = 4 << 30  # for the libraries, beside the weights
_COPIES = 6  # of the weights that an export holds at most


def key(source: Source, task: str, options: GraphOptions) -> list[str]:
    """What shapes the export besides the folder's files."""
    versions = [_version(name) for name in PACKAGES]
    chosen = pooling_of(source.path, options.pooling, options.normalize)
    return ["export", LAYOUT, *versions, task, repr(chosen)]


def exported(source: Source, settings: RuntimeSettings, options: GraphOptions) -> Path:
    """The ONNX file. Raises `LoadError`; `MissingBackend` where a package is not installed."""
    parts = [source.digest, *key(source, settings.task, options)]

    def build(folder: Path) -> None:
        missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
        if missing:
            raise MissingBackend(
                f"{source.path} is exported to ONNX at its first start, which needs "
                f"{', '.join(missing)}: pip install 'headrace[export]'"
            )
        _run(_order(source, settings, options, folder), settings)

    return staging.staged(settings.cache_dir, parts, build) / FILE


def _order(
    source: Source, settings: RuntimeSettings, options: GraphOptions, out: Path
) -> dict[str, Any]:
    weights = sum(file.stat().st_size for file in source.weights)
    return {
        "folder": str(source.path),
        "out": str(out),
        "task": settings.task,
        "pooling": options.pooling,
        "normalize": options.normalize,
        "threads": settings.threads or host.allowed_cpus(),
        "memory": _FREE_BYTES + _COPIES * weights,
    }


def _run(order: dict[str, Any], settings: RuntimeSettings) -> None:
    folder = order["folder"]
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
        late = threading.Event()

        def end() -> None:
            late.set()
            child.kill()

        timer = threading.Timer(LIMIT_S, end)
        timer.start()
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
            timer.cancel()
            child.kill()
        if late.is_set():
            raise LoadError(f"the export of {folder} took longer than {LIMIT_S:.0f} s")
        if wrong or status:
            raise LoadError(f"{folder} cannot be exported: {wrong or _end_of(status, complaints)}")


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
