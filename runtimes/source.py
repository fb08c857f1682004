"""What kind of model is at a path, which files belong to it, and what is its digest?

Four kinds: an ONNX file with its external data, a Hugging Face folder with safetensors, OpenVINO
IR, and a `torch.export` archive. The digest is a SHA-256 over the files that decide what the model
computes and how texts become its tokens. A file that could run code when it is opened (pickles,
TorchScript), or that is not what its name says, is refused without being opened.

No model is loaded here. Sources: the formats' own descriptions; sentence-transformers' folders.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path, PurePosixPath

from runtimes import onnx_files
from runtimes.digest import digest_of
from runtimes.errors import LoadError, RefusedArtifact
from runtimes.graph import pooling

PICKLES = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".joblib", ".ckpt", ".dill"})
INSTEAD = "give safetensors, an ONNX file, OpenVINO IR or a torch.export archive (.pt2) instead"
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


def inspect(path: Path, cache_dir: Path | None = None) -> Source:
    """Raises `RefusedArtifact` for what could run code, `LoadError` for what is missing.

    With `cache_dir`, files that have not changed (size, mtime) are not read again for the digest.
    """
    found = inspect_without_digest(path)
    base = found.path if found.path.is_dir() else found.path.parent
    return replace(found, digest=digest_of(found.files, base, cache_dir))


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
        return SourceKind.ONNX, _onnx(path)
    if path.suffix == ".xml":
        return SourceKind.OPENVINO_IR, _ir(path)
    if path.suffix == ".pt2":
        return SourceKind.TORCH_EXPORT, _archive(path)
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


def _onnx(path: Path) -> tuple[Path, ...]:
    start = _start(path)
    if start[:1] in (b"\x80", b"<", b"{") or start.startswith(b"PK"):
        raise RefusedArtifact(f"{path} is no ONNX model, whatever its name says; {INSTEAD}")
    return (path, *(_beside(path, name) for name in sorted(onnx_files.external_data(path))))


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
    if not any(real.is_relative_to(home) for home in homes):
        raise RefusedArtifact(
            f"{model} names {name}, a link to {real}, which is outside the model's folder: put the "
            "file itself there"
        )
    return file


def _ir(path: Path) -> tuple[Path, ...]:
    if not _start(path).lstrip(b"\xef\xbb\xbf \r\n\t").startswith((b"<?xml", b"<net")):
        raise RefusedArtifact(f"{path} is no OpenVINO IR, whatever its name says; {INSTEAD}")
    weights = path.with_suffix(".bin")
    if not weights.is_file():
        raise LoadError(f"{path} lacks its weights: {weights.name} must lie beside it")
    return (path, weights)


def _archive(path: Path) -> tuple[Path, ...]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.split("/", 1)[-1] for name in archive.namelist()}
    except (zipfile.BadZipFile, OSError) as error:
        raise RefusedArtifact(f"{path} is no torch.export archive: {error}") from error
    if "archive_format" not in names or "data.pkl" in names:
        raise RefusedArtifact(f"{path} is no torch.export archive (torch.export.save); {INSTEAD}")
    return (path,)


def _folder(path: Path) -> tuple[SourceKind, tuple[Path, ...]]:
    if not (path / "config.json").is_file():
        raise LoadError(f"{path} {_advice(path)}")
    weights = tuple(_shards(path))
    for file in weights:
        _check_safetensors(file)
    if not weights:
        _refuse_pickled_weights(path)
    optional = ("modules.json", "tokenizer.json", "model.safetensors.index.json")
    configs = [folder / "config.json" for folder in pooling.module_folders(path)]
    others = [file for file in (*(path / name for name in optional), *configs) if file.is_file()]
    return SourceKind.HUGGING_FACE, (path / "config.json", *weights, *others)


def _advice(path: Path) -> str:
    kinds = (".onnx", ".xml", ".pt2")
    models = sorted(file.name for file in path.iterdir() if file.suffix in kinds)
    if models:
        return f"is a folder without config.json; name the file itself: {' or '.join(models)}"
    return "is no model folder: it has no config.json"


def _shards(path: Path) -> Iterator[Path]:
    index = path / "model.safetensors.index.json"
    if not index.is_file():
        single = path / "model.safetensors"
        yield from (single,) if single.is_file() else sorted(path.glob("*.safetensors"))
        return
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
    except (ValueError, KeyError, AttributeError) as error:
        raise LoadError(f"{index} cannot be read: {error}") from error
    yield from (_beside(index, name) for name in sorted(set(places)))


def _check_safetensors(file: Path) -> None:
    """The header is JSON of the announced size: anything else under that name is refused."""
    start = _start(file)
    header = int.from_bytes(start[:8], "little")
    if len(start) < 9 or start[8:9] != b"{" or header + 8 > file.stat().st_size:
        raise RefusedArtifact(f"{file} is no safetensors file, whatever its name says")


def _refuse_pickled_weights(path: Path) -> None:
    pickled = sorted(file.name for file in path.iterdir() if file.suffix.lower() in PICKLES)
    if pickled:
        raise RefusedArtifact(
            f"{path} holds pickled weights only ({', '.join(pickled)}), which run code when "
            "opened; convert them to safetensors where you trust them (save_pretrained does)"
        )
    raise LoadError(f"{path} holds no *.safetensors")


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(16)
