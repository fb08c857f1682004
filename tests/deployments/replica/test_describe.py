"""What a loaded model says of itself, and what its runtime is told."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from fake_runtimes import Encoder, Moody, Shout

from deployments.contract.description import Generating
from deployments.gateway.http.protocols import metadata
from deployments.replica import describe
from deployments.replica.describe import (
    beside_the_artifact,
    classes,
    image_input,
    row_shapes,
    with_lengths,
)
from deployments.replica.known_costs import KnownCosts
from deployments.settings.classify import ClassifySettings
from deployments.settings.image import ImageSettings
from deployments.settings.lengths import bucket_edges
from deployments.settings.model import ModelSettings
from deployments.settings_files import preprocessing_support
from runtimes import fingerprint
from runtimes.errors import LoadError
from runtimes.types import Limits, RowShapes, StreamLimits, TensorSpec
from tests.runtimes.adapter_folders import write_adapter


def model(**fields: Any) -> ModelSettings:
    return ModelSettings.model_validate({"runtime": "synthetic", **fields})


def test_of_a_model_whose_rows_depend_no_answer_is_cached_or_shared():
    reused = model(cache={"max_bytes": 1000}, coalesce=True)
    description, _ = describe.describe("m", reused, "d", Encoder())  # type: ignore[arg-type]
    assert (description.reuse.cache_bytes, description.reuse.coalesce) == (1000, True)
    assert not description.rows_depend
    description, _ = describe.describe("m", reused, "d", Encoder(), rows_depend=True)  # type: ignore[arg-type]
    assert (description.reuse.cache_bytes, description.reuse.coalesce) == (0, False)
    assert description.rows_depend
    said = json.loads(metadata.model_metadata(description).body)["parameters"]
    assert said["rows_depend"] is True


def test_the_runtime_is_told_what_the_settings_say(tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []
    settings = model(
        lengths={"max": 64, "buckets": [8, 64]},
        batch={"max_size": 4, "max_tokens": 256},
        replicas={"threads": 3},
        options={"base_ms": 1},
    )
    found = describe.runtime_settings("m", settings, tmp_path, lambda *p: told.append(p))
    assert (found.edges, found.max_size, found.max_tokens) == ((8, 64), 4, 256)
    assert (found.threads, found.options, found.source) == (3, {"base_ms": 1}, None)
    found.progress("warming", 0.5)
    assert told == [("warming", 0.5)]


def test_the_description_joins_settings_and_limits() -> None:
    settings = model(
        slo={"latency_ms": 50, "late": "refuse"}, queue={"max_rows": 9}, retry=False, version="1.2"
    )
    description, tokenizer = describe.describe("m", settings, "digest", Encoder())  # type: ignore[arg-type]
    assert (description.name, description.version, description.digest, description.generation) == (
        "m",
        "1.2",
        "digest",
        0,
    )
    assert (description.inputs, description.lengths_input) == (Encoder.LIMITS.inputs, "ids")
    s = description.scheduling
    assert (s.slo_s, s.timeout_s, s.core.late, s.core.max_queue_rows) == (0.05, 0.5, "refuse", 9)
    assert (s.retry, tokenizer, description.tokenizer_digest) == (False, b"", "")


def test_the_description_carries_the_profile() -> None:
    profile = ((1, 16, 0.005),)
    costs = KnownCosts(profile, "stored, yesterday")
    description, _ = describe.describe("m", model(), "d", Encoder(), costs)  # type: ignore[arg-type]
    assert (description.profile, description.profile_from) == (profile, "stored, yesterday")


@pytest.mark.parametrize(("target", "rows"), [(None, 32), (8, 8), (64, 32)])
def test_a_batch_target_is_one_more_bound_on_rows(target: int | None, rows: int) -> None:
    costs = KnownCosts(((1, 16, 0.005),), "stored", None, target)
    description, _ = describe.describe("m", model(), "d", Encoder(), costs)  # type: ignore[arg-type]
    assert (description.scheduling.core.max_size, description.scheduling.core.fixed_size) == (
        rows,
        None,
    )


def test_stored_edges_are_those_to_start_from() -> None:
    costs = KnownCosts(((1, 16, 0.005),), "stored", (40, 512))
    description, _ = describe.describe("m", model(), "d", Encoder(), costs)  # type: ignore[arg-type]
    assert description.bucket_edges == (40, 512)


def test_a_model_without_lengths_has_one_bucket() -> None:
    description, _ = describe.describe("m", model(), "d", Moody(lambda v: None))  # type: ignore[arg-type]
    assert (description.bucket_edges, description.lengths_input) == ((1,), None)


def test_a_backend_compiled_for_some_lengths_sets_the_buckets() -> None:
    runtime = Encoder()
    runtime.LIMITS = Limits(  # type: ignore[misc]
        inputs=Encoder.LIMITS.inputs, outputs=Encoder.LIMITS.outputs, length_input="ids",
        fixed_edges=(32, 128),
    )  # fmt: skip
    description, _ = describe.describe("m", model(lengths={"max": 128}), "d", runtime)  # type: ignore[arg-type]
    assert description.bucket_edges == (32, 128)


def test_the_embedding_is_the_first_output_of_a_fixed_width() -> None:
    description, _ = describe.describe("m", model(task="embed"), "d", Encoder())  # type: ignore[arg-type]
    assert (description.embed_output, description.embed_width) == ("sums", 2)


def test_a_model_without_such_an_output_embeds_nothing() -> None:
    with pytest.raises(LoadError, match="width"):
        describe.describe("m", model(task="embed"), "d", Shout())  # type: ignore[arg-type]


def test_the_version_changes_with_what_shapes_the_answers() -> None:
    def version(**fields: Any) -> str:
        description, _ = describe.describe("m", model(**fields), "d", Encoder())  # type: ignore[arg-type]
        return description.version

    assert version() == version(queue={"max_rows": 3})
    assert version() != version(options={"base_ms": 7})


def test_the_version_depends_on_what_a_calibration_holds_and_not_on_where_it_lies(
    tmp_path: Path,
) -> None:
    def version(calibration: str) -> str:
        settings = model(options={"calibration": calibration})
        description, _ = describe.describe("m", settings, "d", Encoder())  # type: ignore[arg-type]
        return description.version

    for name, content in (("a", b"rows"), ("b", b"rows"), ("c", b"others")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "samples.npz").write_bytes(content)
    versions = [version(str(tmp_path / name)) for name in "abc"]
    assert versions[0] == versions[1] != versions[2]
    assert version(f"file://{tmp_path}/a/samples.npz") == versions[0]
    digest = hashlib.sha256(b"rows").hexdigest()
    assert version(f"s3://bucket/rows.npz#sha256={digest}") == versions[0]


@pytest.mark.parametrize("source", ["folder", "folder/model.onnx"])
def test_the_tokeniser_lies_in_the_models_folder_or_beside_its_file(
    tmp_path: Path, source: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "model.onnx").touch()
    assert describe.tokenizer_bytes(tmp_path / source) == b""
    (tmp_path / "folder" / "tokenizer.json").write_bytes(b"{}")
    assert describe.tokenizer_bytes(tmp_path / source) == b"{}"


def test_a_model_made_for_another_tokenizer_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    settings = model(runtime="torch", source=str(tmp_path), task="embed")
    fingerprint.write(tmp_path, preprocessing_support.supported_preprocessing(settings, tmp_path))
    describe.runtime_settings("m", settings, tmp_path, lambda *_: None)
    (tmp_path / "tokenizer.json").write_text('{"another": 1}')
    with pytest.raises(LoadError, match="tokenizer is"):
        describe.runtime_settings("m", settings, tmp_path, lambda *_: None)


class Engine:
    """A loaded engine, as far as its description needs it."""

    def limits(self) -> StreamLimits:
        return StreamLimits(256, 4096, 8, 16, device="cpu", platform="headrace_synthetic")


def test_the_description_of_a_model_that_generates_says_what_its_engine_holds(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    settings = model(
        task="generate", source=str(tmp_path), lengths={"max": 256, "buckets": [64, 256]}
    )
    profile = ((1, 1, 0.002),)
    description, tokenizer = describe.describe_stream("m", settings, "d", Engine(), profile)
    assert description.generating == Generating(256, 4096, 8, 16, profile)
    assert (description.inputs, description.outputs, description.max_length) == ((), (), 256)
    assert description.bucket_edges == (64, 256)
    assert tokenizer == b"{}"
    assert description.tokenizer_digest
    assert description.scheduling.core.generation is not None


def test_the_adapters_of_a_model_are_those_that_its_callers_can_ask_for(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    away = f"https://host/law.tar#sha256={'a' * 64}"
    adapters = {"sql": str(tmp_path), "law": away}
    settings = model(task="generate", source=str(tmp_path), adapters=adapters)
    description, _ = describe.describe_stream("m", settings, "d", Engine())
    made = description.generating
    assert made is not None
    assert made.adapters == ("sql", "law")
    assert made.adapter_digests[1] == "a" * 64
    generation = description.scheduling.core.generation
    assert generation is not None
    assert generation.adapters_resident == 8
    (tmp_path / "config.json").write_text("{} ")
    other, _ = describe.describe_stream("m", settings, "d", Engine())
    assert other.generating is not None
    assert other.generating.adapter_digests[0] != made.adapter_digests[0]
    assert other.version != description.version


@pytest.mark.parametrize("fault", ["missing", "no LoRA adapter that an engine runs"])
def test_a_replica_starts_without_an_adapter_that_it_cannot_have(
    tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text("{}")
    (base / "tokenizer.json").write_bytes(b"{}")
    for name in ("sql", "law"):
        write_adapter(tmp_path / name, 16, rank=32)
    adapters = {name: str(tmp_path / name) for name in ("sql", "law")}
    there = model(task="generate", source=str(base), adapters=adapters)
    if fault == "missing":
        shutil.rmtree(tmp_path / "law")
    else:
        (tmp_path / "law/adapter_config.json").write_text('{"peft_type": "IA3"}')
    started = describe.runtime_settings("m", there, tmp_path, lambda phase, share: None)
    assert started.max_lora_rank == 32  # of the other
    made, _ = describe.describe_stream("m", there, "d", Engine())
    assert made.generating is not None
    assert len(set(made.generating.adapter_digests)) == 2
    assert ("the adapter law cannot be read" in caplog.text) is (fault == "missing")
    with pytest.raises(LoadError, match="law"):
        started.adapters["law"].files()


LOGITS = TensorSpec("logits", "FP32", (-1, 2))


def limits(*outputs: TensorSpec, datatype: str = "FP32") -> Limits:
    return Limits(
        inputs=(TensorSpec("image", datatype, (-1, 3, -1, -1)),),
        outputs=outputs or (LOGITS,),
        row_shapes=RowShapes("image", ()),
    )


def settings(**fields: Any) -> ClassifySettings:
    return ClassifySettings.model_validate(fields)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    stored = {"labels": ["a", "b"], "temperature": 1.5, "threshold": 0.4}
    (tmp_path / "classify.json").write_text(json.dumps(stored))
    return tmp_path


def test_the_folder_says_what_the_settings_leave_open(folder: Path) -> None:
    for source in (folder, folder / "model.onnx"):
        found = classes(settings(), limits(), source)
        assert (found.labels, found.temperature, found.threshold) == (("a", "b"), 1.5, 0.4)
        assert (found.output, found.top_k, found.probabilities) == ("logits", 5, False)


def test_the_settings_come_before_the_folder(folder: Path) -> None:
    own = settings(labels=["x", "y"], temperature=3, threshold=0, output="probabilities")
    found = classes(own, limits(), folder)
    assert (found.labels, found.temperature, found.threshold) == (("x", "y"), 3, 0)
    assert found.probabilities is True


def test_without_names_labels_are_their_numbers(tmp_path: Path) -> None:
    assert classes(settings(), limits(), tmp_path).labels == ("0", "1")


def test_hugging_faces_names_are_taken(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"id2label": {"1": "POS", "0": "NEG"}}')
    assert classes(settings(), limits(), tmp_path).labels == ("NEG", "POS")
    (tmp_path / "config.json").write_text('{"id2label": {"1": "POS"}}')
    with pytest.raises(LoadError, match="id2label"):
        classes(settings(), limits(), tmp_path)


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ("{", "classify.json"),
        ('{"temprature": 2}', "temprature"),
        ('{"temperature": -1}', "temperature"),
        ('{"output": "scores"}', "output"),
    ],
)
def test_a_mistaken_file_is_named(tmp_path: Path, stored: str, said: str) -> None:
    (tmp_path / "classify.json").write_text(stored)
    with pytest.raises(LoadError, match=said):
        classes(settings(), limits(), tmp_path)


def test_as_many_labels_as_classes(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="3 labels for an output of 2 classes"):
        classes(settings(labels=["a", "b", "c"]), limits(), tmp_path)


def test_one_of_several_outputs_must_be_named(tmp_path: Path) -> None:
    two = limits(LOGITS, TensorSpec("aux", "FP32", (-1, 4)))
    with pytest.raises(LoadError, match=r"classify\.output_name must name it"):
        classes(settings(), two, tmp_path)
    assert classes(settings(output_name="aux"), two, tmp_path).labels == ("0", "1", "2", "3")
    with pytest.raises(LoadError, match="one 'none'"):
        classes(settings(output_name="none"), two, tmp_path)


ONE = TensorSpec("logits", "FP32", (-1, 1))
CROSS_ENCODER = "torch.nn.modules.activation.Sigmoid"
RAW = "torch.nn.modules.linear.Identity"


@pytest.mark.parametrize(
    ("config", "output", "activation"),
    [
        ({}, LOGITS, "softmax"),
        ({}, ONE, "sigmoid"),
        ({"problem_type": "single_label_classification"}, LOGITS, "softmax"),
        ({"problem_type": "single_label_classification"}, ONE, "sigmoid"),
        ({"problem_type": "multi_label_classification"}, LOGITS, "sigmoid"),
        ({"problem_type": "regression"}, ONE, "identity"),
        ({"problem_type": "regression"}, LOGITS, "identity"),
        ({"sentence_transformers": {"activation_fn": CROSS_ENCODER}}, ONE, "sigmoid"),
        ({"sentence_transformers": {"activation_fn": RAW}}, ONE, "identity"),
        ({"sbert_ce_default_activation_function": RAW}, ONE, "identity"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.Softmax"}}, LOGITS, "softmax"),
    ],
)
def test_scores_are_made_as_the_models_config_says(tmp_path: Path, config, output, activation):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert classes(settings(), limits(output), tmp_path).activation == activation


def test_settings_and_classify_json_come_before_the_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"problem_type": "multi_label_classification"}')
    (tmp_path / "classify.json").write_text('{"activation": "identity"}')
    assert classes(settings(), limits(), tmp_path).activation == "identity"
    assert classes(settings(activation="softmax"), limits(), tmp_path).activation == "softmax"


@pytest.mark.parametrize("name", ["torch.nn.Softmax", "torch.nn.Tanh", "evil"])
def test_an_activation_that_would_be_wrong_for_one_class_is_refused(tmp_path: Path, name) -> None:
    config = {"sentence_transformers": {"activation_fn": name}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(LoadError, match=r"set classify\.activation"):
        classes(settings(), limits(ONE), tmp_path)


def test_a_softmax_over_one_class_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="every score would be 1; must be sigmoid"):
        classes(settings(activation="softmax"), limits(ONE), tmp_path)


@pytest.mark.parametrize("field", [{"temperature": 2}, {"threshold": 0.5}])
def test_raw_scores_have_neither_temperature_nor_threshold(tmp_path: Path, field) -> None:
    with pytest.raises(LoadError, match="between 0 and 1"):
        classes(settings(activation="identity", **field), limits(), tmp_path)


def test_the_config_beside_a_file_shapes_its_version(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.touch()
    config = tmp_path / "config.json"
    config.write_text('{"problem_type": "regression"}')
    one = beside_the_artifact(file)
    config.write_text('{"problem_type": "multi_label_classification"}')
    assert one != beside_the_artifact(file)
    assert beside_the_artifact(tmp_path) == b""  # the folder's own digest covers it


@pytest.mark.parametrize(
    ("layout", "colour", "shape"),
    [("NCHW", "RGB", (3, 16, 32)), ("NHWC", "BGR", (16, 32, 3)), ("NCHW", "grey", (1, 16, 32))],
)
def test_rows_have_the_layouts_shape_and_a_length_of_patches(layout, colour, shape):
    image = ImageSettings.model_validate({"size": "16x32", "layout": layout, "colour": colour})
    assert row_shapes(image) == RowShapes(None, ((2, shape),))


def test_sizes_are_the_bucket_edges_and_the_last_is_the_longest():
    model = ModelSettings.model_validate(
        {"runtime": "onnxruntime", "source": "m", "image": {"size": [16, 64, 224]}}
    )
    lengths = with_lengths(model).lengths
    assert bucket_edges(lengths) == (1, 16, 196)
    assert lengths.max == 196
    assert lengths.max_buckets is None


@pytest.mark.parametrize(
    ("lengths", "max_seq_length", "positions", "longest"),
    [
        (None, 256, 512, 256),
        (None, 512, 130, 128),  # two positions of a RoBERTa are no token's
        (None, None, 130, 128),
        (None, 1024, 2050, 512),  # the default
        (None, None, None, 512),
        ({"buckets": 3}, 256, 512, 256),
        ({"max": 400}, 256, 512, 400),  # what is said in the settings goes first
        ({"buckets": [128, 512]}, 256, 512, 512),
    ],
)
def test_rows_are_no_longer_than_the_files_say_unless_the_settings_do(
    tmp_path, lengths, max_seq_length, positions, longest
):
    if positions:
        config = {"model_type": "roberta", "max_position_embeddings": positions, "pad_token_id": 1}
        (tmp_path / "config.json").write_text(json.dumps(config))
    if max_seq_length:
        said = json.dumps({"max_seq_length": max_seq_length, "do_lower_case": False})
        (tmp_path / "sentence_bert_config.json").write_text(said)
    written = {"runtime": "openvino", "source": str(tmp_path)} | (
        {} if lengths is None else {"lengths": lengths}
    )
    found = with_lengths(ModelSettings.model_validate(written), tmp_path).lengths
    assert (found.max, bucket_edges(found)[-1]) == (longest, longest)


def test_a_length_in_the_files_that_is_none_is_refused(tmp_path):
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": "long"}')
    (tmp_path / "model.onnx").touch()
    made = ModelSettings.model_validate({"runtime": "onnxruntime", "source": "m"})
    with pytest.raises(LoadError, match="max_seq_length is 'long'; it must be a whole number fr"):
        with_lengths(made, tmp_path / "model.onnx")


def test_a_model_of_whole_levels_takes_no_mean():
    plain, shifted = (ImageSettings.model_validate({"size": 8, "mean": mean}) for mean in (0, 0.5))
    taken = limits(datatype="UINT8")
    assert image_input(plain, taken).datatype == "UINT8"  # type: ignore[union-attr]
    with pytest.raises(LoadError, match=r"leave image\.mean"):
        image_input(shifted, taken)
    with pytest.raises(LoadError, match="images can be FP32"):
        image_input(plain, limits(datatype="INT64"))
