"""One model as a gateway sees it: its description, queue, channel to the replicas, tokeniser.

Lives from the model's first announcement until it is no longer declared; a new version of the same
kind replaces the description and keeps the queue, as soon as as many of its replicas run as of the
one before: Serve changes replicas few at a time, and the first new one would get the work of all.
One queue serves the replicas of all its groups. Only replicas of one version, the live one, get
work; rows that were parsed for an earlier one go to them only if both take and give the same
tensors.
Whether its queue is of batches or of streams is known here, and by those who submit to it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from deployments.contract import errors
from deployments.contract.description import GatewayIdentity, ModelDescription, dispatcher_settings
from deployments.contract.pool import PoolUse, may_serve, with_pool
from deployments.contract.preprocess.tokenizer import TextTokenizer
from deployments.contract.replica_directory import (
    JoinedDirectories,
    ReplicaDirectory,
    RunningReplica,
)
from deployments.gateway.queues.batch_queue import BatchQueue
from deployments.gateway.queues.core_loop import VersionTerms
from deployments.gateway.queues.pending_requests import BatchRecord
from deployments.gateway.queues.replica_channel import ReplicaChannel
from deployments.gateway.queues.stream_queue import StreamQueue
from deployments.gateway.recording.recorder import Recorder
from deployments.gateway.reuse.answer_reuse import AnswerReuse
from deployments.settings.groups import POOL_GROUP
from routers.api.settings import DispatcherSettings

_CALL_MARGIN_S = 5.0
logger = logging.getLogger("headrace.gateway")


def terms(d: ModelDescription) -> VersionTerms:
    """Rows of equal inputs, outputs, vocabulary, image operation and labels may go to either
    version, prompts of equal vocabulary and context. A call lasts as long as what runs and what
    this gateway has staged before it: behind another gateway's batch it is returned."""
    context = 0 if d.generating is None else d.generating.context_tokens
    signature = (
        d.inputs, d.outputs, d.lengths_input, d.lengths_axis, d.mask_input, d.optional_inputs,
        d.tokenizer_digest, d.image, d.classes, context,
    )  # fmt: skip
    s = d.scheduling
    limit_s = s.hang_limit_s * s.slots + _CALL_MARGIN_S
    return VersionTerms(d.version, signature, s.retry, limit_s, s.crashes)


class ServedModel:
    """`channel`: to the model's replicas. `on_batch(name, record)` hears of every finished batch,
    `on_live` of an announced version that goes live later than it was announced."""

    def __init__(
        self,
        description: ModelDescription,
        tokenizer: TextTokenizer | None,
        channel: ReplicaChannel,
        directory: ReplicaDirectory | JoinedDirectories,
        identity: GatewayIdentity,
        on_batch: Callable[[str, BatchRecord], None],
    ) -> None:
        self.description = description
        self.tokenizer = tokenizer
        self.on_live: Callable[[], None] = lambda: None
        self._next: tuple[ModelDescription, TextTokenizer | None] | None = None
        self.channel = channel
        self._identity = identity
        self._measured = description
        self._running: tuple[RunningReplica, ...] = ()
        self._pool: PoolUse | None = None  # of the last member that there was
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
        """Raises BadRequest of a model that generates."""
        if isinstance(self.queue, StreamQueue):
            raise errors.BadRequest(
                f"model {self.description.name} generates text; send the request to POST "
                "/v1/chat/completions or /v1/completions",
                param="model",
            )
        return self.queue

    @property
    def streams(self) -> StreamQueue:
        """Raises BadRequest of a model that does not generate."""
        if isinstance(self.queue, BatchQueue):
            raise errors.BadRequest(
                f"model {self.description.name} does not generate text; send the request to "
                "a model that does",
                param="model",
            )
        return self.queue

    def is_like(self, description: ModelDescription) -> bool:
        """Whether this may become that: both generate, or neither does."""
        return (description.generating is None) == (self.description.generating is None)

    @property
    def reuse(self) -> AnswerReuse | None:
        """None where the model neither keeps nor shares answers."""
        reuse = self.description.reuse
        return self._reuse if reuse.cache_bytes or reuse.coalesce else None

    @property
    def announced(self) -> ModelDescription:
        """The live version's, or the one's that will be."""
        return self.description if self._next is None else self._next[0]

    def replace(self, description: ModelDescription, tokenizer: TextTokenizer | None) -> None:
        """A new version is announced, of which replicas may still be missing."""
        self._next = (description, tokenizer)
        if not self._changes_over():
            logger.info(
                "a new version waits for as many replicas as the live one has",
                extra={"model": description.name, "version": description.version},
            )

    def _changes_over(self) -> bool:
        """Whether the announced version went live, for which it has enough replicas."""
        if self._next is None or self._own(self._next[0]) < self._own(self.description):
            return False
        description, tokenizer = self._next
        self._next = None
        self._make_live(description, tokenizer)
        return True

    def _own(self, d: ModelDescription) -> int:
        """Replicas of that version that run; the pool's are any version's."""
        digests = d.group_digests()
        own = (r for r in self._running if r.group() != POOL_GROUP)
        return sum(r.digest() == digests.get(r.group()) for r in own)

    def _make_live(self, description: ModelDescription, tokenizer: TextTokenizer | None) -> None:
        """What waits is queued again by the new version's settings, or refused where the version's
        tensors are others."""
        known = self.description
        self._measured = with_profiles_of(self._measured, description)
        self.description = description
        self.tokenizer = tokenizer
        if self._reuse is not None:
            self._reuse.adopt(description)
        if description.recording != known.recording:
            self.end_recording()
            self.recorder = self._recorder()
        own = terms(description)
        if description.groups and (description.digest, own) == (known.digest, self.queue.terms):
            self.queue.retune(self._settings())  # the replicas are the same: another group is up
        else:
            self.queue.adopt(self._settings(), own)
        self._use_replicas()

    def freeze(self, frozen: bool) -> None:
        """Stops all that learns in the model's core, or lets it go on; what waits stays."""
        self._identity = replace(self._identity, frozen=frozen)
        self.queue.retune(self._settings())

    @property
    def replicas(self) -> int:
        """Running replicas of the live version that can be reached."""
        return self.queue.replicas

    def close(self) -> None:
        self._stop_listening()
        self.queue.close()
        self.end_recording()

    def _recorder(self) -> Recorder | None:
        """None where the model's settings do not ask for one."""
        recording = self.description.recording
        return None if recording is None else Recorder(recording, self._identity.gateway)

    def end_recording(self) -> None:
        """What was kept is written, in a while."""
        if self.recorder is not None:
            # It may wait for a disk, the loop may not.
            threading.Thread(target=self.recorder.close, name="record-end").start()

    def _settings(self) -> DispatcherSettings:
        settings = dispatcher_settings(self._measured, self._identity)
        return settings if self._pool is None else with_pool(settings, self._measured, self._pool)

    def _live(self) -> tuple[RunningReplica, ...]:
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
        if self._changes_over():
            self.on_live()
        else:
            self._use_replicas()

    def _use_replicas(self) -> None:
        d, live = self.description, self._live()
        if isinstance(self.queue, BatchQueue):
            self._use_pool(live)
            slots = {group.name: group.slots for group in d.groups} or {"": d.scheduling.slots}
            if self._pool is not None:
                slots[POOL_GROUP] = self._pool.slots
            self.queue.set_replicas(live, slots)
        elif d.generating is not None:
            engines = {group.name: group.generating or d.generating for group in d.groups}
            self.queue.set_replicas(live, engines or {"": d.generating})

    def _use_pool(self, live: tuple[RunningReplica, ...]) -> None:
        """Lists the pool among the model's groups from its first member on: what was learnt of its
        costs stays while it has none."""
        uses = [PoolUse.of(replica) for replica in live if replica.group() == POOL_GROUP]
        if uses and uses[-1] != self._pool:
            self._pool = uses[-1]
            self.queue.retune(self._settings())


def with_profiles_of(known: ModelDescription, new: ModelDescription) -> ModelDescription:
    """The new description with the profiles that were known of what has stayed the same: one that
    another replica measured says nothing new, and would cost what has been learnt since."""
    groups = {(group.name, group.digest): group.profile for group in known.groups}
    kept = tuple(
        replace(group, profile=groups.get((group.name, group.digest), group.profile))
        for group in new.groups
    )
    same = (new.digest, new.version) == (known.digest, known.version)
    return replace(new, groups=kept, profile=known.profile if same else new.profile)
