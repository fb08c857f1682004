"""Images and texts through the whole gateway, on ONNX Runtime: answers equal the model run by hand,
whoever was in the batch. The stand is empty after each."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from image_models import LABELS, jpeg, picture, png, write_model
from in_process import Answer, Stand, ask, standing
from PIL import Image

from deployments.preprocess.images import prepared
from deployments.preprocess.images import resized as resize_now

SIZES = (16, 32, "16x48")
PATH = "/v1/models/tiny:classify"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "tiny")


@pytest.fixture
async def stand(tmp_path: Path, model: Path) -> AsyncIterator[Stand]:
    settings = {
        "runtime": "onnxruntime",
        "source": str(model),
        "task": "classify",
        "slo": {"latency_ms": 20_000},
        "image": {"size": [16, "16x48", 32], "mean": [0.4, 0.5, 0.6], "std": 0.25},
    }
    synthetic = {"runtime": "synthetic", "options": {"base_ms": 0}}
    models, tenants = {"tiny": settings, "device": synthetic}, {"default": {}, "other": {}}
    async with standing(models, tmp_path, tenants=tenants) as stand:
        yield stand


def b64(*files: bytes) -> bytes:
    return json.dumps(
        {"instances": [{"b64": base64.b64encode(file).decode()} for file in files], "top_k": 5}
    ).encode()


async def post(stand: Stand, body: bytes, content_type: bytes = b"application/json") -> Answer:
    return await ask(stand.app, "POST", PATH, [(b"content-type", content_type)], body)


def predictions(answer: Answer) -> list[dict[str, float]]:
    assert answer.status == 200, answer.body
    found = json.loads(answer.body)["predictions"]
    return [{each["label"]: each["score"] for each in one["labels"]} for one in found]


def by_hand(stand: Stand, model: Path, file: bytes) -> dict[str, float]:
    """Decoded, resized and run alone."""
    how = stand.models.served["tiny"].description.image
    assert how is not None
    row = prepared(how, file, "image")
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"image": row[None]})
    grown = np.exp(logits[0].astype(np.float64))
    return dict(zip(LABELS, (grown / grown.sum()).tolist(), strict=True))


def close(found: dict[str, float], wanted: dict[str, float]) -> bool:
    return all(abs(found[label] - wanted[label]) < 1e-5 for label in LABELS)


async def test_a_png_is_answered_as_by_hand(stand: Stand, model: Path) -> None:
    file = png(picture(50, 40))
    answer = await post(stand, b64(file))
    assert close(predictions(answer)[0], by_hand(stand, model, file))
    body = json.loads(answer.body)
    assert body["model"] == "tiny"
    assert body["version"] == stand.models.served["tiny"].description.version


async def test_all_ways_to_send_an_image_give_the_same_answer(stand: Stand) -> None:
    file = jpeg(picture(30, 30))
    form = (
        b'--b\r\ncontent-disposition: form-data; name="f"; filename="a.jpg"\r\n\r\n'
        + file
        + b"\r\n--b--\r\n"
    )
    ways = [
        await post(stand, b64(file)),
        await post(stand, file, b"image/jpeg"),
        await post(stand, file, b"application/octet-stream"),
        await post(stand, form, b"multipart/form-data; boundary=b"),
    ]
    found = [predictions(way)[0] for way in ways]
    assert all(one == found[0] for one in found)


async def test_the_path_may_say_how_many_labels(stand: Stand) -> None:
    async with stand.client() as client:
        answer = await client.post(
            f"{PATH}?top_k=2", content=png(picture(9, 9)), headers={"content-type": "image/png"}
        )
    (found,) = answer.json()["predictions"]
    assert len(found["labels"]) == 2


async def test_mixed_sizes_in_one_request_change_no_answer(stand: Stand, model: Path) -> None:
    sides = [(10, 10), (200, 300), (16, 40), (31, 17), (5, 48), (64, 64)]
    files = [png(picture(*each, seed=at)) for at, each in enumerate(sides)]
    together = predictions(await post(stand, b64(*files)))
    assert all(
        close(one, by_hand(stand, model, file)) for one, file in zip(together, files, strict=True)
    )
    lengths = [tuple(np.frombuffer(call.lengths, np.int32)) for _, call in _calls(stand)]
    assert {length for batch in lengths for length in batch} == {1, 3, 4}


async def test_concurrent_callers_of_all_sizes_get_their_own_answers(
    stand: Stand, model: Path
) -> None:
    sides = [(8, 8), (16, 44), (40, 40)] * 8
    files = [png(picture(*each, seed=at)) for at, each in enumerate(sides)]
    answers = await asyncio.gather(*(post(stand, file, b"image/png") for file in files))
    assert all(
        close(predictions(answer)[0], by_hand(stand, model, file))
        for answer, file in zip(answers, files, strict=True)
    )


def _calls(stand: Stand) -> list[Any]:
    return stand.channels["tiny"].calls


async def test_a_bad_image_among_good_ones_is_named_by_its_place(stand: Stand) -> None:
    good = png(picture(9, 9))
    answer = await post(stand, b64(good, good, good[:40], good))
    assert answer.status == 400
    assert json.loads(answer.body)["error"].startswith("image 2 ")
    assert predictions(await post(stand, b64(good)))


@pytest.mark.parametrize(
    ("body", "content_type", "status", "said"),
    [
        (b'{"instances": ["a text"]}', b"application/json", 400, "takes images"),
        (b"GIF89a", b"image/png", 400, "image 0 is not a JPEG or PNG"),
        (b"x", b"image/webp", 415, "image/jpeg"),
        (b"{", b"application/json", 400, "malformed"),
    ],
)
async def test_refusals_say_what_would_be_right(
    stand: Stand, body: bytes, content_type: bytes, status: int, said: str
) -> None:
    answer = await post(stand, body, content_type)
    assert answer.status == status
    assert said in json.loads(answer.body)["error"]


async def test_a_model_that_does_not_classify_says_so(stand: Stand) -> None:
    answer = await ask(stand.app, "POST", "/v1/models/device:classify", body=b64(b"x"))
    assert answer.status == 400
    assert "does not classify" in json.loads(answer.body)["error"]


async def infer(stand: Stand, datatype: str, data: np.ndarray, raw: bytes) -> Answer:
    tensor = {
        "name": "image",
        "datatype": datatype,
        "shape": list(data.shape),
        "parameters": {"binary_data_size": len(raw)},
    }
    head = json.dumps({"inputs": [tensor]}).encode()
    length = (b"inference-header-content-length", str(len(head)).encode())
    return await ask(stand.app, "POST", "/v2/models/tiny/infer", [length], head + raw)


def logits(answer: Answer) -> np.ndarray:
    assert answer.status == 200, answer.body
    return np.array(json.loads(answer.body)["outputs"][0]["data"], np.float32)


async def test_infer_takes_files_levels_and_prepared_tensors(stand: Stand) -> None:
    image = picture(20, 20)
    file, levels = png(image), np.asarray(image)
    how = stand.models.served["tiny"].description.image
    assert how is not None
    row = prepared(how, file, "image")
    sized = len(file).to_bytes(4, "little") + file
    ways = [
        await infer(stand, "BYTES", np.zeros(1), sized),
        await infer(stand, "UINT8", levels[None], levels.tobytes()),
        await infer(stand, "FP32", row[None], row.tobytes()),
    ]
    text = {
        "name": "image",
        "datatype": "BYTES",
        "shape": [1],
        "data": [base64.b64encode(file).decode()],
    }
    body = json.dumps({"inputs": [text]}).encode()
    ways.append(await ask(stand.app, "POST", "/v2/models/tiny/infer", body=body))
    found = [logits(way) for way in ways]
    assert all((one == found[0]).all() for one in found)


@pytest.mark.parametrize(
    ("datatype", "shape", "said"),
    [
        ("FP32", (1, 16, 16, 3), "shape [1, 16, 16, 3]"),  # channels last
        ("FP32", (1, 3, 17, 16), "[3, 16, 16]"),  # no size of the model's
        ("UINT8", (1, 3, 16, 16), "UINT8 [n, height, width, 3 or 1]"),
        ("INT64", (1, 3, 16, 16), "takes FP32"),
    ],
)
async def test_a_tensor_of_another_layout_or_size_is_refused(
    stand: Stand, datatype: str, shape: tuple[int, ...], said: str
) -> None:
    kinds = {"FP32": np.float32, "UINT8": np.uint8, "INT64": np.int64}
    data = np.zeros(shape, kinds[datatype])
    answer = await infer(stand, datatype, data, data.tobytes())
    assert answer.status == 400
    assert said in json.loads(answer.body)["error"]


async def test_a_model_may_abstain(tmp_path: Path, model: Path) -> None:
    settings = {
        "runtime": "onnxruntime",
        "source": str(model),
        "task": "classify",
        "slo": {"latency_ms": 20_000},
        "image": {"size": 16},
        "classify": {"temperature": 1000, "threshold": 0.5},
    }
    async with standing({"tiny": settings}, tmp_path) as stand:
        answer = await post(stand, png(picture(16, 16)), b"image/png")
    (found,) = json.loads(answer.body)["predictions"]
    assert found["labels"] == []
    assert found["abstained"] is True
    assert found["best_guess"]["label"] in LABELS
    assert found["best_guess"]["score"] == pytest.approx(0.2, abs=0.01)


async def test_images_are_decoded_and_resized_off_the_event_loop(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one is held in its resizing, another model's callers are answered."""
    begun, let = threading.Event(), threading.Event()
    threads: list[str] = []

    def held(*args: Any) -> Any:
        threads.append(threading.current_thread().name)
        begun.set()
        assert let.wait(5.0)
        return resize_now(*args)

    monkeypatch.setattr("deployments.preprocess.images.resized", held)
    slow = asyncio.create_task(post(stand, png(picture(40, 40)), b"image/png"))
    while not begun.is_set():  # noqa: ASYNC110 - set by a thread
        await asyncio.sleep(0.001)
    began = time.perf_counter()
    body = b'{"instances": [[1, 2]]}'
    quick = await ask(stand.app, "POST", "/v1/models/device:predict", body=body)
    assert json.loads(quick.body) == {"predictions": [3.0]}
    assert time.perf_counter() - began < 1.0
    assert not slow.done()
    let.set()
    assert (await slow).status == 200
    assert all(name.startswith("preprocess-") for name in threads)


@pytest.mark.slow
async def test_a_20_megapixel_jpeg_delays_no_small_request(stand: Stand) -> None:
    """Decoding takes some hundred milliseconds; the loop never stands still for a good part of
    that, and another tenant's images are answered meanwhile."""
    slope = np.linspace(0, 255, 5000, dtype=np.uint8)
    wide = np.broadcast_to(slope[None, :, None], (4000, 5000, 3))
    large = jpeg(Image.fromarray(np.ascontiguousarray(wide)))
    small = png(picture(12, 12))
    await post(stand, small, b"image/png")
    began = time.perf_counter()
    slow = asyncio.create_task(post(stand, large, b"image/jpeg"))
    gaps, quick = [], 0
    while not slow.done():
        before = time.perf_counter()
        await asyncio.sleep(0.001)
        gaps.append(time.perf_counter() - before)
        if len(gaps) % 10 == 0:
            head = [(b"content-type", b"image/png"), (b"x-tenant", b"other")]
            quick += (await ask(stand.app, "POST", PATH, head, small)).status == 200
    took_s = time.perf_counter() - began
    assert (await slow).status == 200
    assert quick >= 3
    assert max(gaps) < took_s / 3
