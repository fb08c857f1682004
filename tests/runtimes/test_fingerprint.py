"""A model that was made for other inputs than the service would give it does not load."""

from __future__ import annotations

import json

import pytest

from runtimes import fingerprint
from runtimes.errors import LoadError
from runtimes.fingerprint import Mismatch

TRAINED = {
    "resize": "bicubic",
    "antialias": True,
    "size": [224, 224],
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
    "layout": "nchw",
    "colour": "rgb",
}
OTHERS = {
    "resize": "bilinear",
    "antialias": False,
    "size": [256, 256],
    "mean": [0.5, 0.5, 0.5],
    "std": [0.229, 0.224, 0.226],
    "layout": "nhwc",
    "colour": "bgr",
}


@pytest.fixture
def model(tmp_path):
    fingerprint.write(tmp_path, TRAINED)
    return tmp_path


def test_a_model_without_a_fingerprint_loads_whatever_the_service_does(tmp_path):
    fingerprint.check(tmp_path, TRAINED)


def test_what_was_stored_agrees_with_itself(model):
    fingerprint.check(model, TRAINED)
    assert fingerprint.read(model) == TRAINED


@pytest.mark.parametrize("field", OTHERS)
def test_each_field_done_otherwise_is_refused_by_its_name_and_both_values(model, field):
    with pytest.raises(Mismatch) as refused:
        fingerprint.check(model, TRAINED | {field: OTHERS[field]})
    said = str(refused.value)
    assert "preprocessing.json" in said
    assert f"{field} is {json.dumps(TRAINED[field])}" in said
    assert f"the service does {json.dumps(OTHERS[field])}" in said
    assert said.count(" is ") == 1


def test_all_that_differs_is_said_at_once(model):
    with pytest.raises(Mismatch) as refused:
        fingerprint.check(model, OTHERS)
    assert all(f"{field} is" in str(refused.value) for field in OTHERS)


def test_what_nothing_here_does_is_refused_instead_of_left_undone(tmp_path):
    fingerprint.write(tmp_path, {"crop": "center"})
    with pytest.raises(Mismatch, match='crop is "center", the service does nothing of that name'):
        fingerprint.check(tmp_path, TRAINED)


def test_numbers_and_words_may_be_written_otherwise(model):
    same = {"size": (224, 224.0), "mean": [0.485000001, 0.456, 0.406], "colour": "RGB"}
    fingerprint.check(model, TRAINED | same)


def test_true_is_no_number(tmp_path):
    fingerprint.write(tmp_path, {"antialias": True})
    with pytest.raises(Mismatch):
        fingerprint.check(tmp_path, {"antialias": 1})


def test_another_tokenizer_is_another_field(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    trained = fingerprint.tokenizer(tmp_path)
    fingerprint.write(tmp_path, trained)
    fingerprint.check(tmp_path, fingerprint.tokenizer(tmp_path))
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0" }')
    with pytest.raises(Mismatch, match='tokenizer is "sha256:'):
        fingerprint.check(tmp_path, fingerprint.tokenizer(tmp_path))


def test_a_model_that_lost_its_tokenizer_is_refused(tmp_path):
    fingerprint.write(tmp_path, {"tokenizer": "sha256:00"})
    with pytest.raises(Mismatch, match=r"tokenizer .* nothing of that name"):
        fingerprint.check(tmp_path, fingerprint.tokenizer(tmp_path))


def test_a_file_s_fingerprint_and_tokenizer_lie_beside_it(tmp_path):
    file = tmp_path / "model.onnx"
    file.write_bytes(b"")
    (tmp_path / "tokenizer.json").write_text("{}")
    assert fingerprint.write(file, TRAINED) == tmp_path / "preprocessing.json"
    assert "tokenizer" in fingerprint.tokenizer(file)
    with pytest.raises(Mismatch, match="colour"):
        fingerprint.check(file, TRAINED | {"colour": "bgr"})


@pytest.mark.parametrize("content", ["{", "[1]", '"rgb"'])
def test_what_is_no_object_is_an_error_that_names_the_file(tmp_path, content):
    (tmp_path / "preprocessing.json").write_text(content)
    with pytest.raises(LoadError, match=r"preprocessing\.json"):
        fingerprint.check(tmp_path, TRAINED)
