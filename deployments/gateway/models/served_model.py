"""What does a gateway keep for one model? Its description, queue, channel and tokeniser.

A `ServedModel` lives from the model's first announcement until the model is no longer declared.

- One queue serves the replicas of all the model's groups. Whether it is a queue of batches or of
  streams, this class knows and whoever submits requests.
- One version is live, and only its replicas get work. Rows that were parsed for an earlier version
  go to them only if both versions take and give the same tensors.
- A newly announced version goes live once as many of its replicas run as of the live one. Serve
  replaces replicas a few at a time, and the first new one would otherwise get the work of all.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from deployments.contract import errors
from deployments.contract.description import (
    GatewayIdentity,
    ModelDescription,
    adapters_by_hand,
    dispatcher_settings,
)
from deployments.gateway.decisions import DecisionLog, QueueDecisions
from deployments.gateway.queues.batch_queue import BatchQueue
from deployments.gateway.queues.connections import ReplicaChannel
from deployments.gateway.queues.dispatcher_driver import VersionTerms
from deployments.gateway.queues.pending_requests import BatchRecord
from deployments.gateway.queues.pool_replicas import (
    PoolUse,
    group_of_digest,
    may_serve,
    with_pool,
)
from deployments.gateway.queues.stream_queue import StreamQueue
from deployments.gateway.recording.recorder import Recorder
from deployments.gateway.reuse.answer_reuse import AnswerReuse
from deployments.preprocess.tokenizer import TextTokenizer
from deployments.process.replica_directory import (
    JoinedDirectories,
    ReplicaDirectory,
    RunningReplica,
)
from deployments.settings.groups import POOL_GROUP
from routers.api.settings import DispatcherSettings

_CALL_MARGIN_S = 5.0  # besides what the replica may take for a batch
logger = logging.getLogger("headrace.gateway")


def terms(d: ModelDescription) -> VersionTerms:
    """The terms of the version that is described. Rows may go to either of two versions with equal
    inputs, outputs, vocabulary, image operation and labels; prompts to either of two with equal
    vocabulary and context. A batch may take as long as the batch that runs and those that this
    gateway has staged: it does not wait behind another gateway's staged batch, it is returned."""
    context = 0 if d.generating is None else d.generating.context_tokens
    signature = (
        d.inputs, d.outputs, d.lengths_input, d.lengths_axis, d.mask_input, d.optional_inputs,
        d.tokenizer_digest, d.image, d.classes, context,
    )  # fmt: skip
    s = d.scheduling
    limit_s = s.hang_limit_s * s.slots + _CALL_MARGIN_S
    return VersionTerms(d.version, signature, s.retry, limit_s, s.crashes)


class ServedModel:
    """One model at one gateway."""

    def __init__(
        self,
        description: ModelDescription,
        tokenizer: TextTokenizer | None,
        channel: ReplicaChannel,  # to the model's replicas
        directory: ReplicaDirectory | JoinedDirectories,  # lists the running replicas
        identity: GatewayIdentity,
        on_batch: Callable[[str, BatchRecord], None],  # called with (name, record) of each batch
    ) -> None:
        self._declared = description  # the live version's, as it was announced
        self.description = description  # the same, with the adapters that it has now
        self._by_hand: Mapping[str, str | None] = {}
        self.tokenizer = tokenizer
        # Called when an announced version goes live later than it was announced.
        self.on_live: Callable[[], None] = lambda: None
        # Called while none of its replicas is listed, each time that this may be news.
        self.on_unlisted: Callable[[], None] = lambda: None
        # The announced version, until it goes live.
        self._next: tuple[ModelDescription, TextTokenizer | None] | None = None
        self.channel = channel
        self._identity = identity
        self._measured = description  # as `description`, with the profiles that are in force
        self._running: tuple[RunningReplica, ...] = ()  # of all versions
        self._pool: PoolUse | None = None  # how the shared pool's last member here was used
        self._reuse: AnswerReuse | None = None
        self.queue: BatchQueue | StreamQueue
        if description.generating is not None:
            self.queue = StreamQueue(self._settings(), terms(description), channel)
        else:
            self.queue = BatchQueue(
                self._settings(),
                terms(description),
                channel,
                on_batch=lambda record: on_batch(description.name, record),
            )
            self._reuse = AnswerReuse(description, self.queue.cancel)
        self.recorder = self._recorder()
        self._stop_listening = directory.listen(self._replicas_changed)

    @property
    def batches(self) -> BatchQueue:
        """The queue. Raises BadRequest if the model generates."""
        if isinstance(self.queue, StreamQueue):
            raise errors.BadRequest(
                f"model {self.description.name} generates text; send the request to POST "
                "/v1/chat/completions, /v1/responses, /v1/messages or /v1/completions",
                param="model",
            )
        return self.queue

    @property
    def streams(self) -> StreamQueue:
        """The queue. Raises BadRequest if the model does not generate."""
        if isinstance(self.queue, BatchQueue):
            raise errors.BadRequest(
                f"model {self.description.name} does not generate text; send the request to "
                "a model that does",
                param="model",
            )
        return self.queue

    def is_like(self, description: ModelDescription) -> bool:
        """Whether the described version can be served by the same queue: both generate, or neither
        does."""
        return (description.generating is None) == (self.description.generating is None)

    @property
    def reuse(self) -> AnswerReuse | None:
        """None: the model neither keeps nor shares answers."""
        reuse = self.description.reuse
        return self._reuse if reuse.cache_bytes or reuse.coalesce else None

    @property
    def announced(self) -> ModelDescription:
        """The description of the version that was announced last, live or not yet."""
        return self._declared if self._next is None else self._next[0]

    def adapt(self, by_hand: Mapping[str, str | None]) -> None:
        """Its adapters are those that were announced, but for what operators have changed since:
        sources by name, None where one is taken out."""
        if by_hand != self._by_hand:
            self._by_hand = by_hand
            self.description = adapted(self._declared, by_hand)

    def replace(self, description: ModelDescription, tokenizer: TextTokenizer | None) -> None:
        """A new version is announced. It goes live now, or once it has enough replicas."""
        self._next = (description, tokenizer)
        if not self._go_live_if_ready():
            logger.info(
                "a new version waits for as many replicas as the live one has",
                extra={"model": description.name, "version": description.version},
            )

    def _go_live_if_ready(self) -> bool:
        """Make the announced version live if it has as many replicas as the live one; whether it
        went live."""
        if self._next is None:
            return False
        if self._count_replicas(self._next[0]) < self._count_replicas(self.description):
            return False
        description, tokenizer = self._next
        self._next = None
        self._make_live(description, tokenizer)
        return True

    def _count_replicas(self, d: ModelDescription) -> int:
        """How many replicas of the described version run. The pool's are left out: they may run any
        version."""
        digests = d.group_digests()
        own = (r for r in self._running if r.group() != POOL_GROUP)
        return sum(r.digest() == digests.get(r.group()) for r in own)

    def _make_live(self, description: ModelDescription, tokenizer: TextTokenizer | None) -> None:
        """Make a version live. What waits is queued again under its settings, or refused where its
        tensors differ."""
        known = self.description
        self._measured = with_profiles_of(self._measured, description)
        self._declared = description
        self.description = adapted(description, self._by_hand)
        self.tokenizer = tokenizer
        if self._reuse is not None:
            self._reuse.adopt(description)
        if description.recording != known.recording:
            self.end_recording()
            self.recorder = self._recorder()
        own = terms(description)
        if description.groups and (description.digest, own) == (known.digest, self.queue.terms):
            self.queue.retune(self._settings())  # the same replicas, and one more group
        else:
            self.queue.adopt(self._settings(), own)
        self._use_replicas()

    def freeze(self, frozen: bool) -> None:
        """Stop all learning in the model's core, or let it go on. What waits is kept."""
        self._identity = replace(self._identity, frozen=frozen)
        self.queue.retune(self._settings())

    @property
    def replicas(self) -> int:
        """Running replicas of the live version that can be reached."""
        return self.queue.replicas

    def log_decisions(self, log: DecisionLog) -> None:
        """From now on: what the model's dispatcher decides about each request."""
        name = self.description.name
        self.queue.decisions = QueueDecisions(log, name, self.queue.snapshot)

    def close(self) -> None:
        """The model is no longer declared: refuse what waits."""
        self._stop_listening()
        self.queue.close()
        self.end_recording()

    def _recorder(self) -> Recorder | None:
        """None: the model's settings do not ask for one."""
        recording = self.description.recording
        return None if recording is None else Recorder(recording, self._identity.gateway)

    def end_recording(self) -> None:
        """Close the recorder in a thread of its own, which writes out what was kept."""
        if self.recorder is not None:
            # Writing may wait for a disk, and the event loop must not.
            threading.Thread(target=self.recorder.close, name="record-end").start()

    def _settings(self) -> DispatcherSettings:
        settings = dispatcher_settings(self._measured, self._identity)
        return settings if self._pool is None else with_pool(settings, self._measured, self._pool)

    def _live_replicas(self) -> tuple[RunningReplica, ...]:
        """The running replicas that may serve the live version, the pool's included."""
        d, digests = self.description, self.description.group_digests()
        return tuple(
            r
            for r in self._running
            if (
                may_serve(r, d) if r.group() == POOL_GROUP else r.digest() == digests.get(r.group())
            )
        )

    def _replicas_changed(self, running: tuple[RunningReplica, ...]) -> None:
        self._running = running
        if self._go_live_if_ready():
            self.on_live()
        else:
            self._use_replicas()

    def _use_replicas(self) -> None:
        """Give the queue the replicas of the live version."""
        d, live = self.description, self._live_replicas()
        self._add_pool_group(live)
        if isinstance(self.queue, BatchQueue):
            slots = {group.name: group.slots for group in d.groups} or {"": d.scheduling.slots}
            if self._pool is not None:
                slots[POOL_GROUP] = self._pool.slots
            self.queue.set_replicas(live, slots)
        elif d.generating is not None:
            engines = {group.name: group.generating or d.generating for group in d.groups}
            if self._pool is not None:
                like = group_of_digest(d, self._pool.digest)
                engines[POOL_GROUP] = engines[like.name] if like else d.generating
            self.queue.set_replicas(live, {"": d.generating, **engines})
        if not live:
            self.on_unlisted()

    def _add_pool_group(self, live: tuple[RunningReplica, ...]) -> None:
        """List the shared pool among the model's groups, from its first member on. The group stays
        while the pool has no member, so that what was learnt of its costs is kept."""
        uses = [PoolUse.of(replica) for replica in live if replica.group() == POOL_GROUP]
        if uses and uses[-1] != self._pool:
            self._pool = uses[-1]
            self.queue.retune(self._settings())


def adapted(d: ModelDescription, by_hand: Mapping[str, str | None]) -> ModelDescription:
    """The description with the adapters changed by hand, whose digests are of their sources."""
    if d.generating is None or not by_hand:
        return d
    declared = dict(zip(d.generating.adapters, d.generating.adapter_digests, strict=True))
    found = adapters_by_hand(declared, by_hand)
    generating = replace(d.generating, adapters=tuple(found), adapter_digests=tuple(found.values()))
    return replace(d, generating=generating)


def with_profiles_of(known: ModelDescription, new: ModelDescription) -> ModelDescription:
    """The new description, with the known profiles of what has not changed. A profile that another
    replica of the same version measured says nothing new; adopting it would lose what was learnt
    since."""
    groups = {(group.name, group.digest): group.profile for group in known.groups}
    kept = tuple(
        replace(group, profile=groups.get((group.name, group.digest), group.profile))
        for group in new.groups
    )
    same = (new.digest, new.version) == (known.digest, known.version)
    return replace(new, groups=kept, profile=known.profile if same else new.profile)
