"""What is wrong with a model's files, as far as they show it without the backend's library?

`headrace check` and `headrace serve` ask before a process is started: is the artifact one that the
runtime runs, is it what its name says, does it hold code, is its architecture known, does it take
rows of `lengths.max`? What only the backend can tell still shows when a replica starts. Weights are
not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtimes import archive_text, catalog
from runtimes import options as option_parser
from runtimes.errors import LoadError, RefusedArtifact
from runtimes.graph import bert, pooling
from runtimes.graph.options import GraphOptions
from runtimes.source import Source, SourceKind, inspect_without_digest
from runtimes.vllm import inspection

WORDS = {
    SourceKind.HUGGING_FACE: "Hugging Face folders (BERT)",
    SourceKind.ONNX: "ONNX files",
    SourceKind.OPENVINO_IR: "OpenVINO IR (.xml)",
    SourceKind.TORCH_EXPORT: "torch.export archives (.pt2)",
}


@dataclass(frozen=True, slots=True)
class FileRequirements:
    """A model's settings that its files have to fit. `options`: as `catalog.check` passed them;
    `max_length`: None where rows have shapes of their own."""

    runtime: str
    task: str
    options: Mapping[str, Any]
    precision: str
    max_length: int | None


def check(path: Path, asked: FileRequirements) -> None:
    """Raises `LoadError`, of which `RefusedArtifact` is one."""
    if asked.runtime == "synthetic":
        return
    if asked.task == catalog.GENERATE:
        _check_generating(path, asked)
        return
    source = inspect_without_digest(path)
    runs = catalog.ENTRIES[asked.runtime].kinds
    if source.kind not in runs:
        others = [name for name, entry in catalog.ENTRIES.items() if source.kind in entry.kinds]
        raise LoadError(
            f"{asked.runtime} runs {', '.join(WORDS[kind] for kind in runs)}; {path} is of another "
            f"kind, which {' and '.join(others)} can run"
        )
    if source.kind is SourceKind.HUGGING_FACE:
        _check_folder(source, asked)
    elif source.kind is SourceKind.TORCH_EXPORT:
        _check_archive(source, asked)


def _check_generating(path: Path, asked: FileRequirements) -> None:
    if asked.options.get("trust_files"):
        return
    if not (path / "config.json").is_file():
        raise LoadError(f"{path} is no folder of a language model: it has no config.json")
    inspection.check([str(path)])


def _check_folder(source: Source, asked: FileRequirements) -> None:
    config = bert.read_config(source.path)
    longest = asked.max_length
    if longest is not None and longest > config.max_length:
        raise LoadError(
            f"{source.path} takes rows of {config.max_length} tokens at most, lengths.max is "
            f"{longest}; set lengths.max to {config.max_length} or less"
        )
    if asked.task == "embed":
        _check_pooling(source, asked)


def _check_pooling(source: Source, asked: FileRequirements) -> None:
    chosen = option_parser.parse(catalog.options_class(asked.runtime), asked.options)
    if not isinstance(chosen, GraphOptions) and pooling.declared(source.path) is None:
        raise LoadError(
            f"{source.path} declares no pooling (modules.json), and {asked.runtime} has no option "
            "for it; use openvino or onnxruntime"
        )
    if isinstance(chosen, GraphOptions) and pooling.of_folder(source.path, chosen) is None:
        raise LoadError(f"{source.path} {bert.NO_POOLING}")


def _check_archive(source: Source, asked: FileRequirements) -> None:
    if asked.precision != "fp32":
        raise LoadError(
            f"{source.path} runs in the precision that it was exported in; leave precision out"
        )
    wrong = archive_text.unsafe_in(source.path)
    if wrong is not None:
        raise RefusedArtifact(f"{source.path}: its graph could run code, it contains {wrong}")
