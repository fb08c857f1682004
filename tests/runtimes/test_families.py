"""Hugging Face folders of every family against transformers, on all runtimes: alone as in a batch.

`python -m tests.runtimes.test_families` exports every family and prints the worst differences, the
table of docs/runtimes.md. The tests export a few: an export takes 5 to 10 s of a processor.
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from runtimes import catalog, exporting
from runtimes.catalog import create
from runtimes.errors import LoadError
from runtimes.folder import FAMILIES, MODES
from runtimes.types import Batch, Ragged, Runtime, RuntimeSettings

LENGTHS = (1, 2, 7, 60, 120)
WORST = 1e-5
SIZES: Mapping[str, Any] = {
    **{"vocab_size": 500, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"intermediate_size": 128, "max_position_embeddings": 130, "pad_token_id": 0},
}
_RELATIVE = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
_GROUPED = {"head_dim": 16, "num_key_value_heads": 2}
OWN: Mapping[str, Mapping[str, Any]] = {
    "distilbert": {"dim": 64, "n_heads": 4, "n_layers": 2, "hidden_dim": 128},
    "albert": {"embedding_size": 32},
    "electra": {"embedding_size": 32},
    "deberta": _RELATIVE,
    "deberta-v2": {
        **_RELATIVE, "position_buckets": 16, "norm_rel_ebd": "layer_norm", "share_att_key": True,
    },
    **dict.fromkeys(("qwen2", "qwen3", "llama", "gemma3_text"), _GROUPED),
    "mistral": {**_GROUPED, "sliding_window": 16},
}  # fmt: skip
PAIR = ["weightedmean", "lasttoken"]  # poolings side by side
# One that has eager attention alone, and a causal, grouped one in a window.
EXPORTED = ("deberta-v2", "mistral")
LAYERS_FUSED = {"deberta-v2": 0, "mistral": 2}


def folder(path: Path, family: str, task: str = "tensors") -> Any:
    """Writes a small random model; returns transformers' own."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **{**SIZES, **OWN.get(family, {})})
    auto = transformers.AutoModel
    if task == "classify":
        auto = transformers.AutoModelForSequenceClassification
        config.num_labels = 3
    network = auto.from_config(config).eval()
    network.save_pretrained(path)
    return network


def modules(
    path: Path, pooling: Any, *, dense: int = 0, normalize: bool = False, prompts: bool = True
) -> None:
    """`pooling`: as the Pooling module's `pooling_mode`. `dense`: outputs of a Dense module.
    `prompts`: whether their tokens count."""
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling")]
    (path / "1_Pooling").mkdir()
    config = {"pooling_mode": pooling, "include_prompt": prompts}
    (path / "1_Pooling/config.json").write_text(json.dumps(config))
    if not prompts:
        said = {"prompts": {"query": "the river: "}, "default_prompt_name": None}
        (path / "config_sentence_transformers.json").write_text(json.dumps(said))
    if dense:
        kinds.append(("2_Dense", "Dense"))
        (path / "2_Dense").mkdir()
        width = 64 * (len(pooling) if isinstance(pooling, list) else 1)
        sizes = {"in_features": width, "out_features": dense, "bias": True}
        function = "torch.nn.modules.activation.Tanh"
        config = {**sizes, "activation_function": function}
        (path / "2_Dense/config.json").write_text(json.dumps(config))
        layer = torch.nn.Linear(width, dense)
        weights = {f"linear.{name}": value for name, value in layer.state_dict().items()}
        save_file(weights, path / "2_Dense/model.safetensors")
    if normalize:
        kinds.append(("3_Normalize", "Normalize"))
    listing = [{"path": place, "type": f"sentence_transformers.models.{k}"} for place, k in kinds]
    (path / "modules.json").write_text(json.dumps(listing))


@functools.cache
def rows() -> list[np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    return [random.integers(1, 500, length) for length in LENGTHS]


def opened(runtime: str, path: Path, task: str, cache: Path, **options: Any) -> Runtime:
    made = create(
        RuntimeSettings(
            name="m", runtime=runtime, source=path, cache_dir=cache, task=task, options=options,
            max_length=120, edges=(16, 120), max_size=8, threads=1,
        )
    )  # fmt: skip
    made.load()
    return made


def answers(runtime: Runtime, name: str = "") -> list[np.ndarray[Any, Any]]:
    """Of all rows in one batch, the output of that name, or the first."""
    shapes = tuple((length,) for length in LENGTHS)
    ids = Ragged("INT64", np.concatenate(rows()), shapes)
    result = runtime.run(Batch(len(LENGTHS), np.array(LENGTHS), {"input_ids": ids}))
    output = result.outputs[name or next(iter(result.outputs))]
    return [row.reshape(shape) for row, shape in zip(output.rows(), output.shapes, strict=True)]


def expected(network: Any, task: str) -> list[np.ndarray[Any, Any]]:
    """Each row by itself, by transformers."""
    found = []
    for ids in rows():
        with torch.no_grad():
            own = network(torch.tensor(ids)[None], attention_mask=torch.ones(1, len(ids)).long())
        value = own.logits if task == "classify" else own.last_hidden_state
        found.append(value[0].numpy())
    return found


def worst(ours: list[np.ndarray[Any, Any]], theirs: list[np.ndarray[Any, Any]]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("task", ["tensors", "classify"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_torch_runs_each_family_as_transformers_does(tmp_path, family, task):
    network = folder(tmp_path / "m", family, task)
    runtime = opened("torch", tmp_path / "m", task, tmp_path)
    assert worst(answers(runtime), expected(network, task)) < WORST


@pytest.mark.parametrize("family", EXPORTED)
def test_an_exported_family_answers_as_transformers_does_on_both_backends(tmp_path, family):
    network = folder(tmp_path / "m", family)
    modules(tmp_path / "m", PAIR, dense=24, normalize=True)
    steps: list[float] = []
    for backend in ("onnxruntime", "openvino"):
        runtime = opened(backend, tmp_path / "m", "tensors", tmp_path / "cache")
        hidden = expected(network, "tensors")
        assert worst(answers(runtime, "last_hidden_state"), hidden) < WORST
        pooled = answers(runtime, "sentence_embedding")
        assert worst(pooled, pair_by_hand(tmp_path / "m", hidden)) < WORST
        steps.append(len(list((tmp_path / "cache/staged").glob("*/model.onnx"))))
    assert steps[0] == steps[1]  # one export for both
    for file in (tmp_path / "cache/staged").glob("*/model.onnx"):  # that, and ONNX Runtime's own
        kinds = [node.op_type for node in onnx.load(file, load_external_data=False).graph.node]
        assert kinds.count("MultiHeadAttention") == LAYERS_FUSED[family]
        assert "SkipLayerNormalization" not in kinds


def pooled_by_hand(hidden: np.ndarray[Any, Any], mode: str) -> np.ndarray[Any, Any]:
    """Of one row without padding. Source: sentence-transformers' documentation of Pooling."""
    count = len(hidden)
    ways = {
        "cls": lambda: hidden[0],
        "max": lambda: hidden.max(0),
        "mean": lambda: hidden.mean(0),
        "mean_sqrt_len_tokens": lambda: hidden.sum(0) / np.sqrt(count),
        "weightedmean": lambda: np.average(hidden, 0, np.arange(1, count + 1)),
        "lasttoken": lambda: hidden[-1],
    }
    found: np.ndarray[Any, Any] = ways[mode]()
    return found


def pair_by_hand(path: Path, hidden: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """`PAIR` of each row, through the folder's Dense module, normalised."""
    weights = load_file(path / "2_Dense/model.safetensors")
    found = []
    for each in hidden:
        parts = [pooled_by_hand(each, mode) for mode in PAIR]
        vector = torch.tensor(np.concatenate(parts), dtype=torch.float32)
        vector = torch.tanh(weights["linear.weight"] @ vector + weights["linear.bias"])
        found.append((vector / vector.norm()).numpy())
    return found


@pytest.mark.parametrize("backend", ["torch", "onnxruntime"])
def test_tokens_of_a_prompt_are_read_and_left_out_of_every_pooling(tmp_path, backend):
    network = folder(tmp_path / "m", "roberta")  # whose positions have an offset
    modules(tmp_path / "m", list(MODES), prompts=False)
    runtime = opened(backend, tmp_path / "m", "embed", tmp_path / "cache")
    assert runtime.limits().optional_inputs[-1] == "prompt_mask"
    prompt, hidden = 2, expected(network, "tensors")[2:]
    places = np.arange(1, 1 + max(LENGTHS))
    for marked, mean in ((0, None), (prompt, prompt)):
        given = batch_of(rows()[2:], marked)
        found = runtime.run(given).outputs["sentence_embedding"].rows()
        for ours, each in zip(found, hidden, strict=True):
            left = each[mean:]
            wanted = {mode: pooled_by_hand(left, mode) for mode in MODES}
            weights = places[mean : len(each)]  # as they are with the prompt
            wanted["weightedmean"] = np.average(left, 0, weights)
            theirs = np.concatenate([wanted[mode] for mode in MODES])
            np.testing.assert_allclose(ours, theirs, atol=WORST)


def batch_of(ids: list[np.ndarray[Any, Any]], marked: int) -> Batch:
    """`marked`: tokens of a prompt before each row; 0: nothing is said of any."""
    lengths = np.array([len(row) for row in ids])
    columns = {"input_ids": ids}
    if marked:
        columns["prompt_mask"] = [(np.arange(n) < marked).astype(np.int64) for n in lengths]
    shapes = tuple((int(length),) for length in lengths)
    inputs = {
        name: Ragged("INT64", np.concatenate(column), shapes) for name, column in columns.items()
    }
    return Batch(len(ids), lengths, inputs)


@pytest.mark.parametrize("mode", MODES)
def test_every_pooling_is_over_a_rows_own_tokens(tmp_path, mode):
    network = folder(tmp_path / "m", "distilbert")
    modules(tmp_path / "m", mode)
    ours = answers(opened("torch", tmp_path / "m", "embed", tmp_path))
    theirs = [pooled_by_hand(hidden, mode) for hidden in expected(network, "tensors")]
    assert worst(ours, theirs) < WORST


def test_poolings_side_by_side_go_through_dense_and_are_normalised(tmp_path):
    network = folder(tmp_path / "m", "distilbert")
    modules(tmp_path / "m", PAIR, dense=24, normalize=True)
    theirs = pair_by_hand(tmp_path / "m", expected(network, "tensors"))
    ours = answers(opened("torch", tmp_path / "m", "embed", tmp_path / "cache"))
    assert worst(ours, theirs) < WORST


def splade(path: Path, strategy: str, function: str) -> Any:
    """Makes the folder a sparse model; transformers' network, with logits for the vocabulary."""
    kinds = [("", "MLMTransformer"), ("1_SpladePooling", "SpladePooling")]
    (path / "1_SpladePooling").mkdir(parents=True)
    config = {"pooling_strategy": strategy, "activation_function": function}
    (path / "1_SpladePooling/config.json").write_text(json.dumps(config))
    listing = [{"path": place, "type": f"sentence_transformers.models.{k}"} for place, k in kinds]
    (path / "modules.json").write_text(json.dumps(listing))
    torch.manual_seed(0)
    made = transformers.AutoConfig.for_model("bert", **SIZES, initializer_range=0.2)
    network = transformers.AutoModelForMaskedLM.from_config(made).eval()
    network.save_pretrained(path)
    return network


def sparse_by_hand(network: Any, strategy: str, twice: bool) -> list[np.ndarray[Any, Any]]:
    """Each row's weights [vocabulary]. Source: sentence-transformers' SpladePooling."""
    found = []
    for ids in rows():
        with torch.no_grad():
            logits = network(torch.tensor(ids)[None]).logits[0]
        weights = torch.log1p(logits.relu())
        weights = torch.log1p(weights) if twice else weights
        found.append((weights.sum(0) if strategy == "sum" else weights.amax(0)).numpy())
    return found


@pytest.mark.parametrize(
    ("strategy", "function", "backends"),
    [
        ("max", "relu", ("torch", "onnxruntime", "openvino")),
        ("sum", "relu", ("torch",)),
        ("max", "log1p_relu", ("torch",)),
    ],
)
def test_a_sparse_vector_has_the_largest_weights_of_the_vocabulary(
    tmp_path, strategy, function, backends
):
    network = splade(tmp_path / "m", strategy, function)
    theirs = sparse_by_hand(network, strategy, function == "log1p_relu")
    shapes = tuple((length,) for length in LENGTHS)
    ids = Ragged("INT64", np.concatenate(rows()), shapes)
    for backend in backends:
        runtime = opened(backend, tmp_path / "m", "embed", tmp_path / "cache")
        found = runtime.run(Batch(len(LENGTHS), np.array(LENGTHS), {"input_ids": ids})).outputs
        indices, values = (found[name].data.reshape(-1, 256) for name in ("indices", "values"))
        for row, whole in enumerate(theirs):
            kept = indices[row] >= 0
            assert kept.sum() == min(256, (whole > 0).sum())
            assert (np.diff(indices[row]) >= 0).all()
            np.testing.assert_allclose(values[row][kept], whole[indices[row][kept]], WORST, WORST)
            assert values[row][kept].min() >= np.sort(whole)[-256] - WORST
            assert not values[row][~kept].any()


def test_a_sparse_folder_is_checked_before_it_is_loaded(tmp_path):
    def asked(task: str, **options: Any) -> catalog.FileRequirements:
        return catalog.FileRequirements("torch", task, options, "fp32", None)

    splade(tmp_path / "m", "max", "relu")
    catalog.check_files(tmp_path / "m", asked("embed"))
    with pytest.raises(LoadError, match="its task must be embed, not tensors"):
        catalog.check_files(tmp_path / "m", asked("tensors"))
    folder(tmp_path / "n", "bert")
    with pytest.raises(LoadError, match="is BertModel; pooling splade needs one that ends with"):
        catalog.check_files(tmp_path / "n", asked("embed", pooling="splade"))


def test_a_folder_is_sparse_as_it_says_or_is_refused(tmp_path):
    splade(tmp_path / "m", "median", "relu")
    with pytest.raises(LoadError, match="'median' with activation_function 'relu' is not supp"):
        opened("torch", tmp_path / "m", "embed", tmp_path)
    splade(tmp_path / "n", "max", "relu")
    with pytest.raises(LoadError, match="makes sparse vectors; its task must be embed, not tens"):
        opened("torch", tmp_path / "n", "tensors", tmp_path)
    folder(tmp_path / "n", "bert")  # without the head for masked words
    with pytest.raises(LoadError, match="is BertModel; pooling splade needs one that ends with"):
        opened("torch", tmp_path / "n", "embed", tmp_path)


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_torch_computes_a_family_in_fewer_bits_and_a_row_alone_as_in_a_batch(tmp_path, precision):
    network = folder(tmp_path / "m", "roberta")
    settings = RuntimeSettings(
        name="m", runtime="torch", source=tmp_path / "m", cache_dir=tmp_path, precision=precision,
        max_length=120, threads=1,
    )  # fmt: skip
    runtime = create(settings)
    runtime.load()
    together, theirs = answers(runtime), expected(network, "tensors")
    assert 1e-5 < worst(together, theirs) < 0.2
    first = Ragged("INT64", rows()[2], ((LENGTHS[2],),))
    alone = runtime.run(Batch(1, np.array(LENGTHS[2:3]), {"input_ids": first}))
    (row,) = alone.outputs["last_hidden_state"].rows()
    np.testing.assert_allclose(row.reshape(together[2].shape), together[2], atol=0.05)


def test_a_folder_that_lacks_weights_is_refused_by_name(tmp_path):
    folder(tmp_path / "m", "roberta")
    file = tmp_path / "m/model.safetensors"
    kept = {name: value for name, value in load_file(file).items() if "layer.1." not in name}
    save_file(kept, file, metadata={"format": "pt"})
    for backend in ("torch", "onnxruntime"):
        with pytest.raises(
            LoadError, match=r"lacks 16 of the network's weights.*encoder\.layer\.1"
        ):
            opened(backend, tmp_path / "m", "tensors", tmp_path / "cache")
    assert not list((tmp_path / "cache/staged").glob("*.build-*"))  # nothing half-made stays


def test_an_export_needs_its_packages(tmp_path, monkeypatch):
    folder(tmp_path / "m", "roberta")
    monkeypatch.setattr(exporting, "PACKAGES", ("torch", "no_such_package"))
    with pytest.raises(LoadError, match=r"needs no_such_package: pip install 'headrace\[export\]'"):
        opened("openvino", tmp_path / "m", "tensors", tmp_path)


def test_an_export_that_needs_more_memory_than_it_may_have_says_so(tmp_path, monkeypatch):
    folder(tmp_path / "m", "roberta")
    monkeypatch.setattr(exporting, "_FREE_BYTES", 300 << 20)
    with pytest.raises(LoadError, match=r"exported: it needs more than 30\d MiB of memory"):
        opened("onnxruntime", tmp_path / "m", "tensors", tmp_path)


def test_an_export_that_takes_too_long_is_ended(tmp_path, monkeypatch):
    folder(tmp_path / "m", "roberta")
    monkeypatch.setattr(exporting, "LIMIT_S", 0.5)
    with pytest.raises(LoadError, match=r"it took longer than \d s"):
        opened("onnxruntime", tmp_path / "m", "tensors", tmp_path)


def main() -> None:
    print("| family | onnxruntime | openvino | torch | export, s |\n|---|---|---|---|---|")
    for family in sys.argv[1:] or sorted(FAMILIES):
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch)
            network = folder(path / "m", family)
            theirs, cells, begin = expected(network, "tensors"), [], time.perf_counter()
            for backend in ("onnxruntime", "openvino", "torch"):
                try:
                    runtime = opened(backend, path / "m", "tensors", path / "cache")
                    cells.append(f"{worst(answers(runtime), theirs):.1e}")
                except LoadError as error:
                    cells.append(str(error)[-200:])
                if backend == "onnxruntime":
                    seconds = time.perf_counter() - begin
            print(f"| {family} | {' | '.join(cells)} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
