"""The digits example, made here: right on what it has not seen, its scores calibrated, and through
the whole gateway what it is offline, to the last sample."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import yaml
from PIL import Image

import examples
from deployments.replica import describe
from deployments.settings.model import ModelSettings
from examples import make_digits
from examples.calibration import expected_calibration_error, softmax
from runtimes.fingerprint import Mismatch

sys.path.append(str(Path(__file__).parents[1] / "deployments"))

from in_process import Stand, ask, standing

pytestmark = pytest.mark.slow
MIN_RIGHT = 0.95
EXAMPLE = Path(examples.__file__).parent / "digits.yaml"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    folder = tmp_path_factory.mktemp("digits")
    make_digits.main(folder)
    return folder


def settings(made: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())["models"]["digits"]
    return {**found, "source": str(made / "model.onnx"), "slo": {"latency_ms": 60_000}}


def offline(made: Path, side: int) -> np.ndarray:
    """float32 [held out, 10] logits, by Pillow and ONNX Runtime alone, an image at a time."""
    session = onnxruntime.InferenceSession(str(made / "model.onnx"))
    rows = []
    for file in held_out(made):
        grey = Image.open(file).convert("L").resize((side, side), Image.Resampling.BILINEAR)
        row = ((np.asarray(grey, np.float32) / 255 - 0.5) / 0.5)[None, None]
        rows.append(session.run(["logits"], {"image": row})[0][0])
    return np.stack(rows)


def held_out(made: Path) -> list[Path]:
    return sorted((made / "held_out").glob("*.png"))


def digits(made: Path) -> np.ndarray:
    return np.array([int(file.stem[-1]) for file in held_out(made)])


async def predictions(stand: Stand, files: list[Path]) -> list[dict[str, Any]]:
    instances = [{"b64": base64.b64encode(file.read_bytes()).decode()} for file in files]
    body = json.dumps({"instances": instances, "top_k": 10}).encode()
    answer = await ask(stand.app, "POST", "/v1/models/digits:classify", body=body)
    assert answer.status == 200, answer.body
    found: list[dict[str, Any]] = json.loads(answer.body)["predictions"]
    return found


async def test_accuracy_through_the_gateway_equals_offline_to_the_last_sample(
    made: Path, tmp_path: Path
) -> None:
    facts = json.loads((made / "classify.json").read_text())
    scores = softmax(offline(made, 16), facts["temperature"])
    async with standing({"digits": settings(made)}, tmp_path) as stand:
        found = await predictions(stand, held_out(made))
    assert len(found) == 594
    for wanted, one in zip(scores, found, strict=True):
        assert one["abstained"] is bool(wanted.max() < facts["threshold"])
        best = one["best_guess"] if one["abstained"] else one["labels"][0]
        assert best["label"] == str(wanted.argmax())
        assert best["score"] == pytest.approx(wanted.max(), abs=1e-5)


@pytest.mark.parametrize("side", make_digits.SIZES)
def test_it_is_right_on_what_it_has_not_seen_and_knows_how_sure_to_be(
    made: Path, side: int
) -> None:
    logits, wanted = offline(made, side), digits(made)
    assert (logits.argmax(axis=1) == wanted).mean() > MIN_RIGHT
    temperature = json.loads((made / "classify.json").read_text())["temperature"]
    assert expected_calibration_error(softmax(logits, temperature), wanted) < 0.05


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("antialias", False, "antialias is true, the service does false"),
        ("resize", "bicubic", 'resize is "bilinear", the service does "bicubic"'),
        ("layout", "NHWC", 'layout is "NCHW", the service does "NHWC"'),
        ("colour", "BGR", 'colour is "grey", the service does "BGR"'),
        ("size", [16], r"size is \[\[16, 16\], \[32, 32\]\], the service does 16"),
        ("mean", 0, r"mean is \[0.5\], the service does \[0.0\]"),
    ],
)
def test_what_it_was_not_trained_with_is_refused(
    made: Path, tmp_path: Path, name: str, value: Any, said: str
) -> None:
    image = {**settings(made)["image"], name: value}
    model = ModelSettings.model_validate({**settings(made), "image": image})
    with pytest.raises(Mismatch, match=said):
        describe.runtime_settings("digits", model, tmp_path, lambda *_: None)
