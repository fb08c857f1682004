"""Serves one model as a user would, asks it, and says what it saw: a step of `gpu_check`.

`python -m loadtests.benches.gpu_server WAY --device cuda|cpu`. The whole server runs: gateway, Ray,
a replica with the GPU. Embeddings: 256 rows of unlike lengths at once, each answered with the
numbers that it gets alone and with those of every other way that ran before on this machine. Chat:
texts whole and streamed, counted as the answer says. Then `headrace status`, which shows what the
device holds. The server must say that it runs on the device, and leave no process behind.

It measures no speed; docs/benchmarks.md says what does.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from loadtests.benches.server import (
    RunningServer,
    Settings,
    changed,
    command_line,
    example,
    headrace,
    homes,
    post,
)

WORK = Path("out/bench/gpu-check")
WORDS = (
    "river",
    "wheel",
    "stone",
    "water",
    "channel",
    "turbine",
    "valley",
    "light",
    "even",
    "flow",
)
ROWS, LONGEST_WORDS, CALLERS = 256, 300, 32
SAME_WAY, OTHER_WAY = 0.999, 0.99  # least cosine: alone and among others; another precision
LIMIT_S = 60.0

GPU = {"replicas.num_gpus": 1}
WAYS: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    # The example; what is changed on a GPU; on processors.
    "torch": (
        "minilm",
        {"runtime": "torch", "precision": "bf16", "options": {"device": "cuda"}},
        {"runtime": "torch", "precision": "fp32", "options": {"device": "cpu"}},
    ),
    "onnxruntime": (
        "minilm",
        {"runtime": "onnxruntime", "precision": "fp16", "options": {"device": "cuda"}},
        {"runtime": "onnxruntime", "precision": "fp32", "options": {"device": "cpu"}},
    ),
    "generate": (
        "llm",
        {
            "runtime": "torch",
            "precision": "bf16",
            "options": {"device": "cuda", "max_sequences": 32},
        },
        {"runtime": "torch", "options": {"device": "cpu", "max_sequences": 32}},
    ),
    "chat": ("llm", {"precision": "bf16", "options": {"max_num_seqs": 32}}, {}),
}


class CheckFailed(Exception):
    """The server answers, and wrongly."""


def settings(way: str, device: str) -> Settings:
    name, on_gpu, on_processors = WAYS[way]
    chosen = {**on_gpu, **GPU} if device == "cuda" else dict(on_processors)
    promised = "latency_ms" if name == "minilm" else "ttft_ms"
    chosen[f"slo.{promised}"] = LIMIT_S * 1e3 / 10  # a slow machine fails no check
    return changed(example(name), {f"models.{name}.{key}": value for key, value in chosen.items()})


def texts(count: int = ROWS, seed: int = 0) -> list[str]:
    """Of one to 300 words, most of them short."""
    drawn = random.Random(seed)
    lengths = [1 + int(LONGEST_WORDS * drawn.random() ** 4) for _ in range(count)]
    return [" ".join(drawn.choices(WORDS, k=length)) for length in lengths]


def check_embeddings(server: RunningServer, way: str, device: str) -> str:
    """Raises `CheckFailed`."""
    asked, url = texts(), f"{server.url}/v1/embeddings"

    def embedded(text: str) -> list[float]:
        answer = json.loads(post(url, {"model": "minilm", "input": text}, LIMIT_S))
        found: list[float] = answer["data"][0]["embedding"]
        return found

    with ThreadPoolExecutor(CALLERS) as callers:
        began = time.perf_counter()
        found = np.array(list(callers.map(embedded, asked)))
        taken_s = time.perf_counter() - began
    alone = np.array([embedded(text) for text in asked[:16]])
    least = least_cosine(found[: len(alone)], alone)
    if least < SAME_WAY:
        raise CheckFailed(f"a text among others and alone: cosine {least:.5f}, {SAME_WAY} at least")
    said = [f"{ROWS} texts in {taken_s:.2f} s, alone and among others {least:.6f}"]
    for file in sorted(WORK.glob(f"embeddings-{device}-*.npy")):
        other = least_cosine(found, np.load(file))
        said.append(f"with {file.stem}: {other:.6f}")
        if other < OTHER_WAY:
            raise CheckFailed(f"against {file.stem}: cosine {other:.5f}, {OTHER_WAY} at least")
    np.save(WORK / f"embeddings-{device}-{way}.npy", found)
    return "; ".join(said)


def least_cosine(left: Any, right: Any) -> float:
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return float(((left * right).sum(1) / norms).min())


def check_chat(server: RunningServer) -> str:
    """Raises `CheckFailed`."""
    body = {
        "model": "llm",
        "messages": [{"role": "user", "content": "The river turns the wheel."}],
        "max_tokens": 32,
        "temperature": 0,
        "ignore_eos": True,
    }
    url = f"{server.url}/v1/chat/completions"
    answer = json.loads(post(url, body, LIMIT_S))
    whole, tokens = answer["choices"][0]["message"]["content"], answer["usage"]["completion_tokens"]
    if tokens != body["max_tokens"]:
        raise CheckFailed(f"asked for {body['max_tokens']} tokens, got {tokens}")
    streamed = post(url, {**body, "stream": True}, LIMIT_S).decode()
    lines = [line[6:] for line in streamed.splitlines() if line.startswith("data: {")]
    pieces = [json.loads(line)["choices"] for line in lines]
    text = "".join(each[0]["delta"].get("content") or "" for each in pieces if each)
    if text != whole:
        raise CheckFailed(f"streamed and whole answers differ: {text!r}, {whole!r}")
    with ThreadPoolExecutor(CALLERS) as callers:
        many = list(callers.map(lambda _: json.loads(post(url, body, LIMIT_S)), range(CALLERS)))
    generated = sum(each["usage"]["completion_tokens"] for each in many)
    return f"{tokens} tokens, streamed as whole; {generated} tokens of {CALLERS} chats at once"


def check_device(server: RunningServer, model: str, device: str) -> str:
    """What the model's page says. Raises `CheckFailed`."""
    with urllib.request.urlopen(f"{server.url}/v2/models/{model}", timeout=LIMIT_S) as answer:
        said = json.loads(answer.read())["parameters"]
    if not said["device"].startswith(device):
        raise CheckFailed(f"the model runs on {said['device']}, not on {device}")
    return f"{said['precision']} on {said['device']}"


def status(server: RunningServer) -> str:
    """What `headrace status` prints, the device's memory included where it is known."""
    command = [*command_line(), "status", "--port", server.url.rsplit(":", 1)[1]]
    environ = {**os.environ, **homes()}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environ
    )
    if done.returncode:
        raise CheckFailed(f"headrace status ended with {done.returncode}: {done.stderr[-500:]}")
    return done.stdout


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.benches.gpu_server")
    parser.add_argument("way", choices=list(WAYS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    asked = parser.parse_args(argv)
    # The server is stopped by what leaves the `with` below, also when the step's time is up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    WORK.mkdir(parents=True, exist_ok=True)
    chosen = settings(asked.way, asked.device)
    model = next(iter(chosen["models"]))
    try:
        with headrace(chosen, name=f"gpu-{asked.way}") as server:
            where = check_device(server, model, asked.device)
            print(f"ready after {server.ready_s:.1f} s, {where}", flush=True)
            if model == "llm":
                print(check_chat(server), flush=True)
            else:
                print(check_embeddings(server, asked.way, asked.device), flush=True)
            print(status(server))
    except CheckFailed as failed:
        print(failed)
        return 1
    except urllib.error.HTTPError as error:
        print(f"{error.url} answers {error.code}: {error.read()[:500].decode(errors='replace')}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
