"""The digits example as a user serves it: every held-out digit through HTTP is what the same model
says of it offline, to the last sample; batches of mixed sizes change nothing."""

from __future__ import annotations

import base64
import io
import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import yaml
from PIL import Image
from served import Server, http

import examples
from deployments.replica import describe
from deployments.settings.model import ModelSettings
from examples import make_digits
from examples.calibration import expected_calibration_error, softmax
from runtimes.fingerprint import Mismatch

pytestmark = pytest.mark.integration
EXAMPLE = Path(examples.__file__).parent / "digits.yaml"
AT_ONCE = 64
SHARED = yaml.safe_load(EXAMPLE.read_text())["models"]
SHARED["digits"]["slo"] = {"latency_ms": 20_000}


@pytest.fixture(scope="module")
def server(shared) -> Server:
    """Trained the model, since its cache was empty."""
    made: Server = shared
    return made


@pytest.fixture(scope="module")
def made(server: Server) -> Path:
    """The folder that the server made."""
    made = (server.folder / "cache" / "headrace" / "made").iterdir()
    (folder,) = (each for each in made if each.is_dir())  # beside it a lock
    return folder


opened = cache(onnxruntime.InferenceSession)


def offline(made: Path, image: Image.Image, side: int) -> np.ndarray:
    """float64 [10] scores by Pillow, ONNX Runtime and numpy alone."""
    grey = image.convert("L").resize((side, side), Image.Resampling.BILINEAR)
    row = ((np.asarray(grey, np.float32) / 255 - 0.5) / 0.5)[None, None]
    (logits,) = opened(made / "model.onnx").run(["logits"], {"image": row})
    temperature = json.loads((made / "classify.json").read_text())["temperature"]
    found: np.ndarray = softmax(logits, temperature)[0]
    return found


def ask(server: Server, files: list[bytes], top_k: int = 10) -> list[dict[str, Any]]:
    instances = [{"b64": base64.b64encode(file).decode()} for file in files]
    answer = http.post(
        f"{server.url}/v1/models/digits:classify",
        json={"instances": instances, "top_k": top_k},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["predictions"]
    return found


def test_accuracy_through_http_equals_offline_to_the_last_sample(server, made):
    files = sorted((made / "held_out").glob("*.png"))
    assert len(files) == 594
    through: list[dict[str, Any]] = []
    for start in range(0, len(files), AT_ONCE):
        through += ask(server, [file.read_bytes() for file in files[start : start + AT_ONCE]])
    threshold = json.loads((made / "classify.json").read_text())["threshold"]
    for file, found in zip(files, through, strict=True):
        scores = offline(made, Image.open(file), 16)
        assert found["abstained"] is bool(scores.max() < threshold), file.name
        best = found["best_guess"] if found["abstained"] else found["labels"][0]
        assert best["label"] == str(scores.argmax()), file.name
        assert best["score"] == pytest.approx(scores.max(), abs=1e-5), file.name


@pytest.mark.parametrize("side", make_digits.SIZES)
def test_it_is_right_on_what_it_has_not_seen_and_knows_how_sure_to_be(made, side):
    files = sorted((made / "held_out").glob("*.png"))
    scores = np.stack([offline(made, Image.open(file), side) for file in files])
    digits = np.array([int(file.stem[-1]) for file in files])
    assert (scores.argmax(axis=1) == digits).mean() > 0.95
    assert expected_calibration_error(scores, digits) < 0.05


def test_images_of_both_sizes_in_one_request_are_answered_as_alone(server, made):
    digits = [Image.open(file) for file in sorted((made / "held_out").glob("*.png"))[:20]]
    sides = [8, 30, 500, 12, 20] * 4
    images = [digit.resize((side, side)) for digit, side in zip(digits, sides, strict=True)]
    answers = ask(server, [_png(image) for image in images])
    for image, found in zip(images, answers, strict=True):
        scores = offline(made, image, 16 if image.width <= 16 else 32)
        best = found["best_guess"] if found["abstained"] else found["labels"][0]
        assert best["label"] == str(scores.argmax())
        assert best["score"] == pytest.approx(scores.max(), abs=1e-5)


def test_wrong_settings_are_refused_with_the_fields_name_and_both_values(server, made, tmp_path):
    shutil.copytree(made, tmp_path / "copy", ignore=shutil.ignore_patterns("held_out"))
    model = yaml.safe_load(EXAMPLE.read_text())["models"]["digits"]
    model["source"] = str(tmp_path / "copy" / "model.onnx")
    for name, value, said in (
        ("antialias", False, "antialias is true, the service does false"),
        ("resize", "bicubic", 'resize is "bilinear", the service does "bicubic"'),
        ("layout", "NHWC", 'layout is "NCHW", the service does "NHWC"'),
        ("colour", "BGR", 'colour is "grey", the service does "BGR"'),
        ("size", [16], r"size is \[\[16, 16\], \[32, 32\]\], the service does 16"),
        ("mean", 0, r"mean is \[0.5\], the service does \[0.0\]"),
    ):
        changed = ModelSettings.model_validate({**model, "image": {**model["image"], name: value}})
        with pytest.raises(Mismatch, match=said):
            describe.runtime_settings("digits", changed, tmp_path, lambda *_: None)


def _png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()
