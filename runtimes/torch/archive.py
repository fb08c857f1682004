"""Loads a `torch.export` archive, after checking that loading it cannot run code.

A .pt2 archive can contain code: `torch.export.load` unpickles custom objects, old sample inputs and
weights that say `use_pickle`, loads compiled libraries, and evaluates text of the graph as Python.
So `check` reads the archive first and refuses it unless every part is plain data. It uses torch's
own reader, because another zip reader could see other members. `archive_text` checks the graph's
text.

A refused archive can be exported again without the part in question, or served as ONNX.
Source: `torch/export/pt2_archive/_package.py` and `torch/_export/serde/serialize.py` of torch 2.13.
"""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import torch

from runtimes import archive_text
from runtimes.errors import LoadError, RefusedArtifact

GRAPH, SAMPLES = archive_text.GRAPH, "data/sample_inputs/model.pt"
PAYLOADS = {
    "data/weights/model_weights_config.json": "weight_",
    "data/constants/model_constants_config.json": "tensor_",
}
PLAIN = ("archive_format", "archive_version", "byteorder", ".data/", "extra/")
AGAIN = "save it again with torch.export.save of a current torch, without custom objects"


def load(path: Path) -> Any:
    """The `ExportedProgram`. Raises `RefusedArtifact` before any code of the archive could run."""
    check(path)
    try:
        return torch.export.load(path)
    except Exception as error:  # torch raises many types here, from KeyError to RuntimeError
        raise LoadError(f"{path} cannot be loaded by torch {torch.__version__}: {error}") from error


def check(path: Path) -> None:
    """Raises `RefusedArtifact`, which names a part that could run code or does not belong there."""
    reader = _open(path)
    names = reader.get_all_records()
    for name in names:
        folder, _, leaf = name.rpartition("/")
        payload = folder in ("data/weights", "data/constants") and not leaf.endswith(".pt")
        if not payload and name not in (GRAPH, SAMPLES) and not name.startswith(PLAIN):
            raise RefusedArtifact(f"{path} contains '{name}', which is not plain data: {AGAIN}")
    for config, prefix in PAYLOADS.items():
        stored = json.loads(reader.get_record(config))["config"] if config in names else {}
        for name, entry in stored.items():
            if entry["use_pickle"] or not entry["path_name"].startswith(prefix):
                raise RefusedArtifact(f"{path} contains '{name}' as a pickle: {AGAIN}")
    if SAMPLES in names:
        try:
            torch.load(io.BytesIO(reader.get_record(SAMPLES)), weights_only=True)
        except Exception as error:  # after any error here, `torch.export.load` would unpickle
            raise RefusedArtifact(
                f"{path}: its sample inputs are not plain tensors: {AGAIN}"
            ) from error
    if GRAPH not in names:
        raise RefusedArtifact(f"{path} contains no {GRAPH}: {AGAIN}")
    graph = json.loads(reader.get_record(GRAPH))
    wrong = archive_text.first_unsafe(graph)
    if wrong is not None:
        raise RefusedArtifact(f"{path}: its graph could run code, it contains {wrong}")
    unknown = archive_text.operators(graph) - set(torch._C._dispatch_get_all_op_names())
    if unknown:
        raise RefusedArtifact(
            f"{path}: torch {torch.__version__} has no operator {' or '.join(sorted(unknown))}: "
            "export the model with this version of torch"
        )


def _open(path: Path) -> Any:
    if not path.is_file():
        raise LoadError(f"{path} is not a file")
    try:
        with zipfile.ZipFile(path) as archive:
            names, entries = archive.namelist(), archive.infolist()
        roots = {name.split("/", 1)[0] for name in names if "/" in name}
        if len(roots) != 1 or any("/" not in name for name in names):
            # Files beside the one folder at the top come from torch 2.7 or older, which pickles.
            raise RefusedArtifact(
                f"{path} is an archive of an old torch, which may contain pickles: {AGAIN}"
            )
        for entry in entries:  # torch compresses nothing: what is may unpack to any size
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
                raise RefusedArtifact(f"{path} contains '{entry.filename}' compressed: {AGAIN}")
        return torch._C.PyTorchFileReader(str(path))
    except (zipfile.BadZipFile, RuntimeError) as error:
        raise RefusedArtifact(f"{path} is not a torch.export archive: {error}") from error
