"""The loading of a `torch.export` archive, and the check that it may be loaded.

A .pt2 archive is data only in spirit: `torch.export.load` unpickles weights that say `use_pickle`,
custom objects and old sample inputs, loads compiled libraries, and evaluates text of the graph as
Python. So the archive is read first with torch's own reader (a second zip reader could see other
members), and refused unless every part is plain data; `archive_text` judges the graph's text.

What is refused here can be exported again without the part in question, or served as ONNX.
Source: `torch/export/pt2_archive/_package.py` and `torch/_export/serde/serialize.py` of torch 2.13.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from runtimes import archive_text
from runtimes.errors import LoadError, RefusedArtifact

GRAPH, SAMPLES = "models/model.json", "data/sample_inputs/model.pt"
PAYLOADS = {
    "data/weights/model_weights_config.json": "weight_",
    "data/constants/model_constants_config.json": "tensor_",
}
PLAIN = ("archive_format", "archive_version", "byteorder", ".data/", "extra/")
AGAIN = "save it again with torch.export.save of a current torch, without custom objects"


def load(path: Path) -> Any:
    """The `ExportedProgram`. Raises `RefusedArtifact` before anything of it could run."""
    check(path)
    try:
        return torch.export.load(path)
    except Exception as error:  # torch raises its whole range here, from KeyError to RuntimeError
        raise LoadError(f"{path} cannot be loaded by torch {torch.__version__}: {error}") from error


def check(path: Path) -> None:
    """Raises `RefusedArtifact` naming the part that could run code, or is no part of an archive."""
    reader = _open(path)
    names = reader.get_all_records()
    for name in names:
        _check_name(path, name)
    for config, prefix in PAYLOADS.items():
        if config in names:
            _check_payloads(path, json.loads(reader.get_record(config)), prefix)
    if SAMPLES in names:
        _check_samples(path, reader.get_record(SAMPLES))
    if GRAPH not in names:
        raise RefusedArtifact(f"{path} holds no {GRAPH}: {AGAIN}")
    wrong = archive_text.first_unsafe(json.loads(reader.get_record(GRAPH)))
    if wrong is not None:
        raise RefusedArtifact(f"{path}: its graph holds {wrong}, which could run code; {AGAIN}")


def _open(path: Path) -> Any:
    if not path.is_file():
        raise LoadError(f"{path} is no file")
    try:
        with zipfile.ZipFile(path) as archive:
            _check_root(path, archive.namelist())
        return torch._C.PyTorchFileReader(str(path))
    except (zipfile.BadZipFile, RuntimeError) as error:
        raise RefusedArtifact(f"{path} is no torch.export archive: {error}") from error


def _check_root(path: Path, names: Iterable[str]) -> None:
    """One folder at the top: files beside it are how torch 2.7 saved, by pickle."""
    roots = {name.split("/", 1)[0] for name in names if "/" in name}
    if len(roots) != 1 or any("/" not in name for name in names):
        raise RefusedArtifact(f"{path} is an archive of an old torch, which may pickle: {AGAIN}")


def _check_name(path: Path, name: str) -> None:
    folder, _, leaf = name.rpartition("/")
    payload = folder in ("data/weights", "data/constants") and not leaf.endswith(".pt")
    if not payload and name not in (GRAPH, SAMPLES) and not name.startswith(PLAIN):
        raise RefusedArtifact(f"{path} holds '{name}', which is not plain data: {AGAIN}")


def _check_payloads(path: Path, config: Any, prefix: str) -> None:
    for name, entry in config["config"].items():
        if entry["use_pickle"] or not entry["path_name"].startswith(prefix):
            raise RefusedArtifact(f"{path} holds '{name}' as a pickle: {AGAIN}")


def _check_samples(path: Path, content: bytes) -> None:
    """torch falls back to a full unpickling where this fails, so it must not fail."""
    try:
        torch.load(io.BytesIO(content), weights_only=True)
    except Exception as error:  # whatever it was, torch would go on to unpickle
        raise RefusedArtifact(f"{path}: its sample inputs are no plain tensors: {AGAIN}") from error
