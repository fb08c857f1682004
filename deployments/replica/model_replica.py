"""The Ray Serve deployments of models: how a replica starts and ends, of batches and of streams.

The constructor loads, warms and profiles before it returns, so a running replica is hot. The
registry hears the phase, its progress, and why a start failed. Serve gives up an application whose
replicas have failed three times. Replicas of an optional model therefore end late when they fail,
so that whoever waits for all applications has long gone on. Serve ends a replica of the live
version for each new one that is ready, so replicas that start together become ready together. A
replica whose device or engine hangs, or will not recover, ends its process (`os._exit`) and the
processes that it started: Serve replaces it, and gateways run its work again.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray import serve

from autoscaling.types import StartReading, State
from deployments.contract.codec import SPOKEN_TEXT
from deployments.contract.description import DESCRIPTION, ModelDescription, adapters_by_hand
from deployments.contract.registry import PROGRESS
from deployments.contract.rollout.observations import LIVE_COSTS, CostBounds, LiveCosts
from deployments.contract.scaling.messages import START
from deployments.process import actors, adapters_store, log_choice
from deployments.process.actors import registry
from deployments.process.cost_gate import late_rows
from deployments.process.loop_watch import HUNG_EXIT_CODE, LoopWatch, watch_process
from deployments.process.loopback import keep_loopback_direct, keep_replica_calls_local
from deployments.process.sockets import server_tls
from deployments.replica import backend_env, describe, known_costs
from deployments.replica.artifacts.local_model import LocalAdapters, local_model
from deployments.replica.backend_env import reserved_cpus
from deployments.replica.block_index import BlockIndex
from deployments.replica.channel_server import ChannelServer, LeaseCore
from deployments.replica.device import DeviceWorker, FailedRows, hang_limits
from deployments.replica.device_memory import MemoryCap, gpus_of, watch_device_memory
from deployments.replica.groups import version_of
from deployments.replica.known_costs import CostSources, KnownCosts, cost_sources
from deployments.replica.replica_core import ReplicaCore
from deployments.replica.startup import StartupProgress, process_age_s, settings_here, took
from deployments.replica.stream_core import StreamCore
from deployments.replica.verify import gate
from deployments.replica.watchdogs import watch_hangs, watch_memory, watch_stalls
from deployments.settings.channel import ChannelSettings, channel_ports, channel_tls
from deployments.settings.plain import settings_digest
from deployments.settings_files.made import cache_dir
from routers.stream.staging import WAITING_SHARE
from runtimes import catalog, independence, profiling
from runtimes.profiling import Profile
from runtimes.types import Adapter, DeviceMemory, Runtime, StreamRuntime

_OPTIONAL_ENDS_S = 600.0
_LONGEST_WAIT_S = 60.0  # for other replicas of the same version
_ADAPTERS_S = 1.0  # between two looks at those that operators have changed
_LOOKS_S, _ANSWER_S = 0.2, 2.0  # between two questions to the registry; to wait for an answer
_COLD_S = 1.0  # fetching and converting take longer; looking for what is there takes less
logger = logging.getLogger("headrace.replica")


class ModelReplica:
    """What batch and stream replicas have in common. A constructor calls `_start_up` first and
    `_listen` last; a subclass makes its runtime hot in `_load`. Defaults are for `__del__` after a
    constructor that failed."""

    _server: ChannelServer | None = None
    _loop_watch: LoopWatch | None = None
    _watches: tuple[asyncio.Task[None], ...] = ()

    async def _start_up(self, args: dict[str, Any]) -> None:
        """Load the model. `args`: {"name", "settings" and "channel" as the user wrote them, and
        "group" if the model has groups}."""
        keep_replica_calls_local()
        keep_loopback_direct()
        log_choice.follow(args["name"])
        context = serve.get_replica_context()
        self._name: str = args["name"]
        self._group: str = args.get("group", "")
        self._digest = settings_digest(args["settings"])
        self._settings = settings_here(args["settings"], context.world_size)
        actor = registry()
        self._progress = StartupProgress(
            self._name,
            context.replica_id.unique_id,
            lambda progress: actor.report.remote(PROGRESS.encode(progress)),
            process_age_s(),
            digest=self._digest,
        )
        self._progress.report("starting", 0.0)
        backend_env.set_compiler_cache(cache_dir())
        try:
            self._settings = await asyncio.to_thread(
                local_model, self._settings, cache_dir(), self._progress.report
            )
            self._description, self._tokenizer = await self._load(cache_dir(), self._digest)
        except Exception as fault:
            await self._progress.failed(fault)
            if self._settings.optional:
                # Serve then starts another, which tries again.
                logger.warning(
                    "it is optional: nothing waits for it, and it is tried again in %g s",
                    _OPTIONAL_ENDS_S, extra={"model": self._name},
                )  # fmt: skip
                await asyncio.sleep(_OPTIONAL_ENDS_S)
            raise

    async def _load(self, cache_dir: Path, digest: str) -> tuple[ModelDescription, bytes]:
        """Load and warm the model. Returns its description and its tokeniser's bytes."""
        raise NotImplementedError

    async def _measured_by_others(self, digest: str) -> Profile:
        """The profile that replicas with these settings have measured; () if there is none, or the
        registry does not answer."""
        if self._settings.profile == "start":
            return ()
        asked = registry().profile.remote(self._name, digest)
        return tuple(await self._answer(asked, "the registry knows no costs") or ())

    async def _answer(
        self, asked: Any, without: str, read: Callable[[Any], Any] = lambda answer: answer
    ) -> Any:
        """The registry's answer; None, and the warning `without`, if it does not come in time or
        cannot be read."""
        try:
            return read(await asyncio.wait_for(asked, _ANSWER_S))
        except Exception as fault:
            logger.warning("%s: %s", without, fault, extra={"model": self._name})
            return None

    async def _listen(self, core: LeaseCore, args: dict[str, Any]) -> None:
        """Let gateways connect. It is the last step before the replica is ready."""
        channel = ChannelSettings.model_validate(args["channel"])
        replica_id = serve.get_replica_context().replica_id.unique_id
        server = ChannelServer(core, replica_id, tls=server_tls(channel_tls(channel)))
        self._server = server
        host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        await server.listen(host, channel_ports(channel))
        self._loop_watch = watch_process()
        self._progress.report("ready", 1.0)
        tell_autoscaler(self._name, self._group, self._progress.spent())
        logger.info("ready: %s", took(self._progress.spent()), extra={"model": self._name})
        longest_s = min(sum(seconds for _, seconds in self._progress.spent()), _LONGEST_WAIT_S)
        await together(self._name, self._digest, longest_s)

    async def __del__(self) -> None:
        if self._server is not None:
            await self._server.drain()
        for watch in self._watches:
            watch.cancel()
        await self._close_core()
        if self._loop_watch is not None:
            self._loop_watch.close()
        if self._server is not None:
            await self._server.close()
        await self._close_runtime()

    def _watch_device(
        self, device: str, core: DeviceWorker | StreamCore
    ) -> Coroutine[Any, Any, None]:
        """Of the GPUs that the model runs on; whoever answers tells gateways of it."""

        def tell(memory: DeviceMemory | None) -> None:
            core.device_memory = memory

        gpus = partial(gpus_of, device, self._settings.replicas.num_gpus)
        return watch_device_memory(gpus, tell, self._name)

    async def _close_core(self) -> None:
        """End all work. The connections still take what it has to say."""

    async def _close_runtime(self) -> None:
        """Free the model."""

    def _end_process(self, reason: str) -> None:
        logger.error("%s; the replica ends", reason, extra={"model": self._name})
        for child in multiprocessing.active_children():
            child.kill()  # else an engine would go on, and hold its device's memory
        os._exit(HUNG_EXIT_CODE)

    def record_replica_metadata(self) -> dict[str, str]:
        """What gateways are told of a running replica. Serve calls it after the constructor."""
        assert self._server is not None
        description, address = self._description, self._server.address
        group = {"group": self._group} if self._group else {}
        return {
            "version": description.version, "digest": description.digest, "channel": address,
            "channel_versions": SPOKEN_TEXT, **group,
        }  # fmt: skip

    async def channel_key(self) -> bytes:
        """What a gateway must know to connect. Only for callers inside the cluster."""
        assert self._server is not None
        return self._server.key

    async def describe(self) -> tuple[bytes, bytes]:
        """The model's description, and its tokeniser's bytes (empty without one)."""
        return DESCRIPTION.encode(self._description), self._tokenizer

    async def version(self, views: list[dict[str, Any]]) -> str:
        """The version of the whole model, given the settings of each of its groups."""
        return await asyncio.to_thread(_version_of, views)


def tell_autoscaler(model: str, group: str, spent: tuple[tuple[str, float], ...]) -> None:
    """Tell the autoscaler how long the phases of a start took, if there is an autoscaler."""
    staged = sum(s for phase, s in spent if phase in ("installing", "staging")) < _COLD_S
    seconds = sum(seconds for _, seconds in spent)
    start = StartReading(model, group, State.STAGED if staged else State.COLD, seconds, spent)
    try:
        actors.running_autoscaler().started.remote(START.encode(start))
    except Exception as nobody:
        logger.debug("no autoscaler hears of the start: %r", nobody)


def _version_of(views: list[dict[str, Any]]) -> str:
    models = [settings_here(view, 1) for view in views]
    local = [local_model(model, cache_dir(), lambda phase, share: None) for model in models]
    return version_of([describe.version(model) for model in local])


async def together(model: str, digest: str, longest_s: float) -> None:
    """Return when no other replica with these settings is loading, or no other version is live.
    Returns anyway after `longest_s`, or if the registry does not answer."""
    end = time.monotonic() + longest_s
    try:
        actor: Any = registry()
        while time.monotonic() < end:
            async with asyncio.timeout(_ANSWER_S):
                loading = await actor.loading_beside.remote(model, digest)
            if not loading:
                return
            await asyncio.sleep(_LOOKS_S)
    except Exception as silence:
        logger.debug("the registry does not say who loads: %r", silence)


class BatchReplica(ModelReplica):
    """A model that takes batches: a runtime, a device's worker and a replica core."""

    _worker: DeviceWorker | None = None
    _runtime: Runtime | None = None

    async def __init__(self, args: dict[str, Any]) -> None:  # type: ignore[misc]
        self._loop = asyncio.get_running_loop()
        await self._start_up(args)
        model, limits = self._settings, hang_limits(self._settings)
        assert self._runtime is not None
        worker = self._worker = DeviceWorker(
            self._runtime,
            model.replicas.slots,
            limits=limits,
            on_hang=lambda: self._end_process("a batch hangs (hang_limit_s, hang_factor)"),
            allow_non_finite=model.allow_non_finite,
        )
        worker.failed, worker.cap = FailedRows(self._name), MemoryCap(self._name)
        worker.on_death = self._end_process
        watching = [watch_hangs(worker, min(1.0, limits.max_s / 4))]
        if (limit_mib := model.replicas.memory_limit_mib) is not None:
            watching.append(
                watch_memory(lambda: (worker.running, ""), limit_mib, self._end_process)
            )
        watching.append(self._watch_device(self._runtime.limits().device, worker))
        self._watches = tuple(self._loop.create_task(each) for each in watching)
        await self._listen(ReplicaCore(worker), args)

    async def _load(self, cache_dir: Path, digest: str) -> tuple[ModelDescription, bytes]:
        measured = await self._measured_by_others(digest)
        runtime, sources, costs, depend = await self._loop.run_in_executor(
            None, self._load_and_measure, cache_dir, measured
        )
        if not measured:
            again = partial(
                self._loop.run_in_executor, None, known_costs.measured_again,
                sources.settings, runtime, self._settings.profile_s, cache_dir,
            )  # fmt: skip
            costs = replace(costs, points=await self._admitted(costs.points, again))
        return describe.describe(
            self._name, self._settings, digest, runtime, costs, rows_depend=depend
        )

    async def _admitted(self, points: Profile, again: Callable[[], Awaitable[Profile]]) -> Profile:
        """The costs, if this version may serve with them; `again` measures. Raises `TooCostly`."""
        model = self._settings
        bounds = CostBounds(model.deadline_s, model.accept.max_cost_ratio)
        if bounds.max_ratio and points:
            points = await known_costs.admit(points, bounds, self._live_costs, again)
        if late := late_rows(points, bounds.slo_s):
            logger.warning("%s: such rows are answered late", late, extra={"model": self._name})
        return points

    async def _live_costs(self) -> LiveCosts | None:
        """As `Registry.live_costs`; None if the registry does not answer."""
        asked = registry().live_costs.remote(self._name, self._group, self._digest)
        found: LiveCosts | None = await self._answer(
            asked, "the live version's costs are not known", LIVE_COSTS.decode
        )
        return found

    def _load_and_measure(
        self, cache_dir: Path, measured: Profile
    ) -> tuple[Runtime, CostSources, KnownCosts, bool]:
        model, tell = self._settings, partial(logger.info, extra={"model": self._name})
        settings = describe.runtime_settings(
            self._name, model, cache_dir, self._progress.report, reserved_cpus()
        )
        model = describe.with_lengths(model, settings.source)
        backend_env.set_engine_variables(settings)
        sources = replace(cost_sources(settings, model, cache_dir), measured=measured)
        runtime = self._runtime = catalog.create(sources.settings)
        runtime.load()
        gate.admit(model, sources.settings, runtime)
        runtime.warm()
        depend = independence.rows_depend(runtime, sources.settings)
        if depend:
            logger.warning("%s: no answer is cached or shared", depend, extra={"model": self._name})
        self._progress.report("profiling", 0.0)
        costs = known_costs.known_costs(sources, model, runtime, tell)
        return runtime, sources, costs, bool(depend)

    async def check_health(self) -> None:
        assert self._worker is not None
        await self._worker.health()

    async def _close_core(self) -> None:
        if self._worker is not None:
            # Not on the loop: `close` waits for a running batch, whose answer the loop delivers.
            await self._loop.run_in_executor(None, self._worker.close)

    async def _close_runtime(self) -> None:
        if self._runtime is not None:
            self._runtime.close()


async def follow_adapters(
    table: dict[str, Adapter],
    declared: Mapping[str, str],
    local: LocalAdapters,
    fetch: Callable[[], Mapping[str, str | None]],
) -> None:
    """Keep the table as the settings say (`declared`, sources by name), but for the adapters that
    operators add and take out (`fetch`, which blocks and may raise), for ever."""
    known: Mapping[str, str | None] = {}
    while True:
        await asyncio.sleep(_ADAPTERS_S)
        try:
            by_hand = await asyncio.to_thread(fetch)
        except Exception as silence:
            logger.debug("the adapters cannot be looked at: %r", silence)
            continue
        if by_hand != known:
            known = by_hand
            found = local.made(adapters_by_hand(declared, by_hand))
            table.clear()
            table.update(found)


class StreamReplica(ModelReplica):
    """A model that generates: an engine that batches by itself, and a stream core."""

    _core: StreamCore | None = None
    _runtime: StreamRuntime | None = None

    async def __init__(self, args: dict[str, Any]) -> None:  # type: ignore[misc]
        await self._start_up(args)
        assert self._runtime is not None
        at_once = self._runtime.limits().max_sequences
        core = self._core = StreamCore(
            self._runtime, at_once * WAITING_SHARE, at_once, on_death=self._end_process,
            blocks=self._blocks,
        )  # fmt: skip
        limits = hang_limits(self._settings)
        watching = (
            self._follow_adapters(),
            watch_stalls(core, limits, core.end, min(1.0, limits.max_s / 4)),
            self._watch_device(self._runtime.limits().device, core),
        )
        self._watches = tuple(map(asyncio.get_running_loop().create_task, watching))
        await self._listen(core, args)

    async def _load(self, cache_dir: Path, digest: str) -> tuple[ModelDescription, bytes]:
        name, model = self._name, self._settings
        settings = describe.runtime_settings(
            name, model, cache_dir, self._progress.report, reserved_cpus()
        )
        backend_env.set_engine_variables(settings)
        self._engine_settings = settings
        self._adapters = dict(settings.adapters)
        self._blocks = BlockIndex()
        settings = replace(settings, adapters=self._adapters, blocks=self._blocks)
        runtime = self._runtime = catalog.create_stream(settings)
        await runtime.load()
        await runtime.warm()
        self._progress.report("profiling", 0.0)
        profile = await self._measured_by_others(digest)
        if not profile:
            profile = await profiling.measure_stream(name, runtime, model.profile_s)
        return describe.describe_stream(name, model, digest, runtime, profile)

    async def _follow_adapters(self) -> None:
        model, engine = self._settings, self._engine_settings
        base = None if model.runtime == "synthetic" else engine.source
        local = LocalAdapters(base, engine.max_lora_rank, cache_dir())
        if model.adapters:
            await follow_adapters(
                self._adapters, model.adapters, local,
                lambda: adapters_store.fetch().get(engine.name, {}),
            )  # fmt: skip

    async def check_health(self) -> None:
        assert self._core is not None
        await self._core.health()

    async def _close_core(self) -> None:
        if self._core is not None:
            await self._core.close()

    async def _close_runtime(self) -> None:
        if self._runtime is not None:
            await self._runtime.close()
