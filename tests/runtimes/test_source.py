"""What `inspect` recognises, refuses and calls the same model."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import StringStringEntryProto, TensorProto, helper, load_model, numpy_helper, save_model
from safetensors.numpy import save, save_file

from runtimes.errors import LoadError, RefusedArtifact
from runtimes.onnx import model as onnx_model
from runtimes.source import SourceKind, inspect


def hugging_face(folder: Path, *, weights: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "bert"}')
    if weights:
        save_file({"a": np.ones((2, 2), np.float32)}, folder / "model.safetensors")
    return folder


def onnx_file(folder: Path, external: str | None = None) -> Path:
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [weight],
    )
    path = folder / "model.onnx"
    options: dict[str, Any] = {"save_as_external_data": True, "location": external}
    options["size_threshold"] = 0
    save_model(helper.make_model(graph), str(path), **(options if external else {}))
    return path


def archive(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name in names:
            file.writestr(f"model/{name}", b"x")
    return path


def test_folder_with_safetensors_is_a_hugging_face_model(tmp_path: Path) -> None:
    source = inspect(hugging_face(tmp_path))
    assert source.kind is SourceKind.HUGGING_FACE
    assert [file.name for file in source.files] == ["config.json", "model.safetensors"]
    assert [file.name for file in source.weights] == ["model.safetensors"]


def test_tokenizer_and_pooling_are_part_of_the_identity(tmp_path: Path) -> None:
    folder = hugging_face(tmp_path)
    before = inspect(folder).digest
    (folder / "tokenizer.json").write_text("{}")
    with_tokenizer = inspect(folder).digest
    (folder / "modules.json").write_text(json.dumps([{"type": "x.Pooling", "path": "1_Pooling"}]))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text("{}")
    assert len({before, with_tokenizer, inspect(folder).digest}) == 3


def test_readme_is_no_part_of_the_identity(tmp_path: Path) -> None:
    folder = hugging_face(tmp_path)
    before = inspect(folder).digest
    (folder / "README.md").write_text("about")
    assert inspect(folder).digest == before


def test_moved_model_keeps_its_digest(tmp_path: Path) -> None:
    assert (
        inspect(hugging_face(tmp_path / "a")).digest == inspect(hugging_face(tmp_path / "b")).digest
    )


def test_shards_come_from_the_index(tmp_path: Path) -> None:
    folder = hugging_face(tmp_path, weights=False)
    for name in ("one.safetensors", "two.safetensors", "stray.safetensors"):
        save_file({name: np.ones(2, np.float32)}, folder / name)
    weight_map = {"a": "one.safetensors", "b": "two.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    names = [file.name for file in inspect(folder).weights]
    assert names == ["one.safetensors", "two.safetensors"]


def test_external_data_is_found_and_counts(tmp_path: Path) -> None:
    path = onnx_file(tmp_path, "weights.data")
    source = inspect(path)
    assert [file.name for file in source.files] == ["model.onnx", "weights.data"]
    raw = bytearray((tmp_path / "weights.data").read_bytes())
    raw[0] ^= 1
    (tmp_path / "weights.data").write_bytes(raw)
    assert inspect(path).digest != source.digest


def test_plain_onnx_file_stands_alone(tmp_path: Path) -> None:
    source = inspect(onnx_file(tmp_path))
    assert (source.kind, len(source.files)) == (SourceKind.ONNX, 1)


def test_missing_external_data_is_named(tmp_path: Path) -> None:
    path = onnx_file(tmp_path, "weights.data")
    (tmp_path / "weights.data").unlink()
    with pytest.raises(LoadError, match=r"weights\.data"):
        inspect(path)


def renamed(path: Path, *pairs: tuple[str, str]) -> None:
    """Writes the model again with these entries in place of each tensor's external data."""
    model = load_model(str(path), load_external_data=False)
    for tensor in model.graph.initializer:
        del tensor.external_data[:]
        tensor.external_data.extend(StringStringEntryProto(key=k, value=v) for k, v in pairs)
    path.write_bytes(model.SerializeToString())


def value_first(path: Path, name: str) -> None:
    """Turns the two fields of the entry round, which protobuf reads all the same."""
    key, value = b"\x0a\x08location", b"\x12" + bytes([len(name)]) + name.encode()
    assert path.read_bytes().count(key + value) == 1
    path.write_bytes(path.read_bytes().replace(key + value, value + key))


@pytest.mark.parametrize("place", ["../weights.dat", "/etc/passwd.dat", "a/../../b", "..\\w"])
@pytest.mark.parametrize("turned", [False, True])
def test_external_data_outside_the_folder_is_refused(
    tmp_path: Path, place: str, turned: bool
) -> None:
    path = onnx_file(tmp_path, "weights.data")
    renamed(path, ("location", place))
    if turned:
        value_first(path, place)
    with pytest.raises(RefusedArtifact, match="outside its folder"):
        inspect(path)


def test_external_data_counts_whatever_the_order_of_its_entrys_fields(tmp_path: Path) -> None:
    path = onnx_file(tmp_path, "weights.data")
    value_first(path, "weights.data")
    before = inspect(path)
    assert [file.name for file in before.files] == ["model.onnx", "weights.data"]
    (tmp_path / "weights.data").write_bytes(b"other")
    assert inspect(path).digest != before.digest


def test_each_name_that_a_tensor_gives_is_looked_at(tmp_path: Path) -> None:
    path = onnx_file(tmp_path, "weights.data")
    renamed(path, ("location", "weights.data"), ("offset", "0"), ("location", "../other"))
    with pytest.raises(RefusedArtifact, match="outside its folder"):
        inspect(path)


def test_a_constant_in_a_branch_may_lie_outside_the_file_too(tmp_path: Path) -> None:
    inner = TensorProto(name="c", data_type=1, dims=[1], data_location=TensorProto.EXTERNAL)
    inner.external_data.add(key="location", value="../other")
    branch = helper.make_graph([helper.make_node("Constant", [], ["c"], value=inner)], "b", [], [])
    node = helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)
    graph = helper.make_graph([node], "g", [], [])
    (tmp_path / "m.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    with pytest.raises(RefusedArtifact, match="outside its folder"):
        inspect(tmp_path / "m.onnx")


def test_external_data_that_is_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = onnx_file(folder, "weights.data")
    (folder / "weights.data").rename(tmp_path / "elsewhere")
    (folder / "weights.data").symlink_to("../elsewhere")
    with pytest.raises(RefusedArtifact, match=r"a link to .*elsewhere, which is outside"):
        inspect(path)


def hub_cache(folder: Path) -> Path:
    """A model as Hugging Face's cache keeps it: each file is a link to one named by its digest."""
    blobs, snapshot = folder / "blobs", folder / "snapshots" / "main"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    onnx_file(blobs, "weights.data")
    for name, blob in (("model.onnx", "aa11"), ("weights.data", "bb22")):
        (blobs / name).rename(blobs / blob)
        (snapshot / name).symlink_to(f"../../blobs/{blob}")
    return snapshot / "model.onnx"


def test_a_link_into_hugging_faces_cache_is_followed(tmp_path: Path) -> None:
    source = inspect(hub_cache(tmp_path))
    assert [file.name for file in source.files] == ["model.onnx", "weights.data"]
    (tensor,) = onnx_model.load(source.path).graph.initializer
    assert len(tensor.raw_data) == 4 * 4 * 4


def test_a_link_to_a_model_whose_weights_lie_elsewhere_says_what_to_name(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    path = onnx_file(tmp_path / "model", "weights.data")
    (tmp_path / "link.onnx").symlink_to(path)
    with pytest.raises(LoadError, match=r"it is a link, name .*/model/model\.onnx itself"):
        inspect(tmp_path / "link.onnx")


@pytest.mark.parametrize(
    "content",
    [
        b"\x0a\xff\x01", b"\x3a\x05ab", b"\x3b", b"\xff" * 12, b"hello",
        b"\xba\x80\x80\x80\x10\x00",  # field 7, a graph, to readers of 32 bits: ONNX Runtime
    ],
)  # fmt: skip
def test_what_is_no_protobuf_is_no_onnx_model(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(RefusedArtifact, match="no ONNX model"):
        inspect(tmp_path / "m.onnx")


def test_long_external_names_are_read_whole(tmp_path: Path) -> None:
    name = "w" * 200  # its length takes two bytes in the file
    assert inspect(onnx_file(tmp_path, name)).files[-1].name == name


def test_openvino_ir_needs_its_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.xml"
    path.write_text('<?xml version="1.0"?><net name="m"/>')
    with pytest.raises(LoadError, match=r"model\.bin"):
        inspect(path)
    path.with_suffix(".bin").write_bytes(b"\0")
    assert inspect(path).kind is SourceKind.OPENVINO_IR
    with pytest.raises(LoadError, match=r"name model\.xml"):
        inspect(path.with_suffix(".bin"))


def test_torch_export_archive_is_told_from_torchscript(tmp_path: Path) -> None:
    good = archive(tmp_path / "good.pt2", "archive_format", "models/model.json")
    assert inspect(good).kind is SourceKind.TORCH_EXPORT
    for names in (("data.pkl", "version"), ("archive_format", "data.pkl")):
        with pytest.raises(RefusedArtifact):
            inspect(archive(tmp_path / "bad.pt2", *names))
    (tmp_path / "text.pt2").write_text("no zip")
    with pytest.raises(RefusedArtifact):
        inspect(tmp_path / "text.pt2")


@pytest.mark.parametrize(
    "name", ["m.pt", "m.pth", "m.pkl", "m.joblib", "pytorch_model.bin", "M.PT"]
)
def test_pickles_are_refused_with_what_to_do(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x04.")
    with pytest.raises(RefusedArtifact, match="safetensors"):
        inspect(tmp_path / name)


def test_pickle_in_disguise_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\x80\x04\x95pickle")
    (tmp_path / "m.xml").write_bytes(b"\x80\x04\x95pickle")
    for name in ("m.onnx", "m.xml"):
        with pytest.raises(RefusedArtifact, match="whatever its name says"):
            inspect(tmp_path / name)
    folder = hugging_face(tmp_path / "hf", weights=False)
    (folder / "model.safetensors").write_bytes(b"\x80\x04\x95 a long enough pickle")
    with pytest.raises(RefusedArtifact, match="whatever its name says"):
        inspect(folder)


WHOLE = save({"a": np.ones((2, 2), np.float32)})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (WHOLE[:-1], rf"has {len(WHOLE) - 1} bytes, and its header says {len(WHOLE)}; fetch or"),
        (WHOLE + b"x", rf"has {len(WHOLE) + 1} bytes, and its header says {len(WHOLE)}; fetch or"),
        (WHOLE[:20], "cut off in its header, after 20 bytes; fetch or copy the file again"),
        (WHOLE[:5], "cut off in its header, after 5 bytes; fetch or copy the file again"),
        (b"", "cut off in its header, after 0 bytes"),
        (WHOLE[:9] + b"}" + WHOLE[10:], "its header cannot be read; fetch or copy the file again"),
        (
            b"version https://git-lfs.github.com/spec/v1\n",
            "is a pointer of Git LFS; `git lfs pull`",
        ),
    ],
)
def test_weights_that_are_not_whole_are_refused(tmp_path: Path, content: bytes, said: str) -> None:
    folder = hugging_face(tmp_path)
    inspect(folder)
    (folder / "2_Dense").mkdir()
    (folder / "modules.json").write_text('[{"type": "x.Dense", "path": "2_Dense"}]')
    for name in ("2_Dense/model.safetensors", "model.safetensors"):
        (folder / name).write_bytes(content)
        with pytest.raises(LoadError, match=said) as refused:
            inspect(folder)
        assert str(folder / name) in str(refused.value)
        (folder / name).write_bytes(WHOLE)
        inspect(folder)


def test_folder_with_pickled_weights_only_is_refused(tmp_path: Path) -> None:
    folder = hugging_face(tmp_path, weights=False)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(RefusedArtifact, match=r"pytorch_model\.bin"):
        inspect(folder)


def test_folder_without_config_names_the_file_to_give(tmp_path: Path) -> None:
    onnx_file(tmp_path)
    with pytest.raises(LoadError, match=r"model\.onnx"):
        inspect(tmp_path)


@pytest.mark.parametrize("name", ["missing.onnx", "notes.txt", "model.safetensors"])
def test_what_is_no_model_is_a_load_error(tmp_path: Path, name: str) -> None:
    if not name.startswith("missing"):
        (tmp_path / name).write_text("x")
    with pytest.raises(LoadError):
        inspect(tmp_path / name)


def test_empty_onnx_file_is_a_load_error(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").touch()
    with pytest.raises(LoadError, match="empty"):
        inspect(tmp_path / "m.onnx")


def test_unchanged_files_are_not_read_again(tmp_path: Path) -> None:
    folder, cache = hugging_face(tmp_path / "m"), tmp_path / "cache"
    first = inspect(folder, cache).digest
    weights = folder / "model.safetensors"
    before = weights.stat()
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert inspect(folder, cache).digest == first  # same size and time: the memo speaks
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert inspect(folder, cache).digest == inspect(folder).digest != first


def test_damaged_memo_costs_a_read_only(tmp_path: Path) -> None:
    folder, cache = hugging_face(tmp_path / "m"), tmp_path / "cache"
    first = inspect(folder, cache).digest
    for memo in (cache / "digests").iterdir():
        memo.write_text("{")
    assert inspect(folder, cache).digest == first
