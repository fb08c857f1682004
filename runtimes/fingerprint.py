"""The preprocessing fingerprint: how inputs were prepared when the model was trained.

A fingerprint maps fields to plain values. It is stored as `preprocessing.json` in the model's
folder or beside its file. The service describes its own preprocessing by the same fields, and every
stored field is compared when the model is loaded, because a model that was trained on RGB and is
fed BGR answers wrongly without an error. A field that the file does not have is not compared. A
field that the file has and the service does not know is refused, because the service would not do
it.

Fields: `tokenizer` ("sha256:" and the digest of tokenizer.json); of images `resize`, `antialias`,
`size`, `mean`, `std`, `layout`, `colour`. More may come: the mechanism knows none of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtimes import folder as model_folder
from runtimes.errors import LoadError

FILE = "preprocessing.json"
TOKENIZER_FILE = "tokenizer.json"
LENGTHS = model_folder.LENGTHS
FIELDS = ("tokenizer", "resize", "antialias", "size", "mean", "std", "layout", "colour")
CLOSE = 1e-6  # numbers as near as that, relative to the larger, were written by different hands

Fingerprint = Mapping[str, Any]


class Mismatch(LoadError):
    """What the service does is not what the artifact was made for; names the fields and values."""


def place(source: Path) -> Path:
    """Where the fingerprint of the model at `source` lies: in its folder, or beside its file."""
    return (source if source.is_dir() else source.parent) / FILE


def beside(source: Path, name: str) -> Path | None:
    """The file of that name in a model's folder, or beside its file; of a file in `onnx/` or
    `openvino/`, as the hub's models have them, else above it."""
    folder = source if source.is_dir() else source.parent
    above = (folder.parent,) if source.is_file() and folder.name in ("onnx", "openvino") else ()
    return next((file for each in (folder, *above) if (file := each / name).is_file()), None)


def longest(source: Path) -> int | None:
    """Tokens of the longest row: as sentence-transformers cuts texts for the model (of one with a
    vector for each token, a query and a document together), and no more than the network of a
    folder takes. None where neither is said. Raises `LoadError`."""
    file = beside(source, LENGTHS)
    said = model_folder.read(file) if file else {}
    cut = said.get("max_seq_length") if isinstance(said, dict) else None
    if cut is not None and (type(cut) is not int or cut < 1):
        raise LoadError(f"{file}: max_seq_length is {cut!r}; it must be a whole number from 1")
    is_folder = (source / "config.json").is_file()
    takes = model_folder.longest(source) if is_folder else None
    declared = None
    with contextlib.suppress(LoadError):  # whoever pools says what it does not support
        declared = model_folder.declared_pooling(source) if is_folder else None
    tokens = declared.tokens if declared else None
    if tokens and tokens.document_length:
        cut = max(tokens.query_length or 0, tokens.fill_length) + tokens.document_length
    return min((each for each in (cut, takes) if each is not None), default=None)


def read(source: Path) -> dict[str, Any]:
    """What is stored with the model; empty where nothing is. Raises `LoadError`."""
    file = place(source)
    if not file.is_file():
        return {}
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise LoadError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(stored, dict):
        raise LoadError(f'{file} must be a JSON object of fields, such as {{"colour": "rgb"}}')
    return stored


def write(source: Path, does: Fingerprint) -> Path:
    """Stores `does` with the model, fields in their usual order; the file. Raises `LoadError`."""
    file = place(source)
    order = {name: at for at, name in enumerate(FIELDS)}
    sorted_ = dict(sorted(does.items(), key=lambda item: (order.get(item[0], len(order)), item[0])))
    try:
        file.write_text(json.dumps(sorted_, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise LoadError(f"{file} cannot be written: {error}") from error
    return file


def tokenizer(source: Path | None) -> dict[str, Any]:
    """The field `tokenizer` of the model at `source`; empty where it has no tokenizer.json."""
    if source is None:
        return {}
    file = beside(source, TOKENIZER_FILE)
    if file is None:
        return {}
    return {"tokenizer": f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"}


def check(source: Path, does: Fingerprint) -> None:
    """Raises `Mismatch` where the stored fingerprint of the model at `source` is another than what
    the service `does`, naming each field with both values."""
    found = differences(read(source), does)
    if found:
        raise Mismatch(f"{place(source)}: {'; '.join(found)}")


def differences(stored: Fingerprint, does: Fingerprint) -> list[str]:
    """A sentence for each stored field that is not done, or not so."""
    return [
        f"{field} is {_shown(wanted)}, the service "
        + (f"does {_shown(does[field])}" if field in does else "does nothing of that name")
        for field, wanted in stored.items()
        if field not in does or not _same(wanted, does[field])
    ]


def _same(left: Any, right: Any) -> bool:
    """Numbers nearly, texts whatever their case, lists item by item; true is no 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, int | float) and isinstance(right, int | float):
        return math.isclose(left, right, rel_tol=CLOSE, abs_tol=CLOSE)
    if isinstance(left, str) and isinstance(right, str):
        return left.lower() == right.lower()
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right)


def _shown(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value, default=str)
