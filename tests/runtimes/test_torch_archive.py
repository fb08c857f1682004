"""Export archives that could run code: each way in is closed before anything of it runs."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtimes import archive_text, catalog, source
from runtimes.errors import LoadError, RefusedArtifact
from runtimes.types import Batch, Ragged, RuntimeSettings

torch = pytest.importorskip("torch", reason="pip install 'headrace[torch]'")
torch_model = pytest.importorskip("runtimes.torch.model")
GRAPH, WEIGHTS = "models/model.json", "data/weights/model_weights_config.json"
Files = dict[str, bytes]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, x: Any) -> Any:
        return self.linear(x.reshape(-1, 3)).reshape(x.shape[0], -1)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("honest") / "net.pt2"
    sizes = {"x": {0: torch.export.Dim("batch")}}
    torch.export.save(torch.export.export(Net(), (torch.ones(2, 6),), dynamic_shapes=sizes), file)
    return file


class Attack:
    """Unpickling this creates the file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return (Path.touch, (self.marker,))


def rewritten(honest: Path, to: Path, change: Callable[[Files], None]) -> Path:
    with zipfile.ZipFile(honest) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    root = next(iter(files)).split("/", 1)[0]
    inner = {name.removeprefix(f"{root}/"): content for name, content in files.items()}
    change(inner)
    with zipfile.ZipFile(to, "w") as archive:
        for name, content in inner.items():
            archive.writestr(name if name.startswith("/") else f"{root}/{name}", content)
    return to


def check(path: Path) -> None:
    from runtimes.torch import archive as torch_archive

    torch_archive.check(path)


def refused(honest: Path, folder: Path, change: Callable[[Files], None], said: str) -> None:
    with pytest.raises(RefusedArtifact, match=said):
        check(rewritten(honest, folder / "bad.pt2", change))


def test_honest_archive_loads(honest):
    from runtimes.torch import archive as torch_archive

    assert torch_archive.load(honest).module()(torch.ones(3, 6)).shape == (3, 4)


def test_rewriting_alone_does_not_spoil_an_archive(honest, tmp_path):
    check(rewritten(honest, tmp_path / "same.pt2", lambda files: None))


def test_pickled_weight_is_refused(honest, tmp_path):
    def change(files: Files) -> None:
        config = json.loads(files[WEIGHTS])
        next(iter(config["config"].values()))["use_pickle"] = True
        files[WEIGHTS] = json.dumps(config).encode()

    refused(honest, tmp_path, change, "as a pickle")


@pytest.mark.parametrize("kind", ["custom_obj_0", "opaque_obj_0"])
def test_custom_object_is_refused(honest, tmp_path, kind):
    def change(files: Files) -> None:
        config = {"config": {"thing": {"path_name": kind, "use_pickle": False}}}
        files["data/constants/model_constants_config.json"] = json.dumps(config).encode()
        files[f"data/constants/{kind}"] = pickle.dumps(Attack(tmp_path / "ran"))

    refused(honest, tmp_path, change, "'thing' as a pickle")
    assert not (tmp_path / "ran").exists()


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_pickled_sample_inputs_are_refused_unopened(honest, tmp_path):
    def change(files: Files) -> None:
        files["data/sample_inputs/model.pt"] = pickle.dumps(Attack(tmp_path / "ran"))

    refused(honest, tmp_path, change, "sample inputs")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "name",
    [
        "data/aotinductor/model/code.so",
        "data/weights/model.pt",
        "data/constants/model.pt",
        "models/other.json",
    ],
)
def test_compiled_code_and_old_formats_are_refused(honest, tmp_path, name):
    refused(honest, tmp_path, lambda files: files.update({name: b"x"}), "not plain data")


def test_a_compressed_part_is_refused_unread(honest, tmp_path):
    with zipfile.ZipFile(honest) as archive, zipfile.ZipFile(tmp_path / "m.pt2", "w") as made:
        for name in archive.namelist():
            packed = zipfile.ZIP_DEFLATED if name.endswith(GRAPH) else zipfile.ZIP_STORED
            made.writestr(name, archive.read(name), packed)
    with pytest.raises(RefusedArtifact, match="compressed"):
        check(tmp_path / "m.pt2")
    assert "compressed" in (archive_text.unsafe_in(tmp_path / "m.pt2") or "")


def test_files_beside_the_archives_folder_are_refused(honest, tmp_path):
    file = rewritten(honest, tmp_path / "bad.pt2", lambda files: None)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("version", "1")
    with pytest.raises(RefusedArtifact, match="old torch"):
        check(file)


def spoiled(key: str, text: str) -> Callable[[Files], None]:
    """The first value under `key` anywhere in the graph becomes `text`."""

    def replaced(part: Any, left: list[str]) -> Any:
        if isinstance(part, list):
            return [replaced(item, left) for item in part]
        if not isinstance(part, dict):
            return part
        return {
            name: left.pop() if name == key and left else replaced(item, left)
            for name, item in part.items()
        }

    def change(files: Files) -> None:
        left = [text]
        files[GRAPH] = json.dumps(replaced(json.loads(files[GRAPH]), left)).encode()
        assert not left, f"the graph has no '{key}'"

    return change


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("target", "torch.os.system"),
        ("target", "torch.ops.aten.from_file.default"),
        ("target", "torch.ops.aten.save.default"),
        ("target", "torch.ops.aten._reshape_alias.default"),
        ("target", "torch.ops.aten.max_pool2d_with_indices_backward.default"),
        ("target", "torch.ops.aten.sparse_coo_tensor.indices_size"),
        ("target", "torch.ops.aten.__class__"),
        ("target", "torch.ops.aten.__init__.default"),
        ("target", "torch.ops.aten.add.__class__"),
        ("target", "torch.ops.aten.add"),  # one overload has to be named: others are builtins
        ("target", "torch.ops.higher_order.call_torchbind"),
        ("target", "torch.ops.mine.kernel.default"),
        ("target", "_operator.methodcaller"),
        ("expr_str", "__import__('os').system('true')"),
        ("expr_str", "Symbol('s0').__class__"),
        ("expr_str", "Mul(Integer(2), '__import__(1)')"),
        ("name", "x'); import os"),
        ("in_spec", '[1, {"type": "os.thing", "context": "null", "children_spec": []}]'),
    ],
)
def test_graph_text_that_could_run_is_refused(honest, tmp_path, key, text):
    refused(honest, tmp_path, spoiled(key, text), "could run code")


@pytest.mark.parametrize(
    "guard",
    [
        "L['x'].size()[0] == __import__('os').getpid()",
        "L['x'].__class__.__base__ == 1",
        "(lambda: 1)() == 1",
        "[x for x in L]",
        "not python",
    ],
)
def test_guard_that_is_more_than_a_comparison_of_sizes_is_unsafe(guard):
    assert archive_text.first_unsafe({"guards_code": [guard]}) is not None


@pytest.mark.parametrize(
    "graph",
    [
        {"guards_code": ["L['a'].size()[0] == L['b'].size()[0]", "2 <= L['a'].size()[1]"]},
        {"expr_str": "Mul(Integer(2), Symbol('s43', positive=True, integer=True))"},
        {"expr_str": "s0 + 2*s1"},
        {"target": "torch.ops.aten.add.Tensor"},
        {"target": "torch.ops.aten.__and__.Tensor"},
        {"target": "torch.ops.higher_order.wrap_with_set_grad_enabled"},
        {"target": "torch.sym_max"},
        {"metadata": {"stack_trace": 'File "net.py", line 3, in forward\n    x = f(y)'}},
    ],
)
def test_ordinary_graph_text_is_plain(graph):
    assert archive_text.first_unsafe(graph) is None


@pytest.mark.parametrize("name", ["add.str", "lower.default", "no_such.default"])
def test_what_torchs_dispatcher_does_not_have_is_refused(honest, tmp_path, name):
    change = spoiled("target", f"torch.ops.aten.{name}")
    refused(honest, tmp_path, change, "has no operator")


UNSAFE = (
    "_reshape_alias", "set", "resize", "_nested_", "_convert_indices_", "ctc_loss", "_ctc_loss",
    "segment_reduce", "_sparse_coo_tensor_", "_sparse_compressed_tensor_", "_sparse_csr_tensor_",
    "_sparse_csc_tensor_", "_sparse_bsr_tensor_", "_sparse_bsc_tensor_", "sparse_coo_tensor",
    "sparse_compressed_tensor", "sparse_csr_tensor", "sparse_csc_tensor", "sparse_bsr_tensor",
    "sparse_bsc_tensor", "_sobol_engine_", "_fused_ada", "_fused_sgd", "_jagged_to_padded_",
    "_padded_dense_to_jagged_", "from_file",
)  # fmt: skip


def test_all_tensor_operators_of_aten_and_prims_are_plain_but_those_that_leave_their_tensors():
    known = [
        name.replace("::", ".") for name in torch._C._dispatch_get_all_op_names()
        if name.startswith(("aten::", "prims::"))
    ]  # fmt: skip
    full = [name if name.count(".") == 2 else f"{name}.default" for name in known]
    refused = {
        name for name in full
        if archive_text.first_unsafe({"target": f"torch.ops.{name}"}) is not None
    }  # fmt: skip
    names = {name.split(".")[1] for name in refused if "_backward" not in name}
    assert {name for name in names if not name.startswith(UNSAFE)} == set()
    assert [each for each in UNSAFE if not any(name.startswith(each) for name in names)] == []


def exported(model: Any, file: Path) -> Path:
    """An encoder of `transformers`, exported as a user would, with free rows and lengths."""

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model.eval()

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return {"out": self.model(input_ids=input_ids, attention_mask=attention_mask)[0]}

    free = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=32)}
    given = (torch.full((2, 8), 5), torch.ones(2, 8, dtype=torch.long))
    sizes = {"input_ids": free, "attention_mask": free}
    torch.export.save(torch.export.export(Logits(), given, dynamic_shapes=sizes), file)
    return file


SIZES = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
         "intermediate_size": 32, "max_position_embeddings": 40}  # fmt: skip
DISTILLED = {"vocab_size": 50, "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32,
             "max_position_embeddings": 40}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("BertForSequenceClassification", SIZES),
        ("RobertaForSequenceClassification", SIZES),
        ("DistilBertForSequenceClassification", DISTILLED),
    ],
)
def test_honest_exports_of_transformers_run(tmp_path, kind, sizes):
    transformers = pytest.importorskip("transformers", reason="pip install transformers")
    cls = getattr(transformers, kind)
    torch.manual_seed(0)
    model = cls(cls.config_class(**sizes))
    file = exported(model, tmp_path / "model.pt2")
    catalog.check_files(file, catalog.FileRequirements("torch", "tensors", {}, "fp32", 32))
    settings = RuntimeSettings("m", "torch", file, tmp_path / "cache", max_length=32)
    runtime = catalog.create(settings)
    runtime.load()
    try:
        rows = [[3, 4, 5], [6, 7, 8, 9, 10]]
        flat = np.array([token for row in rows for token in row], np.int64)
        shapes = tuple((len(row),) for row in rows)
        lengths = np.array([len(row) for row in rows], np.int64)
        got = runtime.run(Batch(2, lengths, {"input_ids": Ragged("INT64", flat, shapes)}))
        start = 0
        for row, shape in zip(rows, got.outputs["out"].shapes, strict=True):
            alone = model(input_ids=torch.tensor([row]))[0][0].detach().numpy()
            end = start + alone.size
            assert alone.shape == shape
            answer = got.outputs["out"].data[start:end].reshape(shape)
            np.testing.assert_allclose(answer, alone, atol=1e-5)
            start = end
    finally:
        runtime.close()


@pytest.mark.parametrize("kind", ["RobertaForSequenceClassification", "DistilBertModel"])
def test_an_export_goes_whole_to_another_device(tmp_path, kind):
    transformers = pytest.importorskip("transformers", reason="pip install transformers")
    cls, sizes = getattr(transformers, kind), DISTILLED if "Distil" in kind else SIZES
    file = exported(cls(cls.config_class(**sizes)), tmp_path / "model.pt2")
    settings = RuntimeSettings("m", "torch", file, tmp_path / "cache", max_length=32)
    from_archive = torch_model.from_archive(source.inspect(file), settings)
    moved = torch_model.prepared(from_archive, torch.device("meta"), channels_last=False)
    ids = torch.ones(3, 7, dtype=torch.int64, device="meta")
    assert moved.bind(moved.module)(ids, ids)["out"].device.type == "meta"


def test_file_that_is_no_archive_is_refused(tmp_path):
    file = tmp_path / "model.pt2"
    file.write_bytes(b"PK not really")
    with pytest.raises(RefusedArtifact):
        check(file)


def test_absent_archive_is_a_load_error(tmp_path):
    with pytest.raises(LoadError, match=r"absent\.pt2 is not a file"):
        check(tmp_path / "absent.pt2")
