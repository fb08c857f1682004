"""Images for a Hugging Face folder are prepared as its preprocessor_config.json says, and refused
where its settings say another thing or its file cannot be obeyed."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from image_models import picture
from PIL import Image
from settings_files import mistakes, write

from deployments.contract.description import ImageInput
from deployments.preprocess.images import prepared
from deployments.replica import describe
from deployments.settings.model import ModelSettings
from deployments.settings_files import preprocessing_support
from deployments.settings_files.load import load
from runtimes import catalog, image_processor
from runtimes.errors import LoadError
from runtimes.types import Batch, Limits, Ragged, TensorSpec

SIDE = 32
SIZES = [(57, 93), (100, 41), (32, 32), (20, 31), (41, 47)]  # height, width
SQUARE = {"height": SIDE, "width": SIDE}
CROPPED = {"size": {"shortest_edge": SIDE + 3}, "crop_size": SQUARE}  # an odd number is cut away
PROCESSORS = {
    "clip": transformers.CLIPImageProcessor,
    "siglip": transformers.SiglipImageProcessor,
    "vit": transformers.ViTImageProcessor,
}
SMALL: dict[str, Any] = {
    **{"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4},
    "intermediate_size": 64,
}
SEEN = {**SMALL, "image_size": SIDE, "patch_size": 8}


def settings(source: Path, **fields: Any) -> ModelSettings:
    written = {"runtime": "torch", "source": str(source), "task": "embed", "image": {}, **fields}
    return ModelSettings.model_validate(written)


def png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def input_of(model: ModelSettings) -> ImageInput:
    """How images become rows, by settings that the folder's file completed."""
    spec = TensorSpec("pixel_values", "FP32", (-1, 3, SIDE, SIDE))
    shapes = describe.row_shapes(model.image)
    assert shapes is not None
    shapes = type(shapes)("pixel_values", shapes.shapes)
    made = describe.image_input(model.image, Limits((spec,), (), row_shapes=shapes))
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("clip", CROPPED),
        ("clip", {"size": {"shortest_edge": SIDE}, "crop_size": SQUARE}),
        ("clip", {**CROPPED, "do_normalize": False}),
        ("clip", {**CROPPED, "resample": 2, "image_mean": [0.1, 0.2, 0.3]}),
        ("siglip", {"size": SQUARE}),
        ("siglip", {"size": SQUARE, "rescale_factor": 1 / 127.5, "image_mean": [1.0] * 3}),
        ("vit", {"size": SQUARE}),
        ("vit", {"size": SQUARE, "do_rescale": False, "image_std": [255.0] * 3}),
    ],
)
def test_pixels_are_those_of_the_folders_own_image_processor(tmp_path, kind, said):
    processor = PROCESSORS[kind](**said)
    processor.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    how = input_of(preprocessing_support.with_image(settings(tmp_path), tmp_path))
    for at, size in enumerate(SIZES):
        image = picture(*size, seed=at)
        theirs = np.asarray(processor(images=image, return_tensors="np")["pixel_values"][0])
        np.testing.assert_allclose(prepared(how, png(image), "image"), theirs, 1e-5, 1e-5)


def test_an_image_gets_the_embedding_that_transformers_gives_it(tmp_path):
    torch.manual_seed(0)
    words = {**SMALL, "vocab_size": 50, "bos_token_id": 3, "eos_token_id": 2, "pad_token_id": 1}
    config = transformers.CLIPConfig(text_config=words, vision_config=SEEN, projection_dim=24)
    network = transformers.CLIPModel(config).eval()
    network.save_pretrained(tmp_path / "m")
    processor = transformers.CLIPImageProcessor(**CROPPED)
    processor.save_pretrained(tmp_path / "m")
    model = settings(tmp_path / "m")
    found = describe.runtime_settings("clip", model, tmp_path / "cache", lambda *_: None)
    runtime = catalog.create(found)
    runtime.load()
    description, _ = describe.describe("clip", model, "digest", runtime)
    assert (description.image, description.embed_width) == (input_of(whole(model)), 24)
    images = [picture(*size, seed=at) for at, size in enumerate(SIZES)]
    rows = [prepared(description.image, png(image), "image").reshape(-1) for image in images]
    length = description.max_length
    given = Ragged("FP32", np.concatenate(rows), ((3, SIDE, SIDE),) * len(rows))
    batch = Batch(len(rows), np.full(len(rows), length), {"pixel_values": given})
    ours = runtime.run(batch).outputs["image_embeds"].data.reshape(len(rows), 24)
    with torch.no_grad():
        pixels = processor(images=images, return_tensors="pt")["pixel_values"]
        theirs = network.get_image_features(pixels).pooler_output.numpy()
    assert np.abs(ours - theirs).max() < 1e-5


def whole(model: ModelSettings) -> ModelSettings:
    return preprocessing_support.with_image(model, Path(model.source or ""))


def test_a_newer_folders_file_says_the_same(tmp_path):
    PROCESSORS["siglip"](size=SQUARE).save_pretrained(tmp_path)
    old = tmp_path / "preprocessor_config.json"
    before = whole(settings(tmp_path)).image
    (tmp_path / "processor_config.json").write_text(
        json.dumps({"image_processor": json.loads(old.read_text()), "processor_class": "any"})
    )
    old.unlink()
    assert whole(settings(tmp_path)).image == before


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ({"image_processor_type": "DetrImageProcessor"}, "'DetrImageProcessor' is not supported"),
        ({"resample": 1}, r"resample is 1 \(lanczos\); only 2 \(bilinear\) and 3"),
        ({"do_resize": False}, "do_resize is false; images have to be resized to one size"),
        ({"do_center_crop": False}, "size has shortest_edge alone and do_center_crop is not true"),
        ({"crop_size": 224}, "can only be cut from images whose shorter side"),
        ({"size": {"longest_edge": 9}}, "size, crop_size, .* is not as transformers writes it"),
        ({"size": "large"}, "size, crop_size, .* is not as transformers writes it"),
        ({"image_std": [0, 1, 1]}, "image_std have to be above 0"),
        ({"image_mean": [0.5]}, "size, crop_size, image_mean, .* is not as transformers writes it"),
    ],
)
def test_a_file_that_cannot_be_obeyed_is_refused(tmp_path, said, wrong):
    written = {"image_processor_type": "CLIPImageProcessor", **CROPPED, **said}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(written))
    with pytest.raises(LoadError, match=wrong):
        whole(settings(tmp_path))


@pytest.mark.parametrize(
    ("image", "wrong"),
    [
        ({"size": 64}, "size is 32, the service does 64; leave it out of image"),
        ({"mean": 0.5}, r"mean is \[0.48.*, the service does \[0.5\]"),
        ({"resize": "bilinear"}, 'resize is "bicubic", the service does "bilinear"'),
        ({"colour": "BGR"}, 'colour is "RGB", the service does "BGR"'),
        ({"shorter_side": 99}, "shorter_side is 35, the service does 99"),
    ],
)
def test_settings_that_say_another_thing_than_the_folder_are_refused(tmp_path, image, wrong):
    PROCESSORS["clip"](**CROPPED).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(LoadError, match=wrong):
        whole(settings(tmp_path, image=image))
    same = whole(settings(tmp_path, image={"size": SIDE, "resize": "bicubic", "max_pixels": 9}))
    assert same.image is not None
    assert (same.image.shorter_side, same.image.max_pixels) == (SIDE + 3, 9)


def test_a_folder_that_does_not_say_how_large_images_are_needs_settings_that_do(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(LoadError, match=r"has no preprocessor_config\.json.* set image\.size and"):
        whole(settings(tmp_path))
    assert whole(settings(tmp_path, image={"size": SIDE})).image is not None


def test_a_file_of_a_model_is_as_its_settings_say_unless_they_leave_the_size_to_it(tmp_path):
    (tmp_path / "onnx").mkdir()
    file = tmp_path / "onnx/model.onnx"
    file.write_bytes(b"onnx")
    PROCESSORS["vit"](size=SQUARE).save_pretrained(tmp_path)
    assert image_processor.stored(file) is not None
    model = settings(file, runtime="onnxruntime", image={"size": 64, "mean": 0.1})
    assert whole(model) is model
    said = whole(settings(file, runtime="onnxruntime")).image
    assert said is not None
    assert (said.sizes, said.mean) == (((SIDE, SIDE),), (0.5, 0.5, 0.5))


def test_check_tells_of_an_image_section_that_is_missing_or_too_much(tmp_path):
    vit = transformers.AutoConfig.for_model("vit", **SEEN)
    transformers.AutoModel.from_config(vit).save_pretrained(tmp_path / "vit")
    written = "models: {m: {runtime: onnxruntime, source: vit, task: embed%s}}"
    (said,) = mistakes(tmp_path, written % "")
    assert "is of vit, which reads images; the model needs the setting image" in said
    (said,) = mistakes(tmp_path, written % ", image: {}")
    assert "has no preprocessor_config.json, which would say how images are prepared" in said
    PROCESSORS["vit"](size={"height": 64, "width": 64}).save_pretrained(tmp_path / "vit")
    (said,) = mistakes(tmp_path, written % ", image: {}")
    assert "the network reads images of 32 x 32 pixels, image.size makes 64 x 64" in said
    PROCESSORS["vit"](size=SQUARE).save_pretrained(tmp_path / "vit")
    (said,) = mistakes(tmp_path, written % ", image: {std: 0.25}")
    assert "std is [0.5, 0.5, 0.5], the service does [0.25]; leave it out of image" in said
    assert set(load(write(tmp_path, written % ", image: {}")).models) == {"m"}
