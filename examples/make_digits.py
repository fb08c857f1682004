"""A small convolutional classifier of handwritten digits, trained here in seconds: `digits.yaml`'s.

`python -m examples.make_digits [FOLDER]` trains on scikit-learn's digits (1,797 images of 8 x 8, a
third held out), at two sizes, resized by the code that serves (`deployments/preprocess`). It fits
the temperature on training data that the weights never see. Seeded: the same machine makes the same
model. It writes what `headrace serve examples/digits.yaml` needs:

    model.onnx           image [rows, 1, height, width] to logits [rows, 10], any height and width
    classify.json        labels, temperature, threshold
    preprocessing.json   what was done to the images it was trained on
    held_out/            the held-out images as PNG, named 0000-7.png: number and digit
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from examples.calibration import expected_calibration_error, fitted_temperature, softmax

SEED = 7
SIZES = (16, 32)
EPOCHS = 12
BATCH = 64
RATE = 3e-3
HELD_OUT = 0.33
THRESHOLD = 0.6

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Digits:
    """uint8 [images, 8, 8] levels and int64 [images] digits."""

    images: Array
    digits: Array


def parts() -> tuple[Digits, Digits, Digits]:
    """What weights are fitted on, what the temperature is fitted on, what neither has seen."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    found = load_digits()
    # 17 levels of 0 to 16, in 8 bits.
    levels = np.rint(found.images * 255 / 16).astype(np.uint8)
    rest, held, rest_is, held_is = train_test_split(
        levels, found.target, test_size=HELD_OUT, random_state=SEED, stratify=found.target
    )
    train, fit, train_is, fit_is = train_test_split(
        rest, rest_is, test_size=0.2, random_state=SEED, stratify=rest_is
    )
    return Digits(train, train_is), Digits(fit, fit_is), Digits(held, held_is)


def how() -> Any:
    """What is done to an image: as `digits.yaml` says it."""
    from deployments.settings.image import ImageSettings

    return ImageSettings(size=SIZES, colour="grey", mean=(0.5,), std=(0.5,))


def rows_of(images: Array, size: int) -> Array:
    """float32 [images, 1, size, size], prepared as the service prepares them."""
    from deployments.contract.description import ImageInput
    from deployments.preprocess.images import prepared

    chosen = how().model_copy(update={"size": (size,)})
    fields = chosen.model_dump(exclude={"size"})
    image = ImageInput(**{**fields, "input": "image", "datatype": "FP32", "sizes": chosen.sizes})
    return np.stack([prepared(image, each[..., None], "image") for each in images])


def trained(train: Digits) -> Any:
    """Convolutions, the strongest of all places at the end, so that any resolution does."""
    import torch
    from torch import nn

    torch.manual_seed(SEED)
    # Beside a server that starts, threads that wait for each other take ten times as long.
    torch.set_num_threads(1)
    network = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    sets = [torch.from_numpy(rows_of(train.images, size)) for size in SIZES]
    wanted = torch.from_numpy(train.digits)
    optimiser = torch.optim.Adam(network.parameters())
    steps = EPOCHS * len(sets) * -(-len(wanted) // BATCH)
    pace = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps)
    order = torch.Generator().manual_seed(SEED)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(wanted), generator=order).split(BATCH):
            for images in sets:
                optimiser.zero_grad()
                nn.functional.cross_entropy(network(images[chosen]), wanted[chosen]).backward()
                optimiser.step()
                pace.step()
    return network.eval()


def logits_of(network: Any, rows: Array) -> Array:
    import torch

    with torch.inference_mode():
        found: Array = network(torch.from_numpy(rows)).numpy()
    return found


def write_model(network: Any, file: Path) -> None:
    """The network as an ONNX graph, layer by layer."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes, weights, last = [], [], "image"
    for number, layer in enumerate(network):
        given, last = [last], f"{number}"
        for name, values in layer.named_parameters():
            given.append(f"{number}.{name}")
            weights.append(numpy_helper.from_array(values.detach().numpy(), given[-1]))
        kind, attributes = _NODES[type(layer).__name__]
        nodes.append(helper.make_node(kind, given, [last], **attributes))
    nodes[-1].output[0] = "logits"
    shapes = {"image": ["rows", 1, "height", "width"], "logits": ["rows", 10]}
    image, logits = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    )
    graph = helper.make_graph(nodes, "digits", [image], [logits], weights)
    opset = helper.make_opsetid("", 20)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=10), str(file))


_NODES: dict[str, tuple[str, dict[str, Any]]] = {
    "Conv2d": ("Conv", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    "ReLU": ("Relu", {}),
    "MaxPool2d": ("MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "AdaptiveMaxPool2d": ("GlobalMaxPool", {}),
    "Flatten": ("Flatten", {}),
    "Linear": ("Gemm", {"transB": 1}),
}


def write_facts(folder: Path, temperature: float) -> None:
    """What the service reads beside the weights."""
    from deployments.settings_files.preprocessing_support import image_fingerprint
    from runtimes import fingerprint

    facts = {
        "labels": [str(digit) for digit in range(10)],
        "temperature": temperature,
        "threshold": THRESHOLD,
    }
    (folder / "classify.json").write_text(json.dumps(facts, indent=2) + "\n")
    fingerprint.write(folder, image_fingerprint(how()))


def write_held_out(folder: Path, held: Digits) -> None:
    from PIL import Image

    folder.mkdir(exist_ok=True)
    for number, (image, digit) in enumerate(zip(held.images, held.digits, strict=True)):
        Image.fromarray(image).save(folder / f"{number:04}-{digit}.png")


def main(folder: Path) -> None:
    """Trains, calibrates, writes, and says how right the model is on what it has not seen."""
    train, fit, held = parts()
    network = trained(train)
    fitting = np.concatenate([logits_of(network, rows_of(fit.images, size)) for size in SIZES])
    temperature = fitted_temperature(fitting, np.tile(fit.digits, len(SIZES)))
    folder.mkdir(parents=True, exist_ok=True)
    write_model(network, folder / "model.onnx")
    write_facts(folder, temperature)
    write_held_out(folder / "held_out", held)
    for size in SIZES:
        logits = logits_of(network, rows_of(held.images, size))
        right = float((logits.argmax(axis=1) == held.digits).mean())
        before, after = (
            expected_calibration_error(softmax(logits, t), held.digits) for t in (1.0, temperature)
        )
        print(
            f"{size} x {size}: {right:.4f} of {len(held.digits)} held-out digits right; expected "
            f"calibration error {before:.4f}, {after:.4f} at temperature {temperature:.3f}"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("digits"))
