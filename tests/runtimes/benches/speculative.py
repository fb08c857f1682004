"""What does speculative decoding gain or lose, by how many sequences run at once?

`python -m tests.runtimes.benches.speculative`: a random Llama of 1,024 x 8 (`examples.make_llm`) on
vLLM in this process, as a replica runs it. Its layers behind the second add nothing, so that a
draft of its first two proposes what it would write itself (`best draft`); another random model of
two layers proposes nothing that is kept (`worst draft`); `ngram` proposes what it finds. `best, off
above 4` stops with more sequences, `measured` where proposals do not pay. All engines are loaded,
one runs at a time, and they take turns in each round. Told are output tokens a second, the median
of `--rounds`, and the share of proposals that was kept. Greedy answers of all must be equal.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from deployments.replica import backend_env
from examples import make_llm
from runtimes import catalog
from runtimes.types import RuntimeSettings, StreamRequest, StreamRuntime

LAYERS, DRAFT_LAYERS, HIDDEN, TOKENS_AHEAD = 8, 2, 1024, 4
PROMPT, OUTPUT = 64, 64
SEQUENCES = (1, 2, 4, 8, 16)


def models(folder: Path) -> dict[str, Path]:
    """The model, a draft that is always right, and one that never is."""
    target = make_llm.make(folder / "model", make_llm.Sizes(HIDDEN, LAYERS))
    weights = load_file(target / "model.safetensors")
    for name, value in weights.items():
        if _layer(name) >= DRAFT_LAYERS and name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] = np.zeros_like(value)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    best = make_llm.make(folder / "best", make_llm.Sizes(HIDDEN, DRAFT_LAYERS))
    kept = {name: value for name, value in weights.items() if _layer(name) < DRAFT_LAYERS}
    save_file(kept, best / "model.safetensors", metadata={"format": "pt"})
    worst = make_llm.make(folder / "worst", make_llm.Sizes(HIDDEN // 2, DRAFT_LAYERS))
    return {"model": target, "best": best, "worst": worst}


def _layer(name: str) -> int:
    parts = name.split(".")
    return int(parts[parts.index("layers") + 1]) if "layers" in parts else -1


def variants(folders: dict[str, Path]) -> dict[str, dict[str, Any]]:
    best = {"method": "draft_model", "tokens": TOKENS_AHEAD, "model": str(folders["best"])}
    worst = {**best, "model": str(folders["worst"])}
    return {
        "off": {},
        "ngram": {"speculative": {"method": "ngram", "tokens": TOKENS_AHEAD}},
        "best draft": {"speculative": best},
        "best, off above 4": {"speculative": {**best, "off_above": 4}},
        "worst draft": {"speculative": worst},
        "best, measured": {"speculative": {**best, "off_above": "measured"}},
        "worst, measured": {"speculative": {**worst, "off_above": "measured"}},
    }


async def once(runtime: StreamRuntime, sequences: int, seed: int) -> tuple[float, list[str], float]:
    """Output tokens a second, the texts, and the share of proposals that was kept."""
    rng = np.random.default_rng(seed)
    prompts = rng.integers(300, 1000, (sequences, PROMPT)).tolist()
    before = await runtime.health()
    began = time.perf_counter()
    texts = await asyncio.gather(*(_text(runtime, prompt) for prompt in prompts))
    took_s = time.perf_counter() - began
    after = await runtime.health()
    drafted, kept = after.drafted - before.drafted, after.accepted - before.accepted
    return sequences * OUTPUT / took_s, list(texts), kept / drafted if drafted else 0.0


async def _text(runtime: StreamRuntime, prompt: list[int]) -> str:
    asked = {"model": "llm", "prompt": prompt, "temperature": 0, "ignore_eos": True}
    body = json.dumps({**asked, "max_tokens": OUTPUT}).encode()
    request = StreamRequest(os.urandom(8).hex(), "completions", body)
    async with aclosing(runtime.run(request)) as chunks:
        data = b"".join([chunk.data async for chunk in chunks])
    return str(json.loads(data)["choices"][0]["text"])


async def measure(folder: Path, rounds: int, threads: int, counts: list[int]) -> None:
    folders = models(folder)
    options = {"max_num_seqs": 16, "block_size": 32, "kv_cache_gib": 0.5, "enforce_eager": True}
    engines: dict[str, StreamRuntime] = {}
    for name, more in variants(folders).items():
        settings = RuntimeSettings(
            "llm", "vllm", folders["model"], folder / "cache", task="generate", max_length=512,
            options={**options, **more}, threads=threads,
        )  # fmt: skip
        backend_env.set_engine_variables(settings, os.environ)
        engines[name] = catalog.create_stream(settings)
        await engines[name].load()
        await once(engines[name], 2, 0)
    print(f"{'sequences':>10} " + " ".join(f"{name:>24}" for name in engines))
    for sequences in counts:
        rates: dict[str, list[float]] = {name: [] for name in engines}
        shares: dict[str, float] = {}
        for at in range(rounds):
            said = {}
            for name, runtime in engines.items():
                rate, said[name], shares[name] = await once(runtime, sequences, at + 1)
                rates[name].append(rate)
            wrong = [name for name in engines if said[name] != said["off"]]
            if wrong:
                print(f"answers differ: {', '.join(wrong)}", file=sys.stderr)
        off = statistics.median(rates["off"])
        row = (
            f"{statistics.median(r):8.1f} x{statistics.median(r) / off:4.2f} {shares[n]:6.2f}"
            for n, r in rates.items()
        )
        print(f"{sequences:>10} " + " ".join(f"{each:>24}" for each in row), flush=True)
    for runtime in engines.values():
        await runtime.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sequences", type=int, nargs="+", default=SEQUENCES)
    parser.add_argument("--threads", type=int, default=1, help="of each engine")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        asyncio.run(measure(Path(made), chosen.rounds, chosen.threads, chosen.sequences))
