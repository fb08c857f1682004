"""Who serves what: declared models, the leases of those that are ready, gateways' snapshots.

Entries are leases by model and generation: an anchor renews its own, and withdraws it by
compare-and-delete, so an old anchor never takes its successor's away. The highest live generation
of a model is the one that counts. A revision number grows with every change that a gateway must
hear of; renewals and progress don't change it. A registry that has just started knows nothing yet
of what was there before: until everybody has had the time to announce again, its views are not
`complete`, and what they lack means nothing. Pure state, given the time; the actor around it is in
`registry_actor.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from deployments.contract.description import ModelDescription

LEASE_S = 5.0
SNAPSHOT_KEEPS_S = 10.0
GATHERS_S = 2 * LEASE_S
_MOST_PROGRESS = 1024


@dataclass(slots=True)
class RegistryEntry:
    description: ModelDescription
    until: float


@dataclass(frozen=True, slots=True)
class ReplicaProgress:
    """How far one replica of a model has come: phase (staging … ready | failed), fraction 0..1.
    `passed`: the phases before it, so that a short one is not lost between two looks."""

    model: str
    replica: str
    phase: str
    fraction: float
    detail: str = ""
    passed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class View:
    """What a gateway routes by. `declared` includes models that are not ready, `fallbacks` names
    what stands in for such, as far as known. Not `complete`: what is here is
    true, and more may be."""

    revision: int
    models: dict[str, ModelDescription]
    declared: frozenset[str]
    draining: bool
    complete: bool = True
    fallbacks: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Registry:
    """`born_s`: when it started; times are seconds on one monotonic clock, but for `begin`'s.
    `revision` must start above all that a predecessor gave."""

    born_s: float
    revision: int = 1
    complete: bool = False
    listed: bool = False  # somebody declares the whole list: anchors add no names to it
    draining: bool = False
    declared: dict[str, int] = field(default_factory=dict)
    fallbacks: dict[str, str] = field(default_factory=dict)
    entries: dict[tuple[str, int], RegistryEntry] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    progress: dict[tuple[str, str], ReplicaProgress] = field(default_factory=dict)
    gateways: dict[str, tuple[float, dict[str, object]]] = field(default_factory=dict)
    last_generation: int = 0

    def declare(self, names: list[str]) -> None:
        """The whole list of models that ought to exist; others become unknown (404). Failures
        noted before are forgotten: what is declared now is tried anew."""
        self.declared = {name: self.declared.get(name, 0) for name in names}
        self.fallbacks = {n: to for n, to in self.fallbacks.items() if n in self.declared}
        self.progress = {
            k: p
            for k, p in self.progress.items()
            if p.model in self.declared and p.phase != "failed"
        }
        self.complete = self.listed = True
        self._changed()

    def begin(self, name: str, wall_s: float, fallback: str = "") -> int:
        """A new anchor of `name`: declares it (unless a list says it is not to be) and returns its
        generation, above all before, those of an earlier registry included: that is what the wall
        clock is for. `fallback`: who stands in until it is ready, "": nobody."""
        self.last_generation = max(self.last_generation + 1, int(wall_s * 1000))
        self._declare(name, self.last_generation)
        if name in self.declared:
            self.fallbacks[name] = fallback
        self._changed()
        return self.last_generation

    def announce(self, description: ModelDescription, tokenizer: bytes, now: float) -> None:
        if tokenizer:
            self.blobs[description.tokenizer_digest] = tokenizer
        key = (description.name, description.generation)
        self.entries[key] = RegistryEntry(description, now + LEASE_S)
        self._declare(description.name, description.generation)
        self._changed()

    def _declare(self, name: str, generation: int) -> None:
        if name in self.declared or not self.listed:
            self.declared[name] = max(self.declared.get(name, 0), generation)

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

    def sweep(self, now: float) -> bool:
        """Ends leases that ran out, and the time of gathering. True when something changed."""
        late = [key for key, entry in self.entries.items() if entry.until < now]
        for key in late:
            del self.entries[key]
        self.gateways = {
            g: (at, s) for g, (at, s) in self.gateways.items() if now - at < SNAPSHOT_KEEPS_S
        }
        gathered = not self.complete and now - self.born_s >= GATHERS_S
        self.complete = self.complete or gathered
        if late:
            self._drop_blobs()
        if late or gathered:
            self._changed()
        return bool(late) or gathered

    def drain(self, draining: bool) -> None:
        self.draining = draining
        self._changed()

    def report(self, progress: ReplicaProgress) -> None:
        self.progress[(progress.model, progress.replica)] = progress
        if len(self.progress) > _MOST_PROGRESS:
            del self.progress[next(iter(self.progress))]

    def push(self, gateway: str, snapshot: dict[str, object], now: float) -> None:
        self.gateways[gateway] = (now, snapshot)

    def view(self) -> View:
        live: dict[str, ModelDescription] = {}
        for (name, generation), entry in self.entries.items():
            if name in self.declared and (name not in live or live[name].generation < generation):
                live[name] = entry.description
        return View(
            self.revision, live, frozenset(self.declared), self.draining, self.complete,
            dict(self.fallbacks),
        )  # fmt: skip

    def _drop_blobs(self) -> None:
        used = {entry.description.tokenizer_digest for entry in self.entries.values()}
        self.blobs = {digest: blob for digest, blob in self.blobs.items() if digest in used}

    def _changed(self) -> None:
        self.revision += 1
