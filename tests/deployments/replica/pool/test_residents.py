"""What a pool replica holds: as it is told, within its memory, whatever fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from device_jobs import job_of
from fake_engines import until

from deployments.contract.registry import PoolMember
from deployments.contract.scaling.messages import PoolModel
from deployments.replica.device import Job
from deployments.replica.pool import residents
from deployments.replica.pool.residents import Residents
from deployments.replica.pool.serving import LoadedModel
from runtimes.errors import LoadError, Unhealthy
from runtimes.synthetic.stream import SyntheticStreamRuntime
from runtimes.types import DeviceMemory

MIB = 1 << 20


class Runtime:
    closed = False

    def close(self) -> None:
        assert not self.closed
        self.closed = True


class Engine(SyntheticStreamRuntime):
    """One that nobody asks for anything but to close."""

    closed = False

    def __init__(self) -> None: ...

    async def close(self) -> None:
        assert not self.closed
        self.closed = True


class Served:
    """A resident that a test keeps busy: `leave` waits for `work`."""

    age_s = 1.0
    running: Job | None = None

    def __init__(self, member: PoolMember) -> None:
        self.member = member
        self.idle = asyncio.Event()
        self.idle.set()
        self.well = True
        self.memory: DeviceMemory | None = None
        self.left = False

    @property
    def busy(self) -> bool:
        return not self.idle.is_set()

    def key(self) -> bytes:
        return self.member.member.encode()

    async def health(self) -> None:
        if not self.well:
            raise Unhealthy("its device is gone")

    def tell_memory(self, memory: DeviceMemory | None) -> None:
        self.memory = memory

    async def leave(self) -> None:
        await self.idle.wait()
        self.left = True


class Loads:
    """`Loading`, played by a test. `sizes`: of a model's bytes, as it turns out; `faults`: what
    loading it raises; `gate` holds loads up."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.on_cpus: set[str] = set()
        self.engines: set[str] = set()
        self.slept: list[str] = []
        self.woken: list[str] = []
        self.cannot: dict[str, Exception] = {}  # what sleeping or waking raises
        self.faults: dict[str, Exception] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.loaded: list[str] = []
        self.runtimes: dict[str, Runtime] = {}
        self.served: dict[str, Served] = {}

    async def min_bytes(self, model: PoolModel) -> int:
        return min(MIB, self.sizes.get(model.name, MIB))

    async def load(self, model: PoolModel) -> LoadedModel:
        self.loaded.append(model.name)
        await self.gate.wait()
        if model.name in self.faults:
            raise self.faults[model.name]
        made: Any = Engine() if model.name in self.engines else Runtime()
        self.runtimes[model.name] = made
        settings: Any = SimpleNamespace()
        size, on_gpu = self.sizes.get(model.name, MIB), model.name not in self.on_cpus
        weights = size // 2
        return LoadedModel(model.name, model.key, settings, made, "1", size, 0.5, on_gpu, weights)

    async def sleep(self, model: PoolModel, loaded: LoadedModel) -> LoadedModel:
        assert self.served[model.name].left, "it was put to sleep under running work"
        if "sleep" in self.cannot:
            raise self.cannot["sleep"]
        self.slept.append(model.name)
        return replace(loaded, asleep_bytes=loaded.size_bytes // 2, wake_s=loaded.wake_s or 0.1)

    async def wake(self, model: PoolModel, loaded: LoadedModel) -> LoadedModel:
        if "wake" in self.cannot:
            raise self.cannot["wake"]
        self.woken.append(model.name)
        return replace(loaded, asleep_bytes=None, wake_s=0.25)

    async def serve(self, model: PoolModel, loaded: LoadedModel) -> Served:
        member = PoolMember(
            model.name, f"p.{len(self.loaded)}.{model.key}", "p", model.key, "1", "h:1", 2, 0.02
        )
        served = self.served[model.name] = Served(member)
        return served


def model(name: str, key: str = "k") -> PoolModel:
    return PoolModel(name, key, {})


class Pool:
    def __init__(self, asleep_bytes: int = 0) -> None:
        self.loads = Loads()
        self.changes = 0
        self.residents = Residents(
            "p", self.loads, 2 * MIB, self._changed, asleep_bytes=asleep_bytes
        )
        self.task = asyncio.create_task(self.residents.run())

    def _changed(self) -> None:
        self.changes += 1

    @property
    def serves(self) -> list[str]:
        return [member.model for member in self.residents.members]

    async def hold(self, *names: str, serves: str | None = None) -> None:
        """Returns when those serve (`serves`: instead)."""
        self.residents.hold([model(name) for name in names])
        expected = sorted(names if serves is None else serves.split())
        await until(lambda: sorted(self.serves) == expected)

    @property
    def reasons(self) -> dict[str, str]:
        return dict(self.residents.report().failed)

    def states(self) -> dict[str, tuple[bool, bool]]:
        """By model: whether it serves, whether it is busy."""
        return {r.model: (r.serves, r.busy) for r in self.residents.report().residents}


@pytest.fixture
async def pool(request: pytest.FixtureRequest) -> AsyncIterator[Pool]:
    """Of engines on the GPU, half a MiB may sleep beside it; a test may say otherwise."""
    pool = Pool(getattr(request, "param", MIB // 2))
    yield pool
    for served in pool.loads.served.values():
        served.idle.set()
    assert not pool.task.done()
    pool.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pool.task
    await pool.residents.close()
    assert all(runtime.closed for runtime in pool.loads.runtimes.values())
    assert pool.residents.free_bytes == 2 * MIB


async def test_it_becomes_what_it_is_told_one_load_after_another(pool: Pool) -> None:
    pool.loads.gate.clear()
    pool.residents.hold([model("a"), model("b")])
    await until(lambda: pool.loads.loaded == ["a"])
    assert pool.states() == {"a": (False, False)}
    pool.loads.gate.set()
    await until(lambda: pool.serves == ["a", "b"])
    assert pool.states() == {"a": (True, False), "b": (True, False)}
    assert pool.residents.free_bytes == 0
    assert pool.changes == 2


async def test_a_model_with_work_leaves_when_it_is_done(pool: Pool) -> None:
    await pool.hold("a", "b")
    pool.loads.served["a"].idle.clear()
    await pool.hold("b")
    assert pool.states() == {"b": (True, False), "a": (False, True)}
    assert pool.residents.free_bytes == 0
    pool.loads.served["a"].idle.set()
    await until(lambda: "a" not in pool.states())
    assert pool.residents.free_bytes == MIB


async def test_what_left_stays_loaded_and_comes_back_without_a_load(pool: Pool) -> None:
    await pool.hold("a")
    first = pool.loads.served["a"]
    await pool.hold()
    await until(lambda: not pool.states())
    assert not pool.loads.runtimes["a"].closed
    await pool.hold("a")
    assert pool.loads.loaded == ["a"]
    assert first.left
    assert pool.loads.served["a"] is not first


async def test_the_longest_unused_goes_where_a_load_needs_its_room(pool: Pool) -> None:
    for name in "ab":
        await pool.hold(name)
    await pool.hold()
    await until(lambda: not pool.states())
    await pool.hold("a")
    await pool.hold()
    await until(lambda: not pool.states())
    await pool.hold("c")
    closed = {name: runtime.closed for name, runtime in pool.loads.runtimes.items()}
    assert closed == {"a": False, "b": True, "c": False}


async def test_it_waits_for_the_room_of_a_model_that_leaves(pool: Pool) -> None:
    await pool.hold("a", "b")
    pool.loads.served["a"].idle.clear()
    pool.residents.hold([model("b"), model("c")])
    await until(lambda: pool.states().get("c") == (False, False))
    assert pool.loads.loaded == ["a", "b"]
    pool.loads.served["a"].idle.set()
    await until(lambda: pool.serves == ["b", "c"])


async def test_a_model_for_which_there_is_no_room_is_refused_with_both_numbers(pool: Pool) -> None:
    await pool.hold("a", "b")
    await pool.hold("a", "b", "c", serves="a b")
    await until(lambda: "c" in pool.reasons)
    assert pool.loads.loaded == ["a", "b"]
    assert pool.reasons["c"] == (
        "model c takes 1 MiB, and of this pool replica's 2 MiB (scaling.pool.memory_mib) 0 are free"
    )


async def test_what_other_processes_leave_of_the_gpus_bounds_what_is_held(pool: Pool) -> None:
    await pool.hold("a", "b")
    told = DeviceMemory(own=2 * MIB, used=7 * MIB, total=8 * MIB)
    pool.residents.tell_memory(told)
    assert {served.memory for served in pool.loads.served.values()} == {told}
    assert pool.residents.free_bytes == 0
    pool.residents.tell_memory(DeviceMemory(own=2 * MIB, used=9 * MIB, total=8 * MIB))
    assert pool.residents.free_bytes == -MIB  # for the autoscaler to say which goes
    assert pool.serves == ["a", "b"]
    await pool.hold("b")
    await pool.hold("b", "c", serves="b")
    await until(lambda: "c" in pool.reasons)
    assert pool.reasons["c"] == (
        "model c takes 1 MiB, and of this pool replica's 1 MiB (what other processes leave of its "
        "GPUs) 0 are free"
    )
    assert pool.loads.runtimes["a"].closed
    pool.residents.tell_memory(None)
    assert pool.residents.free_bytes == MIB


async def test_models_that_use_no_gpu_need_no_room_there(pool: Pool) -> None:
    full = DeviceMemory(own=0, used=8 * MIB, total=8 * MIB)
    pool.residents.tell_memory(full)
    assert pool.residents.free_bytes == 2 * MIB
    pool.loads.on_cpus = {"b"}
    on_cpus = PoolModel("b", "k", {"settings": {"runtime": "torch", "options": {"device": "cpu"}}})
    pool.residents.hold([model("a"), on_cpus])
    await until(lambda: "a" in pool.reasons and pool.serves == ["b"])
    assert pool.loads.loaded == ["b"]
    assert pool.reasons["a"].endswith("0 MiB (what other processes leave of its GPUs) 0 are free")
    pool.residents.tell_memory(DeviceMemory(own=0, used=0, total=8 * MIB))
    assert pool.residents.free_bytes == MIB


async def test_only_warm_models_on_the_gpus_make_way_for_want_of_room_there(pool: Pool) -> None:
    pool.loads.on_cpus = {"b"}
    on_cpus = PoolModel("b", "k", {"settings": {"runtime": "torch", "options": {"device": "cpu"}}})
    pool.residents.hold([on_cpus])
    await until(lambda: pool.serves == ["b"])
    pool.residents.hold([])
    await until(lambda: pool.serves == [])
    pool.residents.tell_memory(DeviceMemory(own=0, used=8 * MIB, total=8 * MIB))
    pool.residents.hold([model("a")])
    await until(lambda: "a" in pool.reasons)
    assert not pool.loads.runtimes["b"].closed
    assert pool.residents.free_bytes == 2 * MIB  # no model is there that uses the GPUs


async def test_where_its_own_part_is_hidden_all_of_the_gpus_may_be_used(pool: Pool) -> None:
    pool.loads.sizes["a"] = 0
    await pool.hold("a")
    pool.residents.tell_memory(DeviceMemory(own=None, used=7 * MIB, total=8 * MIB))
    assert pool.residents.free_bytes == 2 * MIB
    pool.residents.tell_memory(DeviceMemory(own=None, used=0, total=MIB))
    assert pool.residents.free_bytes == MIB
    pool.residents.tell_memory(None)


async def test_a_model_that_comes_is_told_of_the_memory(pool: Pool) -> None:
    told = DeviceMemory(own=0, used=0, total=8 * MIB)
    pool.residents.tell_memory(told)
    await pool.hold("a")
    assert pool.loads.served["a"].memory == told


async def test_warm_models_make_way_for_one_that_finds_no_memory(pool: Pool) -> None:
    await pool.hold("a")
    await pool.hold()
    await until(lambda: not pool.states())
    pool.loads.faults["b"] = LoadError("cuda:0 has no memory for the model: CUDA out of memory")
    pool.residents.hold([model("b")])
    await until(lambda: "b" in pool.reasons)
    assert pool.loads.loaded == ["a", "b", "b"]
    assert pool.loads.runtimes["a"].closed


async def test_warm_models_stay_when_a_load_fails_otherwise(pool: Pool) -> None:
    await pool.hold("a")
    await pool.hold()
    await until(lambda: not pool.states())
    pool.loads.faults["b"] = LoadError("its file is cut")
    pool.residents.hold([model("b")])
    await until(lambda: "b" in pool.reasons)
    assert pool.loads.loaded == ["a", "b"]
    assert not pool.loads.runtimes["a"].closed


async def test_a_model_that_turns_out_too_large_is_closed_and_not_loaded_again(
    pool: Pool,
) -> None:
    pool.loads.sizes["a"] = 3 * MIB
    for _ in range(2):
        pool.residents.hold([model("a")])
        await until(lambda: "a" in pool.reasons)
        assert pool.loads.runtimes["a"].closed
        assert pool.loads.loaded == ["a"]
        pool.residents.hold([])


async def test_a_failed_load_leaves_the_others_and_is_tried_again_later(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residents, "RETRY_S", 0.01)
    await pool.hold("a")
    pool.loads.faults["b"] = LoadError("its file is cut")
    pool.residents.hold([model("a"), model("b")])
    await until(lambda: pool.reasons == {"b": "its file is cut"})
    assert pool.serves == ["a"]
    del pool.loads.faults["b"]
    await until(lambda: pool.serves == ["a", "b"])
    assert pool.reasons == {}


async def test_a_model_that_failed_and_is_not_wanted_any_more_is_forgotten(pool: Pool) -> None:
    pool.loads.faults["a"] = LoadError("no")
    pool.residents.hold([model("a")])
    await until(lambda: "a" in pool.reasons)
    pool.residents.hold([])
    assert pool.reasons == {}


async def test_other_settings_are_loaded_anew_once_the_old_have_left(pool: Pool) -> None:
    await pool.hold("a")
    pool.residents.hold([model("a", "new")])
    await until(lambda: [m.digest for m in pool.residents.members] == ["new"])
    assert pool.loads.loaded == ["a", "a"]


async def test_a_model_that_is_wanted_again_while_it_leaves_is_not_loaded_twice(
    pool: Pool,
) -> None:
    await pool.hold("a")
    pool.loads.served["a"].idle.clear()
    pool.residents.hold([])
    await until(lambda: pool.states() == {"a": (False, True)})
    pool.residents.hold([model("a")])
    for _ in range(20):
        await asyncio.sleep(0)
    assert pool.loads.loaded == ["a"]
    pool.loads.served["a"].idle.set()
    await until(lambda: pool.serves == ["a"])
    assert pool.loads.loaded == ["a"]


async def test_an_unwell_model_leaves_and_the_others_stay(pool: Pool) -> None:
    await pool.hold("a", "b")
    pool.loads.served["a"].well = False
    await pool.residents.check()
    assert pool.serves == ["b"]
    assert pool.reasons == {"a": "its device is gone"}
    await until(lambda: pool.loads.runtimes["a"].closed)


async def test_the_key_of_a_member_that_has_gone_is_refused(pool: Pool) -> None:
    await pool.hold("a")
    member = pool.residents.members[0].member
    assert pool.residents.key_of(member) == member.encode()
    await pool.hold()
    with pytest.raises(LookupError, match="does not serve"):
        pool.residents.key_of(member)


async def test_what_runs_on_its_device_and_whether_it_loads_is_known(pool: Pool) -> None:
    assert (pool.residents.running(), pool.residents.loads) == ((None, ""), False)
    pool.loads.gate.clear()
    pool.residents.hold([model("a")])
    await until(lambda: pool.loads.loaded == ["a"])
    assert pool.residents.loads
    pool.loads.gate.set()
    await pool.hold("a", "b")
    assert not pool.residents.loads
    job = pool.loads.served["b"].running = job_of(1)
    assert pool.residents.running() == (job, "b")
    pool.loads.served["b"].idle.clear()
    pool.residents.hold([])
    await until(lambda: not pool.serves)
    assert pool.residents.running() == (job, "b")  # until it has left


# -- engines


def kept(pool: Pool) -> dict[str, tuple[float, int, int]]:
    """By model: seconds of a waking, and bytes of the device and of the host."""
    report = pool.residents.report()
    return {each.model: (each.wake_s, each.size_bytes, each.host_bytes) for each in report.kept}


async def at_rest(pool: Pool) -> None:
    await pool.hold()
    await until(lambda: not pool.states())


async def test_an_engine_sleeps_once_its_last_stream_has_ended_and_wakes_without_a_load(
    pool: Pool,
) -> None:
    pool.loads.engines = {"a"}
    await pool.hold("a")
    streams = pool.loads.served["a"]
    streams.idle.clear()
    await pool.hold()
    assert pool.states() == {"a": (False, True)}
    assert (pool.loads.slept, kept(pool)) == ([], {})
    streams.idle.set()
    await until(lambda: "a" in kept(pool))
    assert kept(pool) == {"a": (0.1, MIB // 2, MIB // 2)}
    await pool.hold("a")
    assert (pool.loads.loaded, pool.loads.woken, kept(pool)) == (["a"], ["a"], {})
    (held,) = pool.residents.report().residents
    assert (held.size_bytes, held.load_s, held.wake_s) == (MIB, 0.5, 0.25)


async def test_batches_that_left_are_warm_and_not_asleep(pool: Pool) -> None:
    await pool.hold("a")
    await at_rest(pool)
    assert kept(pool) == {"a": (0.0, MIB, 0)}
    assert pool.loads.slept == []


async def test_an_engine_that_sleeps_leaves_its_room_to_others_and_waits_for_it_to_wake(
    pool: Pool,
) -> None:
    pool.loads.engines = {"a"}
    pool.loads.sizes = {"a": 2 * MIB, "b": MIB}
    pool.loads.on_cpus = {"a"}
    await pool.hold("a")
    await at_rest(pool)
    await pool.hold("b")
    assert kept(pool) == {"a": (0.1, MIB, 0)}  # beside b; no GPU was given back
    await pool.hold("a", "b", serves="b")
    await until(lambda: "a" in pool.reasons)
    assert pool.reasons["a"].startswith("model a takes 2 MiB, and of this pool replica's 2 MiB")
    assert "a" in kept(pool), "it sleeps on"
    assert not pool.loads.runtimes["a"].closed
    pool.residents.hold([])
    await until(lambda: not pool.states())
    await pool.hold("a")
    assert (pool.loads.loaded, pool.loads.woken) == (["a", "b"], ["a"])
    assert pool.loads.runtimes["b"].closed


@pytest.mark.parametrize("pool", [0, MIB // 2 - 1], indirect=True)
async def test_an_engine_for_whose_weights_the_host_has_no_room_ends(pool: Pool) -> None:
    pool.loads.engines = {"a"}
    await pool.hold("a")
    await at_rest(pool)
    assert (pool.loads.slept, kept(pool)) == ([], {})
    assert pool.loads.runtimes["a"].closed
    await pool.hold("a")
    assert pool.loads.loaded == ["a", "a"]


async def test_the_longest_asleep_makes_room_in_the_hosts_memory(pool: Pool) -> None:
    pool.loads.engines = {"a", "b"}
    await pool.hold("a")
    await pool.hold("b")
    await until(lambda: pool.loads.slept == ["a"])
    await at_rest(pool)
    assert pool.loads.slept == ["a", "b"]
    assert list(kept(pool)) == ["b"]
    assert pool.loads.runtimes["a"].closed


@pytest.mark.parametrize("step", ["sleep", "wake"])
async def test_an_engine_that_cannot_sleep_or_wake_is_closed_and_loaded_anew(
    pool: Pool, step: str
) -> None:
    """At once: one that died in its sleep is no fault of its model."""
    pool.loads.engines, pool.loads.cannot = {"a"}, {step: Unhealthy("it died")}
    await pool.hold("a")
    first = pool.loads.runtimes["a"]
    await at_rest(pool)
    await pool.hold("a")
    assert first.closed
    assert pool.loads.loaded == ["a", "a"]
