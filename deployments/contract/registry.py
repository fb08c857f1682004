"""Who serves what: declared models, the leases of those that are ready, gateways' snapshots.

Entries are leases by model and generation: an anchor renews its own, and withdraws it by
compare-and-delete, so an old anchor never takes its successor's away. The highest live generation
of a model is the one that counts. Which models are declared is Serve's list of applications and
nobody else's. A revision number grows with every change that a gateway must hear of; renewals and
progress don't change it. A registry that has just started knows nothing yet of what was there
before: until it has heard Serve's list, and everybody has had the time to announce again, its views
are not `complete`, and what they lack means nothing. Replicas of the shared pool say each second
which models they serve; that is a lease too. Pure state, given the time; the actor around
it is in `registry_actor.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from deployments.contract.description import ModelDescription
from deployments.contract.pool import PoolMember
from deployments.contract.rollout.account import RolloutAccount
from deployments.contract.rollout.observations import Observations
from deployments.contract.rollout.rollout import RolloutRoute
from deployments.contract.rollout.rollouts import Rollouts
from deployments.contract.rollout.terms import RolloutTerms, canary_of, is_canary

ANSWER_S = 5.0
"""Whoever asks the registry waits no longer: it may hang without being dead."""
LEASE_S = 5.0
SNAPSHOT_KEEPS_S = 10.0
GATHERS_S = 2 * LEASE_S
_MOST_PROGRESS = 1024
RATES, CRASHES = "rates", "crashes"
EXCHANGED = (RATES, CRASHES)
"""Of a gateway's snapshot, what the others hear: its tenants' rates, inputs that end replicas."""


@dataclass(slots=True)
class RegistryEntry:
    description: ModelDescription
    until: float


@dataclass(slots=True)
class PoolEntry:
    members: tuple[PoolMember, ...]
    until: float


@dataclass(frozen=True, slots=True)
class ModelOutline:
    """What is known of a model before any replica of it is ready. `fallback`: who stands in until
    then, "": nobody. `runtime`: as in its settings. `optional`: nothing waits for it."""

    fallback: str = ""
    runtime: str = ""
    optional: bool = False


STARTED = ("ready", "failed")  # phases of a start that is over


@dataclass(frozen=True, slots=True)
class ReplicaProgress:
    """How far one replica of a model has come: phase (staging … ready | failed), fraction 0..1.
    `passed`: the phases before it, so that a short one is not lost between two looks. `spent`: the
    seconds of each of them, in the same order; the first is the process, from its beginning until
    the replica's own code runs. `digest`: of the settings it was started with."""

    model: str
    replica: str
    phase: str
    fraction: float
    detail: str = ""
    passed: tuple[str, ...] = ()
    spent: tuple[tuple[str, float], ...] = ()
    digest: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """What a gateway routes by. `declared` includes models that are not ready, `fallbacks` names
    what stands in for such, as far as known, `optional` those that nobody waits for. `pool`: who
    serves a model in the shared pool, `rollouts` what goes to a model's canary; canaries are among
    `models` by names of their own. Not `complete`: what is here is true, and more may be.
    controller_ends: how often this registry has ended Serve's controller."""

    revision: int
    models: dict[str, ModelDescription]
    declared: frozenset[str]
    draining: bool
    complete: bool = True
    fallbacks: dict[str, str] = field(default_factory=dict)
    pool: dict[str, tuple[PoolMember, ...]] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    rollouts: dict[str, RolloutRoute] = field(default_factory=dict)
    controller_ends: int = 0


@dataclass(slots=True)
class Registry:
    """`born_s`: when it started; times are seconds on one monotonic clock, but for `begin`'s.
    `revision` must start above all that a predecessor gave. listed: whether Serve has said which
    models are `declared`. outlines: by model, for as long as it is declared. pool: by pool
    replica."""

    born_s: float
    revision: int = 1
    complete: bool = False
    listed: bool = False
    draining: bool = False
    declared: set[str] = field(default_factory=set)
    outlines: dict[str, ModelOutline] = field(default_factory=dict)
    entries: dict[tuple[str, int], RegistryEntry] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    progress: dict[tuple[str, str], ReplicaProgress] = field(default_factory=dict)
    gateways: dict[str, tuple[float, dict[str, object]]] = field(default_factory=dict)
    pool: dict[str, PoolEntry] = field(default_factory=dict)
    last_generation: int = 0
    rollouts: Rollouts = field(default_factory=Rollouts)
    controller_ends: int = 0

    def declare(self, names: Collection[str], now: float) -> bool:
        """The whole list of models that ought to exist; others become unknown (404). Whether
        gateways must hear of it."""
        changed = not self.listed or self.declared != set(names)
        self.declared, self.listed = set(names), True
        self.outlines = {n: o for n, o in self.outlines.items() if n in self.declared}
        self.progress = {k: p for k, p in self.progress.items() if p.model in self.declared}
        self.rollouts.declare(self.declared)
        changed |= self._gather(now)
        if changed:
            self._changed()
        return changed

    def forget_failures(self, names: Collection[str]) -> None:
        """Of models that are about to be tried anew."""
        self.progress = {
            k: p for k, p in self.progress.items() if p.model not in names or p.phase != "failed"
        }

    def begin(self, name: str, wall_s: float, outline: ModelOutline) -> int:
        """A new anchor of `name`: returns its generation, above all before, those of an earlier
        registry included: that is what the wall clock is for."""
        self.last_generation = max(self.last_generation + 1, int(wall_s * 1000))
        if self._may_be(name):
            self.outlines[name] = outline
        self._changed()
        return self.last_generation

    def announce(self, description: ModelDescription, tokenizer: bytes, now: float) -> None:
        if tokenizer:
            self.blobs[description.tokenizer_digest] = tokenizer
        key = (description.name, description.generation)
        self.entries[key] = RegistryEntry(description, now + LEASE_S)
        # The clock may have been set back since an earlier registry gave this one.
        self.last_generation = max(self.last_generation, description.generation)
        self._gather(now)
        self._changed()

    def profile(self, name: str, digest: str) -> tuple[tuple[int, int, float], ...]:
        """What replicas that run with these settings have measured, of the live version or of its
        canary; () where there are none, or they did not."""
        models = self.view().models
        known = (models[each] for each in (name, canary_of(name)) if each in models)
        return next((found for each in known if (found := _profile(each, digest))), ())

    def serves(self, name: str) -> bool:
        """Whether an anchor of any generation has announced it and has not gone."""
        return any(each == name for each, _ in self.entries)

    def loading_beside(self, name: str, digest: str) -> int:
        """Replicas started with these settings that load, while another version is live; 0 where
        none is, or this one."""
        live = self.view().models.get(name)
        if live is None or digest in live.group_digests().values():
            return 0
        told = [p for p in self.progress.values() if (p.model, p.digest) == (name, digest)]
        return sum(p.phase not in STARTED for p in told)

    def _may_be(self, name: str) -> bool:
        """Whether a model is declared, or may be: until Serve's list is known, whoever is there."""
        return name in self.declared or not self.listed

    def _gather(self, now: float) -> bool:
        """Whether views become complete now: Serve's list is known, and all have announced or had
        the time to."""
        if self.complete or not self.listed:
            return False
        announced = {name for name, _ in self.entries}
        self.complete = self.declared <= announced or now - self.born_s >= GATHERS_S
        return self.complete

    def renew(self, name: str, generation: int, now: float) -> bool:
        """False when the lease is unknown (expired, or the registry restarted): announce again."""
        entry = self.entries.get((name, generation))
        if entry is None:
            return False
        entry.until = now + LEASE_S
        return True

    def withdraw(self, name: str, generation: int) -> bool:
        """Compare-and-delete: only this very generation goes."""
        if self.entries.pop((name, generation), None) is None:
            return False
        self._drop_blobs()
        self._changed()
        return True

    def hold(self, replica: str, members: tuple[PoolMember, ...], now: float) -> bool:
        """All that a pool replica serves; none: it goes. Whether gateways must hear of it."""
        known = self.pool.pop(replica, None)
        if members:
            self.pool[replica] = PoolEntry(members, now + LEASE_S)
        changed = members != (known.members if known else ())
        if changed:
            self._changed()
        return changed

    def sweep(self, now: float) -> bool:
        """Ends leases that ran out, and the time of gathering. True when something changed."""
        late = [key for key, entry in self.entries.items() if entry.until < now]
        for key in late:
            del self.entries[key]
        silent = [replica for replica, entry in self.pool.items() if entry.until < now]
        for replica in silent:
            del self.pool[replica]
        self.gateways = {
            g: (at, s) for g, (at, s) in self.gateways.items() if now - at < SNAPSHOT_KEEPS_S
        }
        gathered = self._gather(now)
        if late:
            self._drop_blobs()
        changed = bool(late or silent or gathered)
        if changed:
            self._changed()
        return changed

    def controller_ended(self) -> None:
        """Serve's, because it hung; gateways count it where they are scraped."""
        self.controller_ends += 1
        self._changed()

    def drain(self, draining: bool) -> None:
        self.draining = draining
        self._changed()

    def report(self, progress: ReplicaProgress) -> None:
        self.progress.pop((progress.model, progress.replica), None)  # the last one told is last
        self.progress[(progress.model, progress.replica)] = progress
        if len(self.progress) > _MOST_PROGRESS:
            del self.progress[next(iter(self.progress))]

    def push(
        self, gateway: str, snapshot: dict[str, object], now: float
    ) -> dict[str, dict[str, object]]:
        """What the other gateways have said last of each of `EXCHANGED`, by gateway."""
        self.gateways[gateway] = (now, snapshot)
        others = {name: said for name, (_, said) in self.gateways.items() if name != gateway}
        return {
            what: {name: said[what] for name, said in others.items() if what in said}
            for what in EXCHANGED
        }

    def begin_rollout(self, model: str, terms: RolloutTerms, wall_s: float, now: float) -> int:
        """Of the canary that is declared; its number."""
        return self.rollouts.begin(model, terms, wall_s, now)

    def look_at_rollouts(self, now: float) -> bool:
        """Decides what is to be decided, once everybody has had the time to announce. Whether
        gateways must hear of it."""
        if not self.rollouts.by_model or not self.complete:
            return False
        return self._decided(self.rollouts.look(now, self.view().models, self._observations()))

    def promote(self, model: str, now: float) -> bool:
        return self._decided(self.rollouts.promote(model, now))

    def finish_rollout(self, model: str) -> bool:
        return self._decided(self.rollouts.finish(model))

    def abort_rollout(self, model: str, why: str) -> bool:
        return self._decided(self.rollouts.abort(model, why))

    def rollout_accounts(self, now: float) -> list[RolloutAccount]:
        return self.rollouts.accounts(now, self.view().models)

    def _decided(self, changed: bool) -> bool:
        if changed:
            self._changed()
        return changed

    def _observations(self) -> list[Observations]:
        """What each gateway has said last."""
        return [each for _, said in self.gateways.values() for each in _rollouts_of(said)]

    def view(self) -> View:
        live: dict[str, ModelDescription] = {}
        for (name, generation), entry in self.entries.items():
            if self._may_be(name) and (name not in live or live[name].generation < generation):
                live[name] = entry.description
        return View(
            self.revision,
            live,
            frozenset(self.declared) | live.keys() | self.outlines.keys(),
            self.draining,
            self.complete,
            {name: outline.fallback for name, outline in self.outlines.items()},
            self._pool_members(),
            frozenset(name for name, outline in self.outlines.items() if outline.optional)
            | {name for name in self.declared if is_canary(name)},
            self.rollouts.routes(),
            self.controller_ends,
        )

    def _pool_members(self) -> dict[str, tuple[PoolMember, ...]]:
        found: dict[str, tuple[PoolMember, ...]] = {}
        for entry in self.pool.values():
            for member in entry.members:
                found[member.model] = (*found.get(member.model, ()), member)
        return found

    def _drop_blobs(self) -> None:
        used = {entry.description.tokenizer_digest for entry in self.entries.values()}
        self.blobs = {digest: blob for digest, blob in self.blobs.items() if digest in used}

    def _changed(self) -> None:
        self.revision += 1


def _rollouts_of(snapshot: dict[str, object]) -> list[Observations]:
    said = snapshot.get("rollouts", ())
    assert isinstance(said, list | tuple)
    return [each for each in said if isinstance(each, Observations)]


def _profile(d: ModelDescription, digest: str) -> tuple[tuple[int, int, float], ...]:
    profiles = {group.digest: group.profile for group in d.groups}
    return {d.digest: d.profile, **profiles}.get(digest, ())
