"""Images and texts of one CLIP folder through the whole gateway: each gets the vector that
transformers gives it. The stand is empty after each."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from image_models import picture, png
from in_process import Answer, Stand, ask, standing
from PIL import Image

SIDE = 32
SMALL: dict[str, Any] = {
    **{"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4},
    "intermediate_size": 64,
}
WORDS = {**SMALL, "vocab_size": 50, "bos_token_id": 3, "eos_token_id": 2, "pad_token_id": 1}
SEEN = {**SMALL, "image_size": SIDE, "patch_size": 8}
IMAGES = [picture(57, 93), picture(40, 35, seed=1)]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Any:
    torch.manual_seed(0)
    config = transformers.CLIPConfig(text_config=WORDS, vision_config=SEEN, projection_dim=24)
    made = transformers.CLIPModel(config).eval()
    path = tmp_path_factory.mktemp("clip")
    made.save_pretrained(path)
    square = {"height": SIDE, "width": SIDE}
    transformers.CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size=square).save_pretrained(
        path
    )
    return made, path


@pytest.fixture
async def stand(tmp_path: Path, network: Any) -> AsyncIterator[Stand]:
    _, path = network
    shared = {
        "runtime": "torch",
        "source": str(path),
        "task": "embed",
        "slo": {"latency_ms": 20_000},
        "profile_s": 0,
    }
    models = {"images": {**shared, "image": {"max_pixels": 10_000}}, "texts": shared}
    async with standing(models, tmp_path) as stand:
        yield stand


def encoded(image: Image.Image) -> str:
    return base64.b64encode(png(image)).decode()


async def embed(stand: Stand, model: str, given: Any, **more: Any) -> Answer:
    body = json.dumps({"model": model, "input": given, **more}).encode()
    headers = [(b"content-type", b"application/json")]
    return await ask(stand.app, "POST", "/v1/embeddings", headers, body)


def vectors(answer: Answer) -> np.ndarray[Any, Any]:
    assert answer.status == 200, answer.body
    data = json.loads(answer.body)["data"]
    assert [each["index"] for each in data] == list(range(len(data)))
    return np.array([each["embedding"] for each in data])


def by_transformers(network: Any) -> np.ndarray[Any, Any]:
    made, path = network
    processor = transformers.CLIPImageProcessor.from_pretrained(path)
    with torch.no_grad():
        pixels = processor(images=IMAGES, return_tensors="pt")["pixel_values"]
        found: np.ndarray[Any, Any] = made.get_image_features(pixels).pooler_output.numpy()
    return found


async def test_images_get_the_vectors_that_transformers_gives_them(stand, network):
    files = [encoded(image) for image in IMAGES]
    together = await embed(stand, "images", [{"image": file} for file in files])
    assert np.abs(vectors(together) - by_transformers(network)).max() < 1e-5
    assert json.loads(together.body)["usage"]["prompt_tokens"] == 8  # patches of 16 x 16
    alone = await embed(stand, "images", {"image": f"data:image/png;base64,{files[0]}"})
    assert np.abs(vectors(alone) - by_transformers(network)[:1]).max() < 1e-5


async def test_an_image_is_answered_by_infer_as_well(stand, network):
    given = {
        "name": "pixel_values",
        "datatype": "BYTES",
        "shape": [1],
        "data": [encoded(IMAGES[0])],
    }
    answer = await ask(
        stand.app, "POST", "/v2/models/images/infer", [], json.dumps({"inputs": [given]}).encode()
    )
    assert answer.status == 200, answer.body
    (output,) = json.loads(answer.body)["outputs"]
    assert output["name"] == "image_embeds"
    assert np.abs(np.array(output["data"]) - by_transformers(network)[0]).max() < 1e-5


async def test_texts_of_the_same_folder_get_the_other_encoders_vectors(stand, network):
    made, _ = network
    ids = [[3, 9, 17, 2], [3, 2]]
    with torch.no_grad():
        theirs = [made.get_text_features(torch.tensor([each])).pooler_output[0] for each in ids]
    ours = vectors(await embed(stand, "texts", ids))
    assert np.abs(ours - np.stack(theirs)).max() < 1e-5


@pytest.mark.parametrize(
    ("model", "given", "said"),
    [
        ("images", "a text", "model images takes images: {'image': "),
        ("images", [[3, 2]], "model images takes images: {'image': "),
        ("texts", {"image": encoded(IMAGES[0])}, "model texts takes no images"),
        ("images", {"image": "https://example.org/a.png"}, "input[0].image: inputs by URL are off"),
        ("images", [{"image": "!"}], "input[0].image is not base64"),
        ("images", [{"picture": "aaaa"}], "picture"),
        ("images", {"image": "aaaa"}, "is not a JPEG or PNG image"),
        ("images", [{"image": encoded(picture(101, 100))}], "this model takes 10000 at most"),
        ("images", [{"image": encoded(IMAGES[0])}, "a text"], "input"),
        ("images", {"image": "/9j/"}, "begins as a JPEG file, but its header is cut off"),
    ],
)
async def test_what_is_no_image_for_the_model_is_refused_with_the_reason(stand, model, given, said):
    answer = await embed(stand, model, given)
    assert answer.status == 400, answer.body
    assert said in json.loads(answer.body)["error"]["message"]
