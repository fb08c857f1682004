"""Which models does a pool replica hold? Carries out its order, one load after another.

A model that is not ordered any more leaves as soon as its work is done. Its runtime stays loaded
(*warm*: weights in memory, no channel) until a load needs the room; the longest unused goes first.
An engine also sleeps meanwhile, so that it takes less; its weights may leave a GPU for the host's
memory, of which there are `asleep_bytes`. One that finds no room there is closed instead.
A model that cannot be loaded does not affect the others; it is reported with the reason, and tried
again after `RETRY_S`. Nothing in Python ends a thread, so a load that takes longer than the model's
`start_timeout_s` ends the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from deployments.contract.registry import PoolMember
from deployments.contract.scaling.messages import KeptModel, PoolModel, PoolReport
from deployments.contract.scaling.messages import Resident as ResidentReport
from deployments.replica.device import Job
from deployments.replica.device_memory import others_bytes
from deployments.replica.pool.loading import PoolLoading
from deployments.replica.pool.serving import LoadedModel, ServedResident
from deployments.replica.startup import reason_of
from runtimes.errors import LoadError, lacks_memory
from runtimes.types import DeviceMemory, Sleeping

_OF_GPUS = "what other processes leave of its GPUs"
RETRY_S = 30.0
logger = logging.getLogger("headrace.pool")


@dataclass(frozen=True, slots=True, eq=False)
class _ServedModel:
    model: PoolModel
    loaded: LoadedModel
    resident: ServedResident


@dataclass(frozen=True, slots=True)
class _FailedLoad:
    key: str
    reason: str
    again_at: float


Key = tuple[str, str]  # a model's name, and its settings' digest


def _key(model: PoolModel | LoadedModel) -> Key:
    return model.name, model.key


class Residents:
    """Owns all models in this process. `memory_bytes`: bound on all that is loaded. Those that use
    the GPUs are also bound to what other processes leave of them. `on_change` is called when the
    set of served models changes."""

    def __init__(
        self,
        replica: str,
        loading: PoolLoading,
        memory_bytes: int,
        on_change: Callable[[], None] = lambda: None,
        *,
        asleep_bytes: int = 0,
    ) -> None:
        self._replica = replica
        self._loading = loading
        self._memory_bytes = memory_bytes
        self._asleep_bytes = asleep_bytes
        self._device: DeviceMemory | None = None
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._wanted: dict[str, PoolModel] = {}
        self._held: dict[str, _ServedModel] = {}  # served
        self._leaving: dict[_ServedModel, asyncio.Task[None]] = {}
        self._coming: PoolModel | None = None  # being loaded
        self._kept: dict[Key, LoadedModel] = {}  # warm, longest unused first
        self._failed: dict[str, _FailedLoad] = {}
        self._sizes: dict[Key, int] = {}
        self._on_gpu: dict[Key, bool] = {}  # of models that came, whether they use the GPUs
        self._news = asyncio.Event()  # set when there may be something to do

    # ---- what is asked ------------------------------------------------------------------------

    def hold(self, models: Sequence[PoolModel]) -> None:
        """Set all models to hold from now on; they are loaded in this order."""
        self._wanted = {model.name: model for model in models}
        self._failed = {
            name: failed
            for name, failed in self._failed.items()
            if name in self._wanted and self._wanted[name].key == failed.key
        }
        self._news.set()

    @property
    def members(self) -> tuple[PoolMember, ...]:
        return tuple(held.resident.member for held in self._held.values())

    def report(self) -> PoolReport:
        failed = tuple((name, failed.reason) for name, failed in self._failed.items())
        kept = tuple(
            KeptModel(each.name, each.key, each.wake_s, each.held_bytes, each.host_bytes)
            for each in self._kept.values()
        )
        return PoolReport(self._replica, tuple(self._reports()), self.free_bytes, failed, kept)

    @property
    def loads(self) -> bool:
        """Whether a model is being loaded."""
        return self._coming is not None

    def running(self) -> tuple[Job | None, str]:
        """The batch on the device, and its model."""
        for held in (*self._held.values(), *self._leaving):
            if (job := held.resident.running) is not None:
                return job, held.model.name
        return None, ""

    def tell_memory(self, memory: DeviceMemory | None) -> None:
        """What is taken of the device; None: nobody knows, or there is none."""
        self._device = memory
        for held in (*self._held.values(), *self._leaving):
            held.resident.tell_memory(memory)

    @property
    def free_bytes(self) -> int:
        """Room for further models; below 0 if other processes have left less than is held. Warm
        models that are not served would make way. The GPUs count while a model that uses them is
        there or comes."""
        served = [held.loaded for held in [*self._held.values(), *self._leaving]]
        comes = self._coming is not None and self._on_gpu.get(_key(self._coming), False)
        on_gpu = comes or any(each.on_gpu for each in self._loaded())
        return self._room(served, on_gpu=on_gpu)[0]

    def key_of(self, member: str) -> bytes:
        """What a gateway must know to connect. Raises LookupError if the member is gone."""
        for held in self._held.values():
            if held.resident.member.member == member:
                return held.resident.key()
        raise LookupError(f"this pool replica does not serve {member} any more")

    async def check(self) -> None:
        """Ask every runtime's health. One that is not well leaves, and is loaded anew later."""
        asked = list(self._held.items())
        found = await asyncio.gather(
            *(held.resident.health() for _, held in asked), return_exceptions=True
        )
        for (name, held), fault in zip(asked, found, strict=True):
            if isinstance(fault, Exception) and self._held.get(name) is held:
                self._fail(held.model, fault)
                self._let_go(name, keep=False)

    async def run(self) -> None:
        """Carry out the order until cancelled."""
        while True:
            self._news.clear()
            for name in [n for n, held in self._held.items() if not self._is_wanted(held.model)]:
                self._let_go(name)
            model = self._next()
            if model is None:
                await self._news.wait()
            else:
                self._coming = model
                try:
                    await self._take_in(model)
                except Exception as fault:
                    self._fail(model, fault)
                finally:
                    self._coming = None

    async def close(self) -> None:
        """Drain and free everything. Call it after `run` was cancelled."""
        for name in list(self._held):
            self._let_go(name)
        if self._leaving:
            await asyncio.wait(list(self._leaving.values()))
        while self._kept:
            await self._free(next(iter(self._kept)))

    # ---- what comes ---------------------------------------------------------------------------

    def _is_wanted(self, model: PoolModel) -> bool:
        wanted = self._wanted.get(model.name)
        return wanted is not None and wanted.key == model.key

    def _next(self) -> PoolModel | None:
        now = self._loop.time()
        leaving = {held.model.name for held in self._leaving}
        for model in self._wanted.values():
            failed = self._failed.get(model.name)
            waits = failed is not None and failed.again_at > now
            if not waits and model.name not in leaving and model.name not in self._held:
                return model
        return None

    async def _take_in(self, model: PoolModel) -> None:
        self._on_gpu.setdefault(_key(model), _may_use_gpus(model))
        loaded = self._kept.pop(_key(model), None)
        if loaded is not None and loaded.asleep_bytes is not None:
            loaded = await self._wake(model, loaded)
        if loaded is None:
            least = self._sizes.get(_key(model))
            least = await self._loading.min_bytes(model) if least is None else least
            await self._make_room(model, least)
            loaded = await self._load(model)
            self._sizes[_key(model)] = loaded.size_bytes
            self._on_gpu[_key(model)] = loaded.on_gpu
        try:
            await self._make_room(model, loaded.size_bytes)
            resident = await self._loading.serve(model, loaded)
        except BaseException:
            await loaded.close()
            raise
        resident.tell_memory(self._device)
        self._held[model.name] = _ServedModel(model, loaded, resident)
        self._failed.pop(model.name, None)
        logger.info("serves, after loading for %.1f s", loaded.load_s, extra={"model": model.name})
        self._on_change()

    async def _wake(self, model: PoolModel, loaded: LoadedModel) -> LoadedModel | None:
        """None: it cannot be woken, as when it died in its sleep, and has to be loaded anew. For
        want of room it sleeps on, and LoadError is raised."""
        try:
            await self._make_room(model, loaded.size_bytes)
        except LoadError:
            self._kept[_key(model)] = loaded
            raise
        try:
            awake = await self._loading.wake(model, loaded)
        except Exception:
            logger.exception("it cannot be woken", extra={"model": model.name})
            await loaded.close()
            return None
        except BaseException:
            await loaded.close()
            raise
        logger.info("awake after %.2f s", awake.wake_s, extra={"model": model.name})
        return awake

    async def _load(self, model: PoolModel) -> LoadedModel:
        """If memory does not hold it after all, warm models make way."""
        while True:
            try:
                return await self._loading.load(model)
            except Exception as fault:
                if not self._kept or not lacks_memory(fault):
                    raise
            await self._free(next(iter(self._kept)))  # the oldest

    async def _make_room(self, model: PoolModel, size_bytes: int) -> None:
        """Free warm models until the model fits. Raises LoadError if it cannot fit."""
        on_gpu = self._on_gpu[_key(model)]
        while (room := self._room(self._loaded(), on_gpu=on_gpu))[0] < size_bytes:
            tight = room[2] is _OF_GPUS
            spare = next((key for key, it in self._kept.items() if it.on_gpu or not tight), None)
            if spare is not None:
                await self._free(spare)
            elif self._leaving:
                await asyncio.wait(
                    list(self._leaving.values()), return_when=asyncio.FIRST_COMPLETED
                )
            else:
                free, bound, whose = room
                raise LoadError(
                    f"model {model.name} takes {_mib(size_bytes)} MiB, and of this pool replica's "
                    f"{_mib(bound)} MiB ({whose}) {_mib(free)} are free"
                )

    def _fail(self, model: PoolModel, fault: Exception) -> None:
        reason = reason_of(fault)
        again_at = self._loop.time() + RETRY_S
        self._failed[model.name] = _FailedLoad(model.key, reason, again_at)
        self._loop.call_at(again_at, self._news.set)
        logger.error("the pool cannot hold it: %s", reason, extra={"model": model.name})

    # ---- what goes ----------------------------------------------------------------------------

    def _let_go(self, name: str, *, keep: bool = True) -> None:
        held = self._held.pop(name)
        task = self._loop.create_task(self._leave(held, keep=keep))
        self._leaving[held] = task
        task.add_done_callback(partial(self._left, held))
        self._on_change()

    def _left(self, held: _ServedModel, task: asyncio.Task[None]) -> None:
        self._leaving.pop(held, None)
        self._news.set()

    async def _leave(self, held: _ServedModel, *, keep: bool) -> None:
        try:
            await held.resident.leave()
        except Exception:
            keep = False
            logger.exception("it did not leave in order", extra={"model": held.model.name})
        kept = await self._at_rest(held) if keep else None
        if kept is None:
            await held.loaded.close()
        else:
            del self._leaving[held]  # at once, so that nobody counts it twice
            self._kept[_key(held.model)] = kept

    async def _at_rest(self, held: _ServedModel) -> LoadedModel | None:
        """An engine is put to sleep, for which longer unused ones make room in the host's memory;
        batches' runtimes stay as they are. None: it cannot stay."""
        loaded = held.loaded
        if not isinstance(loaded.runtime, Sleeping):
            return loaded
        if loaded.on_gpu and loaded.weights_bytes > self._asleep_bytes:
            return None
        while loaded.on_gpu and self._host_bytes + loaded.weights_bytes > self._asleep_bytes:
            await self._free(next(key for key, each in self._kept.items() if each.host_bytes))
        try:
            return await self._loading.sleep(held.model, loaded)
        except Exception:
            logger.exception("it cannot sleep", extra={"model": loaded.name})
            return None

    @property
    def _host_bytes(self) -> int:
        """That engines' weights take which were on a GPU."""
        return sum(each.host_bytes for each in self._kept.values())

    async def _free(self, key: Key) -> None:
        await self._kept.pop(key).close()

    # ---- what there is ------------------------------------------------------------------------

    def _loaded(self) -> list[LoadedModel]:
        held = [*self._held.values(), *self._leaving]
        return [*(each.loaded for each in held), *self._kept.values()]

    def _room(self, loaded: Sequence[LoadedModel], *, on_gpu: bool) -> tuple[int, int, str]:
        """Bytes beside these models, for one that uses the GPUs or not; of how many, and whose
        they are."""
        bound = self._memory_bytes
        rooms = [(bound - sum(m.held_bytes for m in loaded), bound, "scaling.pool.memory_mib")]
        if on_gpu and self._device is not None:
            bound = self._device.total - others_bytes(self._device)
            free = bound - sum(m.held_bytes for m in loaded if m.on_gpu)
            rooms.append((free, bound, _OF_GPUS))
        return min(rooms, key=lambda room: room[0])

    def _reports(self) -> list[ResidentReport]:
        found = [_report(held, serves=True) for held in self._held.values()]
        found += [_report(held, serves=False) for held in self._leaving]
        if self._coming is not None:
            size = self._sizes.get(_key(self._coming), 0)
            found.append(
                ResidentReport(self._coming.name, self._coming.key, False, size, 0.0, 0.0, False)
            )
        return found


def _may_use_gpus(model: PoolModel) -> bool:
    """What settings tell of a model that was not loaded yet."""
    settings = model.args.get("settings", {})
    on_cpus = (settings.get("options") or {}).get("device") == "cpu"
    engine = settings.get("task") == "generate"
    on_cpus = on_cpus or (engine and settings.get("runtime") != "vllm")
    return settings.get("runtime") not in ("openvino", "synthetic") and not on_cpus


def _report(held: _ServedModel, *, serves: bool) -> ResidentReport:
    loaded, resident = held.loaded, held.resident
    return ResidentReport(
        loaded.name, loaded.key, serves, loaded.size_bytes, loaded.load_s, resident.age_s,
        resident.busy, loaded.wake_s,
    )  # fmt: skip


def _mib(size_bytes: int) -> int:
    return -(-size_bytes // (1 << 20))
