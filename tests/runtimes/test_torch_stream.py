"""transformers' own models, answered step by step: the same tokens as its `generate`, and folders
that are refused."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import torch
import transformers

from examples import make_llm
from runtimes import catalog
from runtimes.catalog import FileRequirements
from runtimes.errors import LoadError, OutOfMemory, RunError, Unhealthy
from runtimes.generation.engine import Network, Part
from runtimes.generation.runtime import LanguageModelRuntime
from runtimes.generation.scheduler import Shape
from runtimes.torch import causal
from runtimes.types import RuntimeSettings, StreamRequest, StreamRuntime
from runtimes.warmup import STARVED_CHECKS

on_one_loop = pytest.mark.asyncio(loop_scope="module")

SIZES = {
    "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
ORIGINAL = {"original_max_position_embeddings": 100}
BLOOM = {"vocab_size": 300, "hidden_size": 64, "n_layer": 2, "n_head": 4}
GPT2 = {"vocab_size": 300, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llm.make(tmp_path_factory.mktemp("made") / "llm")


def settings(folder: Path, **options: object) -> RuntimeSettings:
    return RuntimeSettings(
        "llm", "torch", folder, folder, task="generate", max_length=512, threads=1, options=options
    )


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def runtime(folder: Path) -> AsyncIterator[StreamRuntime]:
    runtime = catalog.create_stream(settings(folder))
    await runtime.load()
    yield runtime
    await runtime.close()


async def until_running(runtime: StreamRuntime) -> None:
    async with asyncio.timeout(5):
        while not (await runtime.health()).running:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def ids(runtime: StreamRuntime, prompt: list[int], **fields: object) -> list[int]:
    asked = {"prompt": prompt, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    body = json.dumps(asked | fields).encode()
    async with aclosing(runtime.run(StreamRequest("r", "completions", body))) as chunks:
        *_, last = [chunk async for chunk in chunks]
    found: list[int] = json.loads(last.data)["choices"][0]["token_ids"]
    return found


@on_one_loop
async def test_tokens_are_those_that_transformers_generates(
    runtime: StreamRuntime, folder: Path
) -> None:
    module = transformers.AutoModelForCausalLM.from_pretrained(folder)
    drawn = np.random.default_rng(0)
    prompts = [drawn.integers(10, 1000, size).tolist() for size in (1, 15, 16, 17, 300, 300)]
    own = [
        module.generate(
            torch.tensor([prompt]), max_new_tokens=40, do_sample=False, eos_token_id=None,
            repetition_penalty=1.3,
        )[0, len(prompt) :].tolist()
        for prompt in prompts
    ]  # fmt: skip
    asked = [ids(runtime, prompt, max_tokens=40, repetition_penalty=1.3) for prompt in prompts]
    assert await asyncio.gather(*asked) == own


@on_one_loop
async def test_a_long_prompt_lets_others_go_on(runtime: StreamRuntime) -> None:
    """Of two steps that its prompt takes, both give the other one a token."""
    asked = {"prompt": [5], "max_tokens": 400, "ignore_eos": True, "stream": True}
    request = StreamRequest("r", "completions", json.dumps(asked).encode())
    async with aclosing(runtime.run(request)) as chunks:
        first = await anext(chunks)
        steps = (await runtime.health()).steps
        assert len(await ids(runtime, [7] * 400, max_tokens=1)) == 1
        while (chunk := await anext(chunks)).output_tokens < 50:
            pass
        passed = (await runtime.health()).steps - steps
    assert chunk.output_tokens - first.output_tokens >= passed - 1


@on_one_loop
async def test_an_answer_in_the_cache_changes_nothing(runtime: StreamRuntime) -> None:
    first = await ids(runtime, [11] * 40, max_tokens=30)
    for _ in range(2):  # what was read, and what was copied from there
        assert await ids(runtime, [11] * 40, max_tokens=30) == first


@on_one_loop
async def test_the_urgent_one_is_answered_first(folder: Path) -> None:
    runtime = catalog.create_stream(settings(folder, max_sequences=1))
    await runtime.load()
    done: list[str] = []

    async def ask(name: str, priority: int) -> None:
        body = json.dumps({"prompt": [9], "max_tokens": 20, "ignore_eos": True}).encode()
        async for _ in runtime.run(StreamRequest(name, "completions", body, priority)):
            pass
        done.append(name)

    first = asyncio.create_task(ask("first", 0))
    await until_running(runtime)
    await asyncio.gather(first, ask("late", 2), ask("urgent", 1))
    await runtime.close()
    assert done == ["first", "urgent", "late"]


@on_one_loop
async def test_a_full_cache_changes_no_answer(runtime: StreamRuntime, folder: Path) -> None:
    small = catalog.create_stream(settings(folder, cache_tokens=512))
    await small.load()
    prompts = [[20 + number] * 90 for number in range(4)]
    asked = [ids(small, prompt, max_tokens=80) for prompt in prompts]
    assert await asyncio.gather(*asked) == [
        await ids(runtime, prompt, max_tokens=80) for prompt in prompts
    ]
    assert (await small.health()).preemptions > 0
    await small.close()


@on_one_loop
async def test_a_network_that_fails_fails_what_it_was_asked_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = catalog.create_stream(settings(folder))
    await runtime.load()
    step = causal.CausalModel.step

    def fails(self: causal.CausalModel, parts: list[Part]) -> object:
        if any(13 in part.ids for part in parts):
            raise RuntimeError("broken")
        return step(self, parts)

    monkeypatch.setattr(causal.CausalModel, "step", fails)
    with pytest.raises(RunError, match="broken"):
        await ids(runtime, [13])
    assert len(await ids(runtime, [5], max_tokens=3)) == 3
    await runtime.close()


@on_one_loop
async def test_a_network_that_reads_nothing_any_more_is_lost_with_all_requests(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of its last step, which count as suspects, those that waited, and those that come."""
    runtime = catalog.create_stream(settings(folder, max_sequences=1, step_tokens=64))
    await runtime.load()
    running = asyncio.create_task(ids(runtime, [5], max_tokens=500))
    await until_running(runtime)
    waits = asyncio.create_task(ids(runtime, [7]))

    def fails(self: causal.CausalModel, parts: list[Part]) -> object:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(causal.CausalModel, "step", fails)
    ends = await asyncio.gather(running, waits, return_exceptions=True)
    assert [type(end) for end in ends] == [Unhealthy, Unhealthy]
    for asks in (runtime.health(), ids(runtime, [5])):
        with pytest.raises(Unhealthy, match="the device is gone"):
            await asks
    await runtime.close()


@on_one_loop
@pytest.mark.parametrize("for_ever", [False, True])
async def test_a_network_without_memory_is_lost_after_a_while(
    folder: Path, monkeypatch: pytest.MonkeyPatch, for_ever: bool
) -> None:
    runtime = catalog.create_stream(settings(folder))
    await runtime.load()
    step = causal.CausalModel.step

    def fails(self: causal.CausalModel, parts: list[Part]) -> object:
        raise MemoryError("none left")

    monkeypatch.setattr(causal.CausalModel, "step", fails)
    for _ in range(STARVED_CHECKS - 1):
        with pytest.raises(RunError, match="none left"):
            await ids(runtime, [5])
    if for_ever:
        for asks in (ids(runtime, [5]), runtime.health()):
            with pytest.raises(Unhealthy, match="no memory"):
                await asks
    else:
        monkeypatch.setattr(causal.CausalModel, "step", step)
        assert len(await ids(runtime, [5], max_tokens=3)) == 3
    await runtime.close()


@on_one_loop
async def test_one_for_whom_nothing_can_be_drawn_fails_alone(
    runtime: StreamRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = causal.CausalModel.step

    def fails(self: causal.CausalModel, parts: list[Part]) -> torch.Tensor:
        wanted = [part for part in parts if part.wanted]
        return step(self, parts) * torch.tensor(
            [[torch.nan if 13 in part.ids else 1.0] for part in wanted]
        )

    monkeypatch.setattr(causal.CausalModel, "step", fails)
    good = asyncio.create_task(ids(runtime, [5], max_tokens=200))
    await until_running(runtime)
    with pytest.raises(RunError, match="drawn"):
        await ids(runtime, [5, 13], temperature=1)
    assert len(await good) == 200


@on_one_loop
async def test_an_engine_that_breaks_ends_all_and_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = catalog.create_stream(settings(folder))
    await runtime.load()
    monkeypatch.setattr("runtimes.generation.engine.AnswerText.add", None)
    with pytest.raises(Unhealthy):
        await ids(runtime, [5], stream=True)
    with pytest.raises(Unhealthy):
        await runtime.health()
    await runtime.close()


@on_one_loop
async def test_a_gpu_that_is_lost_ends_the_engine(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = catalog.create_stream(settings(folder))
    await runtime.load()

    def fails(*arguments: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(causal, "_attended", fails)
    with pytest.raises(Unhealthy, match="GPU is lost"):
        await ids(runtime, [5])
    with pytest.raises(Unhealthy):
        await runtime.health()
    await runtime.close()


@on_one_loop
async def test_a_gpu_without_memory_fails_what_runs_and_answers_again(folder: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA GPU (unverified here: docs/runtimes.md)")
    runtime = catalog.create_stream(settings(folder, device="cuda"))
    await runtime.load()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(0) + (8 << 20)) / total)
    held = []
    try:
        for size in (1 << 20, 1 << 9):
            with contextlib.suppress(torch.OutOfMemoryError):
                while True:
                    held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        with pytest.raises(OutOfMemory):
            await ids(runtime, [5] * 100, max_tokens=3)
        held.clear()
        assert len(await ids(runtime, [5] * 100, max_tokens=3)) == 3
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        await runtime.close()


@on_one_loop
async def test_a_device_that_is_not_there_is_an_error_at_the_start(folder: Path) -> None:
    for device, words in (("cuda:63", "cuda:63, but torch sees"), ("gpu", "cpu, cuda, cuda:N")):
        with pytest.raises(LoadError, match=words):
            await catalog.create_stream(settings(folder, device=device)).load()


@on_one_loop
async def test_closing_ends_what_runs(folder: Path) -> None:
    runtime = catalog.create_stream(settings(folder))
    with pytest.raises(Unhealthy):
        await runtime.health()
    await runtime.load()
    running = asyncio.create_task(ids(runtime, [5], max_tokens=400))
    await until_running(runtime)
    await runtime.close()
    await runtime.close()
    with pytest.raises(RunError):
        await running
    with pytest.raises(Unhealthy):
        await runtime.health()


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("Qwen3", SIZES), ("Mistral", {**SIZES, "sliding_window": 8}), ("GPT2", GPT2),
        ("Gemma3Text", {**SIZES, "sliding_window": 8}), ("Mixtral", SIZES),
    ],
)  # fmt: skip
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_families_give_their_own_numbers(
    tmp_path: Path, name: str, sizes: dict[str, int], device: str
) -> None:
    """Also behind the window of attention."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA GPU (unverified here: docs/runtimes.md)")
    module = saved(tmp_path, name, sizes).eval()
    model = causal.opened(tmp_path, torch.float32, device)
    tokens = np.random.default_rng(1).integers(0, 300, 60)
    with torch.inference_mode():
        own = module(torch.from_numpy(tokens)[None], use_cache=False).logits[0, -1]
    cache = model.cache()
    for start, end in ((0, 20), (20, 59), (59, 60)):
        found = model.step([Part(cache, tokens[start:end], start)])
    assert torch.allclose(found[0], own, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("Bloom", BLOOM), ("Gemma2", SIZES),
        ("Mamba", {"vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 2}),
        ("Falcon", {"vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 2,
                    "num_attention_heads": 4}),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_read_so_is_refused(
    tmp_path: Path, name: str, sizes: dict[str, int]
) -> None:
    saved(tmp_path, name, sizes)
    with pytest.raises(LoadError, match=f"its {name}.*use runtime vllm"):
        causal.opened(tmp_path, torch.float32)


def saved(path: Path, name: str, sizes: dict[str, int]) -> torch.nn.Module:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**sizes)
    module = transformers.AutoModelForCausalLM.from_config(config)
    module.save_pretrained(path)
    return module


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["BertModel"]}, "ForCausalLM"),
        ({"architectures": None}, "missing"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        ({"max_position_embeddings": 100}, "lengths.max to 100"),
        ({"auto_map": {"AutoModel": "a.B"}}, "auto_map"),
        ("tokenizer.json", "fast tokeniser"),
        ("model.safetensors", "weights"),
        ({"rope_parameters": {"rope_type": "longrope", **ORIGINAL}}, "lengths.max to 100"),
        ({"rope_scaling": {"type": "dynamic"}, "max_position_embeddings": 511}, "lengths.max"),
        ("code.py", "is code"),
    ],
)  # fmt: skip
def test_check_refuses_a_folder_before_a_replica_starts(
    folder: Path, tmp_path: Path, change: dict[str, object] | str, words: str
) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    check(tmp_path)
    if change == "code.py":
        (tmp_path / change).write_text("")
    elif isinstance(change, str):
        (tmp_path / change).unlink()
    else:
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(LoadError, match=words):
        check(tmp_path)


def check(path: Path, most: int = 512, **options: object) -> None:
    catalog.check_files(path, FileRequirements("torch", "generate", options, "fp32", most))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("eos_token_id", "end"), ("top_k", 50.0), ("top_p", 0), ("top_p", 1.5), ("min_p", 1.5),
        ("repetition_penalty", 0), ("temperature", float("inf")), ("temperature", -1),
    ],
)  # fmt: skip
def test_check_refuses_defaults_with_which_nothing_can_be_drawn(
    folder: Path, tmp_path: Path, name: str, value: object
) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text(json.dumps({name: value}))
    with pytest.raises(LoadError, match=name):
        check(tmp_path)


def test_positions_that_are_stretched_pass_where_no_prompt_is_so_long(
    folder: Path, tmp_path: Path
) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    stretched = {"rope_parameters": {"rope_type": "longrope", **ORIGINAL}}
    (tmp_path / "config.json").write_text(json.dumps(config | stretched))
    check(tmp_path, 100)
    with pytest.raises(LoadError, match=r"lengths\.max to 100"):
        check(tmp_path, 101)


def test_check_refuses_a_cache_that_cannot_hold_one_answer(folder: Path) -> None:
    check(folder, cache_tokens=512)
    with pytest.raises(LoadError, match="cache_tokens"):
        check(folder, cache_tokens=511)


@on_one_loop
async def test_tokens_are_drawn_with_as_many_threads_as_are_given(folder: Path) -> None:
    found = []

    class Threads(LanguageModelRuntime):
        def _network(self, folder: Path, shape: Shape, threads: int) -> Network:
            found.append(torch.get_num_threads())
            raise LoadError("enough")

    given = dataclasses.replace(settings(folder), threads=3)
    before = torch.get_num_threads()
    try:
        with pytest.raises(LoadError, match="enough"):
            await Threads(given).load()
    finally:
        torch.set_num_threads(before)
    assert found == [3]


@on_one_loop
async def test_a_cache_that_cannot_hold_one_answer_is_refused(folder: Path) -> None:
    with pytest.raises(LoadError, match="cache_tokens"):
        await catalog.create_stream(settings(folder, cache_tokens=511)).load()


@pytest.mark.parametrize(
    "options", [{"max_sequences": 0}, {"cache_tokens": 0}, {"step_tokens": 3, "max_sequences": 4}]
)
def test_options_out_of_bounds_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(LoadError, match=next(iter(options))):
        catalog.check("torch", options, "fp32", "generate")
