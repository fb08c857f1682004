"""What kind of model is at a path, which files belong to it, and what is its digest?

Four kinds: an ONNX file with its external data, a Hugging Face folder with safetensors, OpenVINO
IR, and a `torch.export` archive. The digest is a SHA-256 over the files that decide what the model
computes and how texts become its tokens. A file that could run code when it is opened (pickles,
TorchScript), or that is not what its name says, is refused without being opened.

No model is loaded: an ONNX file's protobuf is walked field by field, weights skipped, so that a
model of gigabytes takes no memory. A field may be given twice, in any order. Sources: the formats'
own descriptions; sentence-transformers' folders; onnx.proto of ONNX 1.18; the protobuf encoding.
"""

from __future__ import annotations

import json
import mmap
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path, PurePosixPath

from runtimes.errors import LoadError, RefusedArtifact
from runtimes.folder import longest, module_files
from runtimes.staging import digest_of

PICKLES = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".joblib", ".ckpt", ".dill"})
INSTEAD = "give safetensors, an ONNX file, OpenVINO IR or a torch.export archive (.pt2) instead"
MAX_FILES = 10_000  # in a folder of no known kind
_INDEX = "model.safetensors.index.json"  # of shards
_MAX_HEADER_BYTES = 100_000_000  # of a safetensors file, as its library has it
_TORCH = "of a torch model torch.export.save writes an archive, torch.onnx.export a graph"
_TREES = "of XGBoost and LightGBM models onnxmltools writes a graph"
_KERAS = "of Keras and TensorFlow models tf2onnx writes a graph"
HOW = {  # to get there, by the type of file
    **dict.fromkeys((".pt", ".pth", ".bin", ".ckpt"), _TORCH),
    **dict.fromkeys(
        (".pkl", ".pickle", ".joblib", ".dill"), "of a scikit-learn model skl2onnx writes a graph"
    ),
    **dict.fromkeys((".json", ".ubj", ".model", ".txt", ".cbm"), _TREES),
    **dict.fromkeys((".h5", ".keras", ".pb", ".tflite"), _KERAS),
}


class SourceKind(Enum):
    ONNX = "onnx"
    HUGGING_FACE = "hugging_face"
    OPENVINO_IR = "openvino_ir"
    TORCH_EXPORT = "torch_export"


@dataclass(frozen=True, slots=True)
class Source:
    """`path`: the file (the .xml of IR) or the folder; `files`: all that matter, sorted; `weights`:
    the safetensors among them; `digest`: 64 hexadecimal digits over names and contents."""

    kind: SourceKind
    path: Path
    files: tuple[Path, ...]
    weights: tuple[Path, ...]
    digest: str

    @property
    def longest(self) -> int | None:
        """Tokens of the longest row that a folder's network takes; None where it does not say, and
        of files. Raises `LoadError`."""
        return longest(self.path) if self.kind is SourceKind.HUGGING_FACE else None


def inspect(path: Path, cache_dir: Path | None = None) -> Source:
    """Raises `RefusedArtifact` for what could run code, `LoadError` for what is missing.

    With `cache_dir`, files that have not changed (size, mtime) are not read again for the digest.
    """
    found = inspect_without_digest(path)
    base = found.path if found.path.is_dir() else found.path.parent
    return replace(found, digest=digest_of(found.files, base, cache_dir))


def all_files(path: Path) -> tuple[Path, ...]:
    """The file, or all files of the folder, sorted, but what Python writes itself and what is
    hidden. Raises `LoadError` for more than `MAX_FILES`."""
    if path.is_file():
        return (path,)
    found: list[Path] = []
    for parent, folders, files in os.walk(path):
        folders[:] = [each for each in folders if each != "__pycache__" and each[0] != "."]
        paths = (Path(parent, file) for file in files if not file.startswith("."))
        found += [each for each in paths if each.is_file()]  # neither a dead link nor a pipe
        if len(found) > MAX_FILES:
            raise LoadError(
                f"{path} holds more than {MAX_FILES} files; give the model a folder of its own"
            )
    return tuple(sorted(found))


def inspect_without_digest(path: Path) -> Source:
    """As `inspect`, for who needs no digest ("") and no file read whole for it."""
    path = path.expanduser().absolute()
    if not path.exists():
        raise LoadError(f"the model's source {path} does not exist")
    kind, files = _folder(path) if path.is_dir() else _file(path)
    files = tuple(sorted(set(files)))
    weights = tuple(file for file in files if file.suffix == ".safetensors")
    return Source(kind, path, files, weights, "")


def _file(path: Path) -> tuple[SourceKind, tuple[Path, ...]]:
    if path.suffix == ".onnx":
        start = _start(path)
        if start[:1] in (b"\x80", b"<", b"{") or start.startswith(b"PK"):
            raise RefusedArtifact(f"{path} is no ONNX model, whatever its name says; {INSTEAD}")
        external = (_beside(path, name) for name in sorted(external_data(path)))
        return SourceKind.ONNX, (path, *external)
    if path.suffix == ".xml":
        if not _start(path).lstrip(b"\xef\xbb\xbf \r\n\t").startswith((b"<?xml", b"<net")):
            raise RefusedArtifact(f"{path} is no OpenVINO IR, whatever its name says; {INSTEAD}")
        weights = path.with_suffix(".bin")
        if not weights.is_file():
            raise LoadError(f"{path} lacks its weights: {weights.name} must lie beside it")
        return SourceKind.OPENVINO_IR, (path, weights)
    if path.suffix == ".pt2":
        try:
            with zipfile.ZipFile(path) as archive:
                names = {name.split("/", 1)[-1] for name in archive.namelist()}
        except (zipfile.BadZipFile, OSError) as error:
            raise RefusedArtifact(f"{path} is no torch.export archive: {error}") from error
        if "archive_format" not in names or "data.pkl" in names:
            raise RefusedArtifact(
                f"{path} is no torch.export archive (torch.export.save); {INSTEAD}"
            )
        return SourceKind.TORCH_EXPORT, (path,)
    if path.suffix == ".bin" and path.with_suffix(".xml").is_file():
        raise LoadError(f"{path} holds weights alone; name {path.with_suffix('.xml').name}")
    if path.suffix == ".safetensors":
        raise LoadError(f"{path} holds weights alone; name its folder, with config.json in it")
    if path.suffix.lower() in PICKLES:
        raise RefusedArtifact(
            f"{path} may be a pickle, which runs code when opened; {INSTEAD}{_how(path)}"
        )
    raise LoadError(f"{path}: the type of this file is not known; {INSTEAD}{_how(path)}")


def _how(path: Path) -> str:
    how = HOW.get(path.suffix.lower())
    return f" ({how})" if how else ""


def _target(link: Path) -> Path:
    """The folder that a link leads to, whose content may be a link too."""
    return (link.parent.resolve() / link.readlink()).parent.resolve()


def _beside(model: Path, name: str) -> Path:
    """A file that `model` names. A link is followed where it stays in the model's folder, or leads
    to where the model's own file lies, as all links of a Hugging Face cache do."""
    place = PurePosixPath(name)
    if place.is_absolute() or ".." in place.parts or "\\" in name or "\0" in name:
        raise RefusedArtifact(f"{model} names data outside its folder: {name!r}")
    file = model.parent / place
    if not file.is_file():
        target = model.parent / model.readlink() if model.is_symlink() else None
        hint = f"; it is a link, name {target} itself" if target else ""
        raise LoadError(f"{model} keeps weights in {name}, which is not beside it{hint}")
    homes = model.parent.resolve(), model.resolve().parent
    real = file.resolve()
    beside = file.is_symlink() and model.is_symlink() and _target(file) == _target(model)
    if not beside and not any(real.is_relative_to(home) for home in homes):
        raise RefusedArtifact(
            f"{model} names {name}, a link to {real}, which is outside the model's folder: put the "
            "file itself there"
        )
    return file


def _folder(path: Path) -> tuple[SourceKind, tuple[Path, ...]]:
    if not (path / "config.json").is_file():
        kinds = (".onnx", ".xml", ".pt2")
        models = sorted(file.name for file in path.iterdir() if file.suffix in kinds)
        if not models:
            raise LoadError(
                f"{path} is no model folder: it has no config.json; must be a folder as "
                "save_pretrained writes it, or a file of type .onnx, .xml or .pt2"
            )
        named = " or ".join(models)
        raise LoadError(f"{path} is a folder without config.json; name the file itself: {named}")
    weights = tuple(_shards(path))
    if not weights:
        pickled = sorted(file.name for file in path.iterdir() if file.suffix.lower() in PICKLES)
        if not pickled:
            raise LoadError(
                f"{path} holds no *.safetensors; add model.safetensors, the network's weights"
            )
        raise RefusedArtifact(
            f"{path} holds pickled weights only ({', '.join(pickled)}), which run code when "
            "opened; convert them to safetensors where you trust them (save_pretrained does)"
        )
    optional = ("modules.json", "tokenizer.json", _INDEX)
    others = [file for file in (path / name for name in optional) if file.is_file()]
    others += module_files(path)
    for file in (*weights, *(each for each in others if each.suffix == ".safetensors")):
        check_weights(file)
    return SourceKind.HUGGING_FACE, (path / "config.json", *weights, *others)


def _shards(path: Path) -> Iterator[Path]:
    index = path / _INDEX
    if not index.is_file():
        single = path / "model.safetensors"
        yield from (single,) if single.is_file() else sorted(path.glob("*.safetensors"))
        return
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LoadError(f"{index} cannot be read: {error}") from error
    yield from (_beside(index, name) for name in sorted(set(places)))


def streamed_weights(path: Path) -> list[Path]:
    """The safetensors files that vLLM reads: the index's, or all. Raises `LoadError`."""
    indexed = (path / _INDEX).is_file()
    return list(_shards(path)) if indexed else sorted(path.glob("*.safetensors"))


def check_weights(file: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of its tensors. Raises `LoadError` for a safetensors file that is not as long as
    its header says, and `RefusedArtifact` for what is none. Reads the header only."""
    try:
        stream = file.open("rb")
    except OSError as error:
        raise LoadError(f"{file} cannot be read: {error.strerror}") from None
    again = "fetch or copy the file again"
    with stream:
        size = os.fstat(stream.fileno()).st_size
        start = stream.read(9)
        header = int.from_bytes(start[:8], "little")
        if start.startswith(b"version "):
            raise RefusedArtifact(
                f"{file} is a pointer of Git LFS; `git lfs pull` fetches the file"
            )
        if len(start) == 9 and (start[8:] != b"{" or not 2 <= header <= _MAX_HEADER_BYTES):
            raise RefusedArtifact(f"{file} is no safetensors file, whatever its name says")
        if size < 8 + header or len(start) < 9:
            raise LoadError(f"{file} is cut off in its header, after {size} bytes; {again}")
        raw = start[8:] + stream.read(header - 1)
    try:
        tensors = {name: each for name, each in json.loads(raw).items() if name != "__metadata__"}
        ends = (int(each["data_offsets"][1]) for each in tensors.values())
        end = 8 + header + max(ends, default=0)
        shapes = {name: tuple(map(int, each.get("shape", ()))) for name, each in tensors.items()}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise LoadError(f"{file}: its header cannot be read; {again}") from None
    if size != end:
        raise LoadError(f"{file} has {size} bytes, and its header says {end}; {again}")
    return shapes


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(16)


_DEPTH = 64  # of graphs in nodes in graphs
_LOCATION = b"location"
# Message → field number → the message in that field. `entry` is a tensor's external_data.
_FIELDS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}


class _Malformed(Exception):
    """The bytes are no protobuf message."""


def external_data(path: Path) -> set[str]:
    """The names as they stand in the file. Raises `LoadError` for an empty file, `RefusedArtifact`
    for one that is no protobuf, or whose names are no text."""
    if path.stat().st_size == 0:
        raise LoadError(f"{path} is empty")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        try:
            return {name.decode() for name in _names(view, 0, len(view), "model", 0)}
        except (_Malformed, UnicodeDecodeError) as error:
            raise RefusedArtifact(f"{path} is no ONNX model: {error}") from None


def _names(view: mmap.mmap, at: int, end: int, message: str, depth: int) -> Iterator[bytes]:
    if depth > _DEPTH:
        raise _Malformed(f"it is nested more than {_DEPTH} deep")
    if message == "entry":
        parts = [(number, view[start:stop]) for number, start, stop in _parts(view, at, end)]
        if (1, _LOCATION) in parts:  # anywhere in it; which value a reader takes is its own
            yield from (content for number, content in parts if number == 2)
        return
    for number, start, stop in _parts(view, at, end):
        inner = _FIELDS[message].get(number)
        if inner is not None:
            yield from _names(view, start, stop, inner, depth + 1)


def _parts(view: mmap.mmap, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(field number, start, stop) of each field that has a length."""
    while at < end:
        tag, at = _varint(view, at, end)
        kind, number = tag & 7, tag >> 3
        if tag >> 32:  # some readers leave out what is above 32 bits, and see another field
            raise _Malformed("the number of a field is larger than any may be")
        if kind == 2:
            size, at = _varint(view, at, end)
            if at + size > end:
                raise _Malformed("a field is longer than what holds it")
            yield number, at, at + size
            at += size
        elif kind == 0:
            _, at = _varint(view, at, end)
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise _Malformed(f"it has a field of wire type {kind}")
    if at > end:
        raise _Malformed("its last field is cut off")


def _varint(view: mmap.mmap, at: int, end: int) -> tuple[int, int]:
    """(value, place behind it)."""
    value = shift = 0
    while at < end and shift < 70:
        byte = view[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise _Malformed("a number in it does not end")
