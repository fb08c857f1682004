"""The whole gateway in one process: real app, pipeline, queue and replica core, no Ray.

`Stand` plays Serve's part: a channel to replica cores that needs no sockets, and a catalogue that
has its models from the start. Replicas can be killed, held, added and removed, and a model swapped.
`ask` is a client of one request whose body and whose leaving the test decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
from local_frames import soon, to_gateway, to_replica

from deployments.contract.channel.frames import (
    BatchCall,
    BatchReply,
    Buffer,
    Frame,
    FrameError,
    Kind,
    decode_call,
    encode_reply,
)
from deployments.contract.codec import WIRE
from deployments.contract.description import GatewayIdentity, ModelDescription
from deployments.contract.rollout.terms import (
    AgreementTerms,
    RolloutRoute,
    RolloutTerms,
    canary_of,
    is_canary,
)
from deployments.gateway.app import assembled
from deployments.gateway.models.catalogue import (
    Catalogue,
    _public_description,
    tokenizer_of,
)
from deployments.gateway.models.served_model import ServedModel
from deployments.gateway.queues.connections import ChannelListener, LinkCounts
from deployments.gateway.telemetry.gateway_telemetry import GatewayTelemetry
from deployments.gateway.tenancy.fair_thread_pool import FairThreadPool
from deployments.gateway.tenancy.tenants import KeyTable, Tenants
from deployments.process.key_list import RevokedKey
from deployments.process.replica_directory import ReplicaDirectory, RunningReplica
from deployments.replica import describe
from deployments.replica.device import DeviceWorker, HangLimits
from deployments.replica.groups import GroupLengths, combined
from deployments.replica.known_costs import KnownCosts
from deployments.replica.replica_core import ReplicaCore
from deployments.settings.gateway import GatewaySettings
from deployments.settings.key import OperatorKeySettings
from deployments.settings.model import ModelSettings
from deployments.settings.tenant import TenantSettings
from runtimes import catalog
from runtimes.types import Runtime

# Says nothing of costs: replicas are trusted with batches from the first one on.
PROFILE = ((1, 1, 0.0),)
_WAIT_S = 10.0
_BEGINNINGS = frozenset({Kind.BATCH, Kind.BEGIN})


class LocalSession:
    """A gateway's connection as a replica core has it: what the core sends arrives at the listener
    in a later turn of the loop, in order, as the bytes it would be."""

    def __init__(self, replica_id: str, gateway: str, channel: LocalChannel) -> None:
        self.gateway, self.version = gateway, WIRE
        self.open = True
        self._replica_id = replica_id
        self._channel = channel

    def send(self, kind: Kind, lease_id: int, body: Sequence[Buffer] = ()) -> None:
        if self.open:
            frame = to_gateway(kind, lease_id, body)
            soon(self._arrives, frame)

    async def room(self) -> None:
        pass

    def _arrives(self, frame: Frame) -> None:
        if not self.open:
            return
        if frame.kind is Kind.GOAWAY:
            self._channel.leaves(self._replica_id)
            return
        self._channel.arrives(self._replica_id, frame)
        try:
            self._channel.listener.received(self._replica_id, frame)
        except FrameError as fault:
            self._channel.lose(self._replica_id, str(fault))


class LocalChannel:
    """A `ReplicaChannel` to replica cores in this process, connected as soon as they are listed.

    `calls` keeps every batch that was given to it, `drops` who was asked to drop which lease.
    `script`: what the next batches are answered with instead of being run: a reply, or a text,
    which is a fault's; None lets one through. Leases that reach one of the `dead` are lost; to one
    that is `gone` nothing can be written."""

    listener: ChannelListener

    def __init__(self, gateway: str) -> None:
        self.counts = LinkCounts()
        self.cores: dict[str, Any] = {}
        self.dead: set[str] = set()
        self.gone: set[str] = set()
        self.leaving: set[str] = set()
        self.calls: list[tuple[str, BatchCall]] = []
        self.drops: list[tuple[str, int]] = []
        self.script: list[BatchReply | str | None] = []
        self.fault = Kind.FAULT  # what a scripted text comes as
        self._gateway = gateway
        self._listed: list[str] = []
        self._sessions: dict[str, LocalSession] = {}
        self._held: list[tuple[str, LocalSession, Frame]] | None = None
        self._called = asyncio.Event()

    # ---- what a test does ---------------------------------------------------------------------

    def hold(self) -> None:
        """What is sent from now on waits on its way, until `let_go`."""
        self._held = self._held or []

    def let_go(self) -> None:
        held, self._held = self._held or [], None
        for each in held:
            soon(self._arrives, *each)

    async def sent(self, count: int) -> None:
        """Returns once `count` batches were sent in all."""
        while len(self.calls) < count:
            self._called.clear()
            await asyncio.wait_for(self._called.wait(), 5.0)

    def lose(self, replica_id: str, reason: str = "it was cut") -> None:
        """The connection breaks, and is not opened again."""
        self._leave(replica_id)
        self.listener.links_changed()
        self.listener.link_lost(replica_id, reason)

    def leaves(self, replica_id: str) -> None:
        """The replica has said that it takes no new lease."""
        self.leaving.add(replica_id)
        self.listener.links_changed()

    # ---- `ReplicaChannel` ---------------------------------------------------------------------

    @property
    def reached(self) -> list[str]:
        known = self._sessions.keys() - self.leaving
        return [replica_id for replica_id in self._listed if replica_id in known]

    def follow(self, listed: Sequence[RunningReplica]) -> None:
        self._listed = [replica.replica_id for replica in listed]
        for replica_id in self._listed:
            if replica_id not in self._sessions:
                session = LocalSession(replica_id, self._gateway, self)
                self._sessions[replica_id] = session
                self.cores[replica_id].joined(session)

    def send(self, replica_id: str, kind: Kind, lease_id: int, body: Sequence[Buffer] = ()) -> bool:
        frame = to_replica(kind, lease_id, body)
        if kind is Kind.BATCH:
            self.calls.append((replica_id, decode_call(frame.body)))
            self._called.set()
        elif kind is Kind.DROP:
            self.drops.append((replica_id, lease_id))
        session = self._sessions.get(replica_id)
        if session is None or replica_id in self.gone:
            return False
        if self._held is not None:
            self._held.append((replica_id, session, frame))
        else:
            soon(self._arrives, replica_id, session, frame)
        return True

    def version(self, replica_id: str) -> int:
        return WIRE

    def release(self, replica_id: str) -> None:
        if replica_id not in self._listed:
            self._leave(replica_id)

    def close(self) -> None:
        for replica_id in list(self._sessions):
            self._leave(replica_id)

    def arrives(self, replica_id: str, frame: Frame) -> None:
        """A frame of a replica, before the listener gets it."""

    # ---- at the replica -----------------------------------------------------------------------

    def _leave(self, replica_id: str) -> None:
        session = self._sessions.pop(replica_id, None)
        if session is not None:
            session.open = False
            self.cores[replica_id].left(session)

    def _arrives(self, replica_id: str, session: LocalSession, frame: Frame) -> None:
        if not session.open:
            return
        scripted = self._instead(replica_id) if frame.kind in _BEGINNINGS else None
        if isinstance(scripted, BatchReply):
            session.send(Kind.REPLY, frame.lease_id, encode_reply(scripted))
        elif scripted is not None:
            session.send(self.fault, frame.lease_id, [scripted.encode()])
        else:
            self.cores[replica_id].received(session, frame)

    def _instead(self, replica_id: str) -> BatchReply | str | None:
        scripted = self.script.pop(0) if self.script else None
        return "it is dead" if replica_id in self.dead else scripted


class StandingTenants:
    """`LiveTenants` that never change but by an operator's switch."""

    problem = None
    frozen = False
    age_s = 0.0

    def __init__(self, tenants: dict[str, Any], priorities: tuple[str, ...]) -> None:
        self._declared = {n: TenantSettings.model_validate(t) for n, t in tenants.items()}
        self._priorities = priorities
        self.operators()

    def operators(self, *hashes: str, revoked: Sequence[str] = ()) -> None:
        """Whose keys have these hashes; and which keys are revoked."""
        keys = [OperatorKeySettings.model_validate(each) for each in hashes]
        table = KeyTable(keys, revoked)
        self.current = Tenants(self._declared, self._priorities, table=table)

    def publish_frozen(self, frozen: bool) -> None:
        self.frozen = frozen

    def key_rows(self) -> list[Any]:
        return []

    def revoke(self, name: str) -> RevokedKey:
        raise ValueError(f"no key is called {name!r}")

    def refresh(self) -> bool:
        return False


class Stand:
    """`models`: name → settings as in a file; `replicas` of each; `cache_dir` for staging."""

    def __init__(
        self,
        models: dict[str, dict[str, Any]],
        cache_dir: Path,
        *,
        replicas: int = 1,
        gateway: dict[str, Any] | None = None,
        tenants: dict[str, Any] | None = None,
        runtimes: Mapping[str, Runtime] | None = None,
    ) -> None:
        self.settings = GatewaySettings.model_validate(gateway or {})
        self.tenants = StandingTenants(tenants or {}, self.settings.priorities)
        self.identity = GatewayIdentity("g0", len(self.settings.priorities))
        self.pool = FairThreadPool(2, 64)
        self.telemetry = GatewayTelemetry("gateway-0", self.settings, 0, listen=False)
        self.models = Catalogue(None, self.identity, 1 << 20, self.telemetry.batch)
        self.telemetry.watch(self.models, self.pool, self.tenants)
        self.channels: dict[str, LocalChannel] = {}
        self.books: dict[str, ReplicaDirectory] = {}
        self.removed: list[ServedModel] = []
        self._workers: list[DeviceWorker] = []
        self._group_of: dict[str, str] = {}
        self._runtimes = dict(runtimes or {})
        for name, given in models.items():
            self._serve(name, ModelSettings.model_validate(given), cache_dir, replicas)
        self.models._declared = frozenset(name for name in models if not is_canary(name))
        self.models._awaited = set()
        self.models._all_known = True
        self.telemetry.refresh()
        self.app = assembled(self.settings, self.tenants, self.models, self.pool, self.telemetry)
        self.app.external.open_regions(cache_dir)

    def _serve(self, name: str, model: ModelSettings, cache_dir: Path, replicas: int) -> None:
        channel, directory = self.channel(), ReplicaDirectory()
        parts: dict[str, ModelDescription] = {}
        for group, view in (model.views() or {"": model}).items():
            settings = describe.runtime_settings(name, view, cache_dir, lambda phase, share: None)
            for index in range(replicas):
                runtime = self._runtimes.get(name) or catalog.create(settings)
                runtime.load()
                limit_s, slots = view.replicas.hang_limit_s, view.replicas.slots
                worker = DeviceWorker(
                    runtime, slots, limits=HangLimits(limit_s), on_hang=lambda: None,
                    allow_non_finite=view.allow_non_finite,
                )  # fmt: skip
                self._workers.append(worker)
                replica_id = f"{name}-{group}-{index}" if group else f"{name}-{index}"
                channel.cores[replica_id] = ReplicaCore(worker)
                self._group_of[replica_id] = group
            parts[group], tokenizer = describe.describe(
                name, view, "digest", runtime, KnownCosts(PROFILE)
            )
        description = next(iter(parts.values()))
        if model.replicas.groups:
            after_s = {group.name: group.after_s for group in model.replicas.groups}
            longest = {group.name: group.max_length for group in model.replicas.groups}
            description, _ = combined(parts, after_s, GroupLengths.of(model.lengths, longest))
        reader = None
        if tokenizer and description.task != "tensors":
            reader = tokenizer_of(description, tokenizer, 1 << 20)
        served = ServedModel(
            _public_description(description), reader, channel, directory, self.identity,
            lambda _, record: self.telemetry.batch(name, record),
        )  # fmt: skip
        served.queue.keeps_unreached = not is_canary(name)
        served.queue.on_crossing = lambda: self.models.on_crossing()
        if self.telemetry.decisions is not None:
            served.log_decisions(self.telemetry.decisions)
        self.models._table_of(name)[name] = served
        self.models._live[name] = description
        self.channels[name], self.books[name] = channel, directory
        self.run_replicas(name, list(channel.cores))

    def channel(self) -> LocalChannel:
        """To a model's replicas."""
        return LocalChannel(self.identity.gateway)

    def run_replicas(self, name: str, ids: list[str]) -> None:
        digest = self.models._table_of(name)[name].announced.digest
        self.books[name].update(
            [RunningReplica(i, (("digest", digest), ("group", self._group_of[i]))) for i in ids]
        )

    def swap(self, name: str, **changes: Any) -> None:
        """Another version of the model goes live, on the same replicas."""
        served = self.models._served[name]
        description = replace(served.description, **changes)
        served.replace(description, served.tokenizer)
        self.models._live[name] = description
        self.run_replicas(name, list(self.channels[name].cores))

    def route(self, name: str, share: float = 1.0, shadow: float = 0.0, **more: Any) -> None:
        """So many requests for the model go to its canary, which is served already; or are copied
        there. `agreement` and `step`: of the rollout."""
        terms = RolloutTerms(agreement=more.pop("agreement", AgreementTerms()))
        step = more.pop("step", 0)
        found = RolloutRoute(1, step, canary_of(name), share, shadow, terms)
        self.models.routes = {**self.models.routes, name: found}

    def remove(self, name: str) -> None:
        """Nobody declares it any more."""
        self.removed.append(self.models._table_of(name).pop(name))
        self.removed[-1].close()

    async def waiting(self, name: str, rows: int) -> None:
        """Returns once so many rows wait. What the thread pool does before takes real time."""
        queue = self.models.queued[name].queue
        end = monotonic() + _WAIT_S
        while queue.waiting_rows != rows:
            assert monotonic() < end, f"{queue.waiting_rows} rows wait, not {rows}"
            await asyncio.sleep(0)

    async def settled(self) -> None:
        """Lets what is under way end, then sees that nothing is left."""
        cores = [core for channel in self.channels.values() for core in channel.cores.values()]
        queues = [served.queue for served in self.models.queued.values()]
        async with asyncio.timeout(5.0):
            while any(q.calls.count for q in queues) or any(  # noqa: ASYNC110 - abandoned calls
                core.inflight for core in cores
            ):
                await asyncio.sleep(0.001)
        self.assert_empty()

    def client(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=self.app)
        return httpx.AsyncClient(transport=transport, base_url="http://gateway")

    def close(self) -> None:
        self.telemetry.close()
        self.pool.close()
        for served in self.models.queued.values():
            served.close()
            served.queue.calls.close()
        for served in self.removed:
            served.queue.calls.close()
        for worker in self._workers:
            worker.close()

    def assert_empty(self) -> None:
        """Nothing waits, nothing is leased, nothing is held, and the books agree."""
        for name, served in self.models.queued.items():
            snapshot = served.queue.snapshot()
            assert served.queue.inflight == 0
            assert snapshot.waiting_rows == snapshot.leases == snapshot.drift == 0
            assert snapshot.waiting_requests == snapshot.leased_rows == snapshot.unknown_closes == 0
            assert all(core.inflight == 0 for core in self.channels[name].cores.values())


@asynccontextmanager
async def standing(*args: Any, **options: Any) -> AsyncIterator[Stand]:
    """A `Stand` that is empty at its end."""
    stand = Stand(*args, **options)
    try:
        yield stand
        await stand.settled()
    finally:
        stand.close()


@dataclass(frozen=True, slots=True)
class Answer:
    """`status` 0: the app ended without one."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def header(self, name: bytes) -> bytes | None:
        found = [value for key, value in self.headers if key == name]
        assert len(found) <= 1
        return found[0] if found else None


async def ask(
    app: Any,
    method: str,
    path: str,
    headers: Iterable[tuple[bytes, bytes]] = (),
    body: bytes | list[bytes | None] = b"",
    leave: asyncio.Event | None = None,
    *,
    pieces: bool = False,
) -> Answer:
    """One request, straight to the app. A list of bodies is chunks; None among them: no more
    comes, ever. `leave`: set to disconnect (never, without it). `pieces`: the answer may come in
    several."""
    chunks = [body] if isinstance(body, bytes) else list(body)
    parts: list[Any] = []
    never = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if not chunks or chunks[0] is None:
            await (leave or never).wait()
            return {"type": "http.disconnect"}
        chunk = chunks.pop(0)
        return {"type": "http.request", "body": chunk, "more_body": bool(chunks)}

    async def send(message: Any) -> None:
        parts.append(message)

    scope = {"type": "http", "method": method, "raw_path": path.encode(), "headers": list(headers)}
    await app(scope, receive, send)
    if not parts:
        return Answer(0, [], b"")
    head, *bodies = parts
    assert head["type"] == "http.response.start"
    assert bodies
    assert all(part["type"] == "http.response.body" for part in bodies)
    assert pieces or len(bodies) == 1
    return Answer(head["status"], head["headers"], b"".join(part["body"] for part in bodies))
