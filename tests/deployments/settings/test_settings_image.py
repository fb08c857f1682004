"""What may be said of images and classes, and what a mistake is met with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.settings.image import patches
from deployments.settings.model import ModelSettings
from deployments.settings.plain import SettingsErrors, digest, dump, parse
from deployments.settings.tree import Settings
from deployments.settings_files.load import load


def model(**fields: Any) -> dict[str, Any]:
    return {"runtime": "onnxruntime", "source": "m.onnx", "task": "classify", **fields}


def mistakes(tmp_path: Path, **fields: Any) -> str:
    (tmp_path / "m.onnx").write_bytes(b"\x08")
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump({"models": {"m": model(**fields)}}))
    with pytest.raises(SettingsErrors) as wrong:
        load(file)
    return str(wrong.value)


@pytest.mark.parametrize(
    ("size", "sides"),
    [
        (224, ((224, 224),)),
        ("24x32", ((24, 32),)),
        ([64, "64x128", 128], ((64, 64), (64, 128), (128, 128))),
    ],
)
def test_sizes_are_sides_or_height_by_width(size, sides):
    found = ModelSettings.model_validate(model(image={"size": size}))
    assert found.image is not None
    assert found.image.sizes == sides


@pytest.mark.parametrize(
    ("height", "width", "length"), [(1, 1, 1), (16, 16, 1), (16, 17, 2), (224, 224, 196)]
)
def test_an_images_length_is_its_patches(height, width, length):
    assert patches(height, width) == length


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"image": {"size": 0}}, "must be a side such as 224"),
        ({"image": {"size": "24*32"}}, "must be a side such as 224"),
        ({"image": {"size": [64, 32]}}, "sizes must grow"),
        ({"image": {"size": []}}, "must have 1 to 32"),
        ({"image": {"size": 8, "resize": "nearest"}}, "bilinear or bicubic"),
        ({"image": {"size": 8, "mean": [1, 2]}}, "a list of 1 or 3 numbers"),
        ({"image": {"size": 8, "mean": [0, float("inf"), 1]}}, "mean[1]: must be a finite number"),
        ({"image": {"size": 8, "std": 10**400}}, "std[0]: must be a finite number"),
        ({"image": {"size": 8, "std": [1, 0, 1]}}, "must be above 0"),
        ({"image": {"size": 8, "colour": "grey", "std": [1, 1, 1]}}, "has 3 numbers; must have 1"),
        ({"image": {"size": 8, "colour": "rgb"}}, "RGB, BGR or grey"),
        ({"image": {"size": 8, "shorter_side": 7}}, "must be at least 8"),
        ({"image": {"size": [8, 9], "shorter_side": 9}}, "size has several entries"),
        ({"image": {"size": 8}, "lengths": {"max": 9}}, "image.size decides their lengths"),
        ({"classify": {"labels": [1]}}, "in quotes"),
        ({"classify": {"temperature": 0}}, "above 0"),
        ({"classify": {"threshold": 2}}, "0 to 1"),
        ({"task": "tensors", "classify": {"top_k": 2}}, "only tasks classify and rerank have it"),
    ],
)
def test_mistakes_are_explained(tmp_path, fields, said):
    assert said in mistakes(tmp_path, **fields)


def test_settings_that_differ_from_the_training_are_refused_with_both_values(tmp_path):
    (tmp_path / "preprocessing.json").write_text(
        '{"colour": "BGR", "size": 8, "antialias": false, "mean": [0.0], "layout": "NHWC"}'
    )
    said = mistakes(tmp_path, image={"size": 16})
    for each in (
        'colour is "BGR", the service does "RGB"',
        "size is 8, the service does 16",
        "antialias is false, the service does true",
        'layout is "NHWC", the service does "NCHW"',
    ):
        assert each in said
    assert "mean" not in said


def test_settings_survive_their_way_between_processes():
    given = model(image={"size": [8, "8x16"], "mean": 0.5}, classify={"labels": ["a"]})
    settings = Settings.model_validate({"models": {"m": given}})
    assert parse(dump(settings)) == settings


def test_a_version_depends_on_what_is_done_to_images_and_on_labels():
    def version(**fields: Any) -> str:
        return digest(ModelSettings.model_validate(model(**fields)), "artifact")

    plain = version(image={"size": 8})
    assert plain == version(image={"size": 8, "max_pixels": 99})
    others = [
        version(),
        version(image={"size": 9}),
        version(image={"size": 8, "antialias": False}),
        version(image={"size": 8}, classify={"temperature": 2}),
    ]
    assert len({plain, *others}) == 5
