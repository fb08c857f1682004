"""Settings, folder and loaded model joined; what does not fit is refused in the settings' words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deployments.replica.describe import (
    beside_the_artifact,
    classes,
    image_input,
    row_shapes,
    with_image_lengths,
)
from deployments.settings.classify import ClassifySettings
from deployments.settings.image import ImageSettings
from deployments.settings.lengths import bucket_edges
from deployments.settings.model import ModelSettings
from runtimes.errors import LoadError
from runtimes.types import Limits, RowShapes, TensorSpec

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
    lengths = with_image_lengths(model).lengths
    assert bucket_edges(lengths) == (1, 16, 196)
    assert lengths.max == 196
    assert lengths.max_buckets is None


def test_a_model_of_whole_levels_takes_no_mean():
    plain, shifted = (ImageSettings.model_validate({"size": 8, "mean": mean}) for mean in (0, 0.5))
    taken = limits(datatype="UINT8")
    assert image_input(plain, taken).datatype == "UINT8"  # type: ignore[union-attr]
    with pytest.raises(LoadError, match=r"leave image\.mean"):
        image_input(shifted, taken)
    with pytest.raises(LoadError, match="images can be FP32"):
        image_input(plain, limits(datatype="INT64"))
