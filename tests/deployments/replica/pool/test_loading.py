"""A pool replica's models for real: synthetic devices that answer over channels of their own, one
batch at a time over all of them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from channel_net import Listener
from fake_engines import until
from ragged_rows import ragged

from deployments.contract.channel.frames import (
    BatchCall,
    Kind,
    decode_reply,
    encode_call,
)
from deployments.contract.channel.stream_messages import (
    GenerateCall,
    Piece,
    StreamEnd,
    decode_steps,
    encode_generate,
)
from deployments.contract.registry import ReplicaProgress
from deployments.contract.scaling.messages import PoolModel
from deployments.gateway.queues.connections import TcpReplicaChannel
from deployments.gateway.queues.pool_replicas import as_replica
from deployments.replica.device import DeviceTurn
from deployments.replica.pool import loading
from deployments.replica.pool.loading import ModelLoader, PoolLoading
from deployments.replica.pool.serving import LoadedModel, PoolContext, ServedResident
from examples import make_llm
from runtimes import catalog, nvml
from runtimes.errors import LoadError, Unhealthy
from runtimes.synthetic.runtime import SyntheticRuntime
from runtimes.synthetic.stream import SyntheticStreamRuntime
from runtimes.types import DeviceMemory, Limits, RuntimeSettings, StreamLimits, StreamRuntime
from tests.fake_nvml import FakeDevice, FakeNvml, NVMLError_NotSupported


def a_model(name: str, **settings: Any) -> PoolModel:
    written = {"runtime": "synthetic", "lengths": {"max": 8}, **settings}
    return PoolModel(name, f"key-{name}", {"name": name, "settings": written, "channel": {}})


class Bench:
    """`told`: what the registry heard. `hung`: whether the process would have ended."""

    def __init__(self, cache_dir: Path) -> None:
        self.told: list[ReplicaProgress] = []
        self.hung = threading.Event()
        self.turn = DeviceTurn()
        self.loader = ModelLoader(cache_dir, 1.0)
        self.place = PoolContext("p", "127.0.0.1", 0.02, self.turn, self.hung.set)
        self.loading = PoolLoading(self.loader, self.place, self.told.append)
        self.residents: dict[str, ServedResident] = {}
        self.channels: dict[str, TcpReplicaChannel] = {}
        self.listeners: dict[str, Listener] = {}

    async def start(self, model: PoolModel) -> ServedResident:
        loaded = await self.loading.load(model)
        resident = await self.loading.serve(model, loaded)
        self.residents[model.name] = resident
        return resident

    async def connect(self, name: str) -> TcpReplicaChannel:
        resident = self.residents[name]

        async def key(_: str) -> bytes:
            return resident.key()

        channel = self.channels[name] = TcpReplicaChannel("g", key)
        self.listeners[name] = Listener(channel)
        channel.follow([as_replica(resident.member)])
        await until(lambda: channel.reached == [resident.member.member])
        return channel

    def send(self, name: str, lease_id: int, *ids: int) -> None:
        column = ragged("INT64", [np.array(ids)])
        lengths = np.array([len(ids)], dtype=np.int32).tobytes()
        said = encode_call(BatchCall(1.0, lengths, {"ids": column}, None))
        member = self.residents[name].member.member
        assert self.channels[name].send(member, Kind.BATCH, lease_id, said)

    def replies(self, name: str) -> dict[int, Any]:
        frames = self.listeners[name].frames
        return {lease: decode_reply(memoryview(body)) for _, kind, lease, body in frames
                if kind is Kind.REPLY}  # fmt: skip

    async def end(self) -> None:
        for channel in self.channels.values():
            channel.close()
        for resident in self.residents.values():
            await resident.leave()
            await resident._loaded.close()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    await bench.end()


async def test_two_models_answer_over_channels_of_their_own(bench: Bench) -> None:
    for name in "ab":
        await bench.start(a_model(name))
        await bench.connect(name)
        bench.send(name, 1, 3, 4)
    await until(lambda: all(bench.replies(name) for name in "ab"))
    sums = [bench.replies(name)[1].outputs["sum"] for name in "ab"]
    assert [column.data.tolist() for column in sums] == [[7.0], [7.0]]
    members = [resident.member for resident in bench.residents.values()]
    assert [m.member for m in members] == ["p.1", "p.2"]
    assert {m.replica for m in members} == {"p"}
    assert members[0].channel != members[1].channel


CLASS = """
from beside import FACTOR


class Own:
    inputs, outputs = {"ids": "INT64[?]"}, {"sum": "FP32"}

    def load(self, settings): ...

    def predict(self, batch):
        if not all(row.any() for row in batch["ids"]):
            raise ValueError("no zeros")
        return [float(row.sum() * FACTOR) for row in batch["ids"]]
"""


async def test_python_classes_of_like_named_modules_share_a_process(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And need not take the zeros that warm-up tries."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, factor in (("a", 10), ("b", 100)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "own.py").write_text(CLASS)
        (tmp_path / name / "beside.py").write_text(f"FACTOR = {factor}\n")
        source = f"{tmp_path / name}:own:Own"
        await bench.start(a_model(name, runtime="python", source=source))
        await bench.connect(name)
    for name in "ab":
        bench.send(name, 1, 3, 4)
    await until(lambda: all(bench.replies(name) for name in "ab"))
    sums = [bench.replies(name)[1].outputs["sum"] for name in "ab"]
    assert [column.data.tolist() for column in sums] == [
        [70.0],
        [700.0],
    ]


async def test_one_batch_at_a_time_runs_on_the_device_whoevers_it_is(bench: Bench) -> None:
    for name in "ab":
        await bench.start(a_model(name, options={"base_ms": 1}))
        await bench.connect(name)
    with bench.turn:
        bench.send("a", 1, 1)
        await until(lambda: bench.residents["a"].busy)
        bench.send("b", 1, 1)
        await until(lambda: bench.residents["b"].busy)
        assert bench.replies("a") == bench.replies("b") == {}
    await until(lambda: all(bench.replies(name) for name in "ab"))
    assert all(bench.replies(name)[1].service_s < 0.5 for name in "ab")


async def test_a_model_that_leaves_finishes_its_batch_and_its_runtime_stays_open(
    bench: Bench,
) -> None:
    resident = await bench.start(a_model("a", options={"base_ms": 1}))
    await bench.connect("a")
    bench.turn.__enter__()
    bench.send("a", 1, 5)
    await until(lambda: resident.busy)
    leaving = asyncio.ensure_future(resident.leave())
    await until(lambda: not bench.channels["a"].reached)
    assert not leaving.done()
    bench.turn.__exit__()
    await leaving
    await until(lambda: 1 in bench.replies("a"))
    assert not bench.replies("a")[1].busy
    resident._loaded.runtime.health()
    again = bench.residents["a"] = await bench.loading.serve(a_model("a"), resident._loaded)
    assert again.member.member == "p.2"


async def test_the_registry_hears_each_phase_of_a_load_with_its_seconds(bench: Bench) -> None:
    await bench.start(a_model("a", options={"load_s": 0.01}))
    last = bench.told[-1]
    assert (last.model, last.replica, last.phase) == ("a", "p.a", "ready")
    spent = dict(last.spent)
    assert spent["staging"] >= 0.01
    assert set(spent) == {"staging", "warming"}


async def test_stalls_are_expected_while_a_model_loads_and_no_longer(bench: Bench) -> None:
    said: list[str] = []

    @contextmanager
    def may_stall() -> Iterator[None]:
        said.append("from here")
        yield
        said.append("to here")

    class Watched(ModelLoader):
        def load(self, *args: Any) -> LoadedModel:
            said.append("loads")
            return super().load(*args)

    loader = Watched(bench.loader.cache_dir, bench.loader.reserved_cpus)
    place = PoolContext("p", "127.0.0.1", 0.02, bench.turn, bench.hung.set)
    loaded = await PoolLoading(loader, place, bench.told.append, may_stall).load(a_model("m"))
    assert said == ["from here", "loads", "to here"]
    loaded.runtime.close()


def an_engine(name: str, **options: Any) -> PoolModel:
    return a_model(name, task="generate", lengths={"max": 100}, options={"base_ms": 5, **options})


class Stream:
    """What a gateway asks an engine in the pool, and hears."""

    def __init__(self, bench: Bench, name: str, lease_id: int, tokens: int, word: str) -> None:
        self._bench, self._name, self._lease_id = bench, name, lease_id
        said = {"model": name, "prompt": word, "max_tokens": tokens}
        call = GenerateCall("completions", json.dumps(said).encode(), 30.0)
        member = bench.residents[name].member.member
        assert bench.channels[name].send(member, Kind.BEGIN, lease_id, encode_generate(call))

    @property
    def pieces(self) -> list[Piece]:
        frames = self._bench.listeners[self._name].frames
        found = [decode_steps(memoryview(body)) for _, kind, _, body in frames
                 if kind is Kind.STEPS]  # fmt: skip
        return [p for steps in found for p in steps.pieces if p.lease_id == self._lease_id]

    @property
    def tokens(self) -> int:
        return max((piece.output_tokens for piece in self.pieces), default=0)

    @property
    def end(self) -> StreamEnd | None:
        return next((piece.end for piece in self.pieces if piece.end), None)


async def test_an_engine_streams_beside_batches_and_leaves_when_its_stream_has_ended(
    bench: Bench,
) -> None:
    await bench.start(a_model("a"))
    await bench.connect("a")
    resident = await bench.start(an_engine("llm"))
    await bench.connect("llm")
    stream = Stream(bench, "llm", 1, 40, "a")
    await until(lambda: stream.tokens > 3)
    bench.send("a", 1, 3, 4)
    await until(lambda: bool(bench.replies("a")))
    assert stream.tokens < 40
    assert resident.busy
    leaving = asyncio.ensure_future(resident.leave())
    await until(lambda: not bench.channels["llm"].reached)
    assert not leaving.done()
    await leaving
    await until(lambda: stream.end is not None)
    assert (stream.end, stream.tokens) == (StreamEnd.DONE, 40)


async def test_an_engine_that_slept_serves_again_in_the_time_that_it_takes_to_wake(
    bench: Bench,
) -> None:
    model = an_engine("llm", load_s=0.2, wake_s=0.02, weights_mib=64, cache_mib=7)
    resident = await bench.start(model)
    loaded = resident._loaded
    mib = 1 << 20
    assert loaded.load_s >= 0.2
    assert (32 + 7) * mib <= loaded.size_bytes  # earlier tests may give memory back meanwhile
    await resident.leave()
    asleep = await bench.loading.sleep(model, loaded)
    assert asleep.held_bytes == loaded.size_bytes - 7 * mib
    awake = await bench.loading.wake(model, asleep)
    assert awake.held_bytes == loaded.size_bytes
    assert 0.02 <= awake.wake_s < loaded.load_s
    bench.residents["llm"] = await bench.loading.serve(model, awake)
    await bench.connect("llm")
    stream = Stream(bench, "llm", 1, 3, "a")
    await until(lambda: stream.end is StreamEnd.DONE)


async def test_an_engine_that_dies_is_a_lost_replica_and_the_other_models_stay(
    bench: Bench,
) -> None:
    """No end of its streams is told: gateways run them elsewhere."""
    await bench.start(a_model("a"))
    await bench.connect("a")
    resident = await bench.start(an_engine("llm", engine_die_words=["deadly"]))
    await bench.connect("llm")
    stream = Stream(bench, "llm", 1, 1000, "a")
    await until(lambda: stream.tokens > 0)
    deadly = Stream(bench, "llm", 2, 5, "deadly")
    await until(lambda: not bench.channels["llm"].reached)
    assert (stream.end, deadly.end) == (None, None)
    with pytest.raises(Unhealthy):
        await resident.health()
    bench.send("a", 1, 3, 4)
    await until(lambda: bool(bench.replies("a")))
    assert not bench.hung.is_set()


async def test_an_engine_that_stands_still_ends_the_process(bench: Bench) -> None:
    model = an_engine("llm", hang_words=["still"])
    settings = {**model.args["settings"], "replicas": {"hang_limit_s": 0.2}}
    await bench.start(replace(model, args={**model.args, "settings": settings}))
    await bench.connect("llm")
    Stream(bench, "llm", 1, 5, "still")
    await until(bench.hung.is_set)


async def test_an_engine_that_does_not_load_in_time_ends_the_process(bench: Bench) -> None:
    with pytest.raises(TimeoutError):
        await bench.start(in_time(an_engine("llm", load_s=5.0), 0.05))
    assert bench.hung.is_set()


@pytest.mark.parametrize(("asleep_bytes", "sleeps"), [(0, False), (1, True)])
async def test_only_engines_that_may_leave_a_gpu_are_started_for_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, asleep_bytes: int, sleeps: bool
) -> None:
    made: list[RuntimeSettings] = []

    def create(settings: RuntimeSettings) -> StreamRuntime:
        made.append(settings)
        raise LoadError("enough")

    monkeypatch.setattr(loading.catalog, "create_stream", create)
    gpu = FakeDevice("GPU-0", total=8 << 30, used=0)
    gpus = nvml.opened(None, library=FakeNvml(gpu))
    for given in (None, gpus):
        loader = replace(bench.loader, gpus=given, asleep_bytes=asleep_bytes)
        with pytest.raises(LoadError, match="enough"):
            await PoolLoading(loader, bench.place, bench.told.append).load(an_engine("llm"))
    assert [each.sleeps for each in made] == [False, sleeps]


async def test_an_engine_on_a_gpu_counts_there_and_asleep_with_what_it_left_there(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = FakeDevice("GPU-0", total=8 << 30, used=0)

    def takes(mib: int) -> None:
        gpu.processes, gpu.used = {os.getpid(): mib << 20}, mib << 20

    class OnGpu(SyntheticStreamRuntime):
        async def load(self) -> None:
            await super().load()
            takes(300)

        def limits(self) -> StreamLimits:
            return replace(super().limits(), device="cuda")

        async def sleep(self) -> None:
            await super().sleep()
            takes(40)

    monkeypatch.setattr("runtimes.synthetic.stream.SyntheticStreamRuntime", OnGpu)
    gpus = nvml.opened(None, library=FakeNvml(gpu))
    bench.loading = PoolLoading(replace(bench.loader, gpus=gpus), bench.place, bench.told.append)
    model = an_engine("llm")
    loaded = replace(await bench.loading.load(model), weights_bytes=200 << 20)
    assert (loaded.on_gpu, loaded.held_bytes, loaded.host_bytes) == (True, 300 << 20, 0)
    asleep = await bench.loading.sleep(model, loaded)
    assert (asleep.held_bytes, asleep.host_bytes) == (40 << 20, 200 << 20)
    await loaded.close()


async def test_what_one_model_gives_back_is_not_measured_as_anothers(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is told to sleep while the other one is loaded."""
    gpu = FakeDevice("GPU-0", total=8 << 30, used=0)
    taken = {"first": 0, "second": 0}
    half_way, goes_on = asyncio.Event(), asyncio.Event()

    def takes(name: str, mib: int) -> None:
        taken[name] = mib
        gpu.used = sum(taken.values()) << 20
        gpu.processes = {os.getpid(): gpu.used}

    class OnGpu(SyntheticStreamRuntime):
        def __init__(self, settings: RuntimeSettings) -> None:
            super().__init__(settings)
            self.name = settings.name

        async def load(self) -> None:
            await super().load()
            if self.name == "second":
                half_way.set()
                await goes_on.wait()
            takes(self.name, 300)

        def limits(self) -> StreamLimits:
            return replace(super().limits(), device="cuda")

        async def sleep(self) -> None:
            takes(self.name, 40)

    monkeypatch.setattr("runtimes.synthetic.stream.SyntheticStreamRuntime", OnGpu)
    gpus = nvml.opened(None, library=FakeNvml(gpu))
    bench.loading = PoolLoading(replace(bench.loader, gpus=gpus), bench.place, bench.told.append)
    first = await bench.loading.load(an_engine("first"))
    comes = asyncio.create_task(bench.loading.load(an_engine("second")))
    await half_way.wait()
    goes = asyncio.create_task(bench.loading.sleep(an_engine("first"), first))
    await asyncio.sleep(0.01)
    goes_on.set()
    second, asleep = await comes, await goes
    assert (second.held_bytes, asleep.held_bytes) == (300 << 20, 40 << 20)
    await first.close()
    await second.close()


async def test_a_runtime_that_fails_its_first_batch_is_closed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[bool] = []
    close = "runtimes.synthetic.runtime.SyntheticRuntime.close"
    monkeypatch.setattr(close, lambda self: closed.append(True))
    with pytest.raises(LoadError, match="does not run"):
        await bench.start(a_model("a", options={"fail_ids": [0]}))
    assert closed == [True]


def in_time(model: PoolModel, seconds: float) -> PoolModel:
    return replace(model, args={**model.args, "start_timeout_s": seconds})


@pytest.mark.parametrize(
    ("step", "asked"), [("settings_of", "load"), ("load", "load"), ("settings_of", "min_bytes")]
)
async def test_a_load_that_does_not_end_ends_the_process(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, step: str, asked: str
) -> None:
    go_on = threading.Event()
    held: Callable[..., Any] = lambda *_: go_on.wait(5.0)  # noqa: E731
    monkeypatch.setattr(ModelLoader, step, held)
    ask = bench.start if asked == "load" else bench.loading.min_bytes
    with pytest.raises(TimeoutError):
        await ask(in_time(a_model("a"), 0.05))
    go_on.set()
    assert bench.hung.is_set()


async def test_a_time_out_of_the_loads_own_leaves_the_process_and_the_other_models(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> None:
        raise TimeoutError("the store of models does not answer")

    monkeypatch.setattr(ModelLoader, "settings_of", refused)
    with pytest.raises(TimeoutError, match="does not answer"):
        await bench.start(a_model("a"))
    assert not bench.hung.is_set()


async def test_a_model_with_which_the_process_is_over_its_limit_is_not_held(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[bool] = []
    close = "runtimes.synthetic.runtime.SyntheticRuntime.close"
    monkeypatch.setattr(close, lambda self: closed.append(True))
    monkeypatch.setattr(loading, "_resident_bytes", lambda: 101 << 20)
    limited = PoolLoading(replace(bench.loader, limit_mib=100), bench.place, bench.told.append)
    with pytest.raises(LoadError) as refused:
        await limited.load(a_model("a"))
    assert str(refused.value) == (
        "with it the process has 101 MiB resident, 100 allowed (scaling.pool.memory_limit_mib)"
    )
    assert closed == [True]
    limited = PoolLoading(replace(bench.loader, limit_mib=101), bench.place, bench.told.append)
    assert (await limited.load(a_model("a"))).name == "a"


async def test_the_batch_of_a_resident_that_runs_is_known(bench: Bench) -> None:
    resident = await bench.start(a_model("a", options={"base_ms": 50}))
    await bench.connect("a")
    assert resident.running is None
    bench.send("a", 1, 5)
    await until(lambda: resident.running is not None)
    await until(lambda: 1 in bench.replies("a"))


@pytest.mark.parametrize(
    ("device", "hidden", "size_mib"),
    [
        ("cuda:0", False, 300),
        ("cuda:0", True, 400),  # what others took meanwhile cannot be told from it
        ("cpu", False, None),  # the processors' memory counts, as without a GPU
    ],
)
async def test_a_model_on_a_gpu_counts_with_what_it_took_there(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, device: str, hidden: bool, size_mib: int | None
) -> None:
    gpu = FakeDevice("GPU-0", total=8 << 30, used=100 << 20)
    if hidden:
        gpu.hides = NVMLError_NotSupported

    class OnGpu(SyntheticRuntime):
        def load(self) -> None:
            super().load()
            gpu.processes = {os.getpid(): 300 << 20, 1: 100 << 20}
            gpu.used = 500 << 20

        def limits(self) -> Limits:
            return replace(super().limits(), device=device)

    monkeypatch.setattr("runtimes.synthetic.runtime.SyntheticRuntime", OnGpu)
    bench.loader = replace(bench.loader, gpus=nvml.opened(None, library=FakeNvml(gpu)))
    bench.loading = PoolLoading(bench.loader, bench.place, bench.told.append)
    resident = await bench.start(a_model("a"))
    size = resident._loaded.size_bytes
    assert size == size_mib << 20 if size_mib else size < 300 << 20


async def test_answers_say_what_is_taken_of_the_gpu(bench: Bench) -> None:
    resident = await bench.start(a_model("a"))
    told = DeviceMemory(1, 2, 3)
    resident.tell_memory(told)
    await bench.connect("a")
    bench.send("a", 1, 3)
    await until(lambda: bench.replies("a"))
    assert bench.replies("a")[1].device_memory == told


async def test_a_real_language_model_is_held_with_its_cache_and_without_it_asleep(
    bench: Bench, tmp_path: Path
) -> None:
    if (missing := catalog.available("torch", catalog.GENERATE)) is not None:
        pytest.skip(missing)
    source = str(make_llm.make(tmp_path / "llm"))
    model = a_model("llm", task="generate", runtime="torch", source=source, lengths={"max": 100})
    files_bytes = sum(f.stat().st_size for f in (tmp_path / "llm").glob("*.safetensors"))
    assert await bench.loading.min_bytes(model) >= files_bytes
    loaded = await bench.loading.load(model)
    cache_bytes = loaded.runtime.limits().cache_bytes  # type: ignore[union-attr]
    assert loaded.size_bytes >= files_bytes + cache_bytes
    asleep = await bench.loading.sleep(model, loaded)
    assert asleep.held_bytes == loaded.size_bytes - cache_bytes
    awake = await bench.loading.wake(model, asleep)
    bench.residents["llm"] = await bench.loading.serve(model, awake)
    await bench.connect("llm")
    stream = Stream(bench, "llm", 1, 5, "Once")
    await until(lambda: stream.end is StreamEnd.DONE)
    assert stream.tokens == 5
