"""Who serves what: which models are declared, which are ready, and what each gateway last reported.

Entries are leases, by model and generation. An anchor renews its own entry and withdraws it by
compare-and-delete, so an old anchor never removes its successor's. The highest live generation of a
model counts. Only Serve's list of applications decides which models are declared. Replicas of the
shared pool report each second which models they serve; such a report is a lease too.

The revision grows with every change that gateways must hear of: not with renewals, and with
progress only if it says why a model cannot start. A registry that has just started knows nothing.
Its views are `complete` once it has Serve's list and every anchor has announced or had the time to;
until then a model that a view lacks may exist. Pure state, given the time (`registry_actor.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from deployments.contract.description import GroupDescription, ModelDescription
from deployments.contract.registry import (
    LEASE_S,
    RATES_KEEP_S,
    SILENT_S,
    SNAPSHOT_KEEPS_S,
    STARTED,
    GatewayExchange,
    GatewaySnapshot,
    ModelOutline,
    PoolMember,
    ReplicaProgress,
    View,
)
from deployments.contract.rollout.account import RolloutAccount
from deployments.contract.rollout.observations import Fit, LiveCosts
from deployments.contract.rollout.terms import RolloutTerms, canary_of, is_canary, model_of
from deployments.control.registry.rollout import Rollout, account

GATHERS_S = 2 * LEASE_S  # a new registry gives anchors this time to announce again
_MAX_PROGRESS = 1024
_SHOWN_REASON = 1000  # characters of a failure that gateways get
_MAX_SERVED = 32  # settings of a model's replicas that are remembered


@dataclass(slots=True)
class RegistryEntry:
    """What an anchor announced, and until when its lease runs."""

    description: ModelDescription
    until: float


@dataclass(slots=True)
class Registry:
    """The registry's state. Times are seconds on one monotonic clock, except where a parameter is
    called `wall_s` (seconds since the epoch)."""

    born_s: float  # when it started
    revision: int = 1  # must start above every revision that a predecessor gave
    on_change: Callable[[], None] = lambda: None  # called whenever the revision has grown
    complete: bool = False
    listed: bool = False  # Serve has said which models are `declared`
    draining: bool = False
    declared: set[str] = field(default_factory=set)
    outlines: dict[str, ModelOutline] = field(default_factory=dict)  # of declared models
    entries: dict[tuple[str, int], RegistryEntry] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)  # tokenisers, by digest
    progress: dict[tuple[str, str], ReplicaProgress] = field(default_factory=dict)
    gateways: dict[str, tuple[float, GatewaySnapshot]] = field(default_factory=dict)
    # By pool replica: until when its lease runs, and what it serves.
    pool: dict[str, tuple[float, tuple[PoolMember, ...]]] = field(default_factory=dict)
    last_generation: int = 0
    rollouts: dict[str, Rollout] = field(default_factory=dict)  # the last one of each model
    last_rollout: int = 0
    controller_ends: int = 0
    # By model, the digests of replicas' settings that have been announced, the newest last.
    served: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def declare(self, names: Collection[str], now: float) -> None:
        """Set the whole list of models that ought to exist; all others become unknown (404). A
        rollout ends with its canary."""
        news = not self.listed or self.declared != set(names)
        self.declared, self.listed = set(names), True
        self.outlines = {n: o for n, o in self.outlines.items() if n in self.declared}
        self.progress = {k: p for k, p in self.progress.items() if p.model in self.declared}
        self.served = {n: d for n, d in self.served.items() if n in self.declared}
        self.rollouts = {n: r for n, r in self.rollouts.items() if r.canary in self.declared}
        self._changed(news)
        self._complete_gathering(now)

    def forget_failures(self, names: Collection[str]) -> None:
        """Drop failed starts of models that are about to be started again."""
        kept = {
            k: p for k, p in self.progress.items() if p.model not in names or p.phase != "failed"
        }
        self._changed(len(kept) < len(self.progress))
        self.progress = kept

    def begin(self, name: str, wall_s: float, outline: ModelOutline) -> int:
        """A new anchor of `name` has started. Returns its generation, which is above all before,
        those of earlier registries included; for that the wall clock is used."""
        self.last_generation = max(self.last_generation + 1, int(wall_s * 1000))
        if self._may_exist(name):
            self.outlines[name] = outline
        self._changed()
        return self.last_generation

    def announce(self, description: ModelDescription, tokenizer: bytes, now: float) -> None:
        """Give an anchor a lease for its description. Announcing again replaces it."""
        if tokenizer:
            self.blobs[description.tokenizer_digest] = tokenizer
        key = (description.name, description.generation)
        self.entries[key] = RegistryEntry(description, now + LEASE_S)
        model, new = model_of(description.name), tuple(description.group_digests().values())
        known = (each for each in self.served.get(model, ()) if each not in new)
        self.served[model] = (*known, *new)[-_MAX_SERVED:]
        # An earlier registry gave this generation, and the clock may have been set back since.
        self.last_generation = max(self.last_generation, description.generation)
        self._changed()
        self._complete_gathering(now)

    def profile(self, name: str, digest: str) -> tuple[tuple[int, int, float], ...]:
        """The profile measured by replicas that run with these settings, of the live version or of
        its canary; () if there is none."""
        models = self.view().models
        for each in (models[n] for n in (name, canary_of(name)) if n in models):
            described: tuple[ModelDescription | GroupDescription, ...] = (each, *each.groups)
            for one in described:
                found = one.profile if one.generating is None else one.generating.profile
                if one.digest == digest and found:
                    return found
        return ()

    def live_costs(self, name: str, group: str, digest: str) -> LiveCosts | None:
        """What the costs of a group's replica with these settings are to be compared with before
        it serves. None if with nothing: no version is live, the live one has no such group, these
        settings have served before (so that a rollback is never refused), or the replica is a
        canary's, which its rollout judges."""
        live = self.view().models.get(name)
        if live is None or is_canary(name) or digest in self.served.get(name, ()):
            return None
        if live.main_group is None:
            return None if group else LiveCosts(live.profile, self._fits(name))
        profile = next((each.profile for each in live.groups if each.name == group), None)
        if profile is None:
            return None
        main = group == live.main_group.name  # which gateways say the fit of
        return LiveCosts(profile, self._fits(name) if main else ())

    def _fits(self, name: str) -> tuple[Fit, ...]:
        said = (snapshot.models.get(name) for _, snapshot in self.gateways.values())
        return tuple(each.cost_fit for each in said if each is not None and each.cost_fit)

    def serves(self, name: str) -> bool:
        """Whether an anchor of any generation has announced it and its lease still runs."""
        return any(each == name for each, _ in self.entries)

    def loading_beside(self, name: str, digest: str) -> int:
        """Number of replicas with these settings that load while another version is live; 0 if no
        version is live, or the live one has these settings."""
        live = self.view().models.get(name)
        if live is None or digest in live.group_digests().values():
            return 0
        told = [p for p in self.progress.values() if (p.model, p.digest) == (name, digest)]
        return sum(p.phase not in STARTED for p in told)

    def _may_exist(self, name: str) -> bool:
        """Whether the model is declared; until Serve's list is known, any may be."""
        return name in self.declared or not self.listed

    def _complete_gathering(self, now: float) -> None:
        """Set `complete` once Serve's list is known and all have announced or had the time to."""
        if not self.complete and self.listed:
            announced = {name for name, _ in self.entries}
            self.complete = self.declared <= announced or now - self.born_s >= GATHERS_S
            self._changed(self.complete)

    def renew(self, name: str, generation: int, now: float) -> bool:
        """Renew a lease. False if it is unknown (it ran out, or the registry restarted): the anchor
        must announce again."""
        entry = self.entries.get((name, generation))
        if entry is None:
            return False
        entry.until = now + LEASE_S
        return True

    def withdraw(self, name: str, generation: int) -> bool:
        """Delete the lease of exactly this generation. Returns whether there was one."""
        if self.entries.pop((name, generation), None) is None:
            return False
        self._drop_blobs()
        self._changed()
        return True

    def hold(self, replica: str, members: tuple[PoolMember, ...], now: float) -> None:
        """Take in all that a pool replica serves; without members the replica is leaving."""
        _, known = self.pool.pop(replica, (now, ()))
        if members:
            self.pool[replica] = (now + LEASE_S, members)
        self._changed(members != known)

    def sweep(self, now: float) -> None:
        """End leases that have run out, and the time of gathering."""
        late = [key for key, entry in self.entries.items() if entry.until < now]
        for key in late:
            del self.entries[key]
        silent = [replica for replica, (until, _) in self.pool.items() if until < now]
        for replica in silent:
            del self.pool[replica]
        self.gateways = {
            g: (at, s) for g, (at, s) in self.gateways.items() if now - at < SNAPSHOT_KEEPS_S
        }
        self._drop_blobs()
        self._changed(bool(late or silent))
        self._complete_gathering(now)

    def controller_ended(self) -> None:
        """Serve's controller hung and was killed. Gateways export the count as a metric."""
        self.controller_ends += 1
        self._changed()

    def drain(self, draining: bool) -> None:
        self.draining = draining
        self._changed()

    def report(self, progress: ReplicaProgress) -> None:
        """Take in a replica's progress. Beyond `_MAX_PROGRESS` the oldest report is dropped."""
        before = failures(self.progress.values()).get(progress.model)
        self.progress.pop((progress.model, progress.replica), None)  # so that the newest is last
        self.progress[(progress.model, progress.replica)] = progress
        if len(self.progress) > _MAX_PROGRESS:
            del self.progress[next(iter(self.progress))]
        self._changed(before != failures(self.progress.values()).get(progress.model))

    def silent_gateways(self, now: float) -> dict[str, float]:
        """Gateways that have missed several pushes, and how long ago each was seen: they may have
        ended."""
        ages = {name: now - at for name, (at, _) in self.gateways.items()}
        return {name: age_s for name, age_s in ages.items() if age_s > SILENT_S}

    def push(self, gateway: str, snapshot: GatewaySnapshot, now: float) -> GatewayExchange:
        """Take in a gateway's snapshot. Returns what the other gateways said last."""
        self.gateways[gateway] = (now, snapshot)
        others = [(name, *each) for name, each in self.gateways.items() if name != gateway]
        return GatewayExchange(
            {name: said.rates for name, at, said in others if now - at < RATES_KEEP_S},
            {name: said.crashes for name, at, said in others if now - at < SNAPSHOT_KEEPS_S},
        )

    def begin_rollout(self, model: str, terms: RolloutTerms, wall_s: float, now: float) -> int:
        """Begin a rollout of the model's declared canary; one that is under way goes on. Returns
        its number, which is above all earlier ones, across restarts too; for that the wall clock is
        used."""
        known = self.rollouts.get(model)
        if known is not None and not known.ended:
            return known.number
        self.last_rollout = max(self.last_rollout + 1, int(wall_s * 1000))
        self.rollouts[model] = Rollout(model, self.last_rollout, terms, now)
        return self.last_rollout

    def look_at_rollouts(self, now: float) -> None:
        """Decide what is due in each rollout, once views are complete."""
        if self.rollouts and self.complete:
            models = self.view().models
            said = [each for _, told in self.gateways.values() for each in told.rollouts]
            for name, rollout in self.rollouts.items():
                self._changed(rollout.look(now, models.get(name), models.get(rollout.canary), said))

    def promote(self, model: str, now: float) -> bool:
        """False if the model has no undecided rollout."""
        return model in self.rollouts and self._changed(self.rollouts[model].promote(now))

    def finish_rollout(self, model: str) -> bool:
        """False if the model is not being promoted."""
        return model in self.rollouts and self._changed(self.rollouts[model].finish())

    def abort_rollout(self, model: str, why: str) -> bool:
        """False if no rollout of the model is under way."""
        return model in self.rollouts and self._changed(self.rollouts[model].abort(why))

    def rollout_accounts(self, now: float) -> list[RolloutAccount]:
        models = self.view().models
        return [
            account(rollout, now, models.get(name), models.get(rollout.canary))
            for name, rollout in sorted(self.rollouts.items())
        ]

    def _changed(self, changed: bool = True) -> bool:
        """Gateways must hear of a change, if there is one. Returns `changed`."""
        if changed:
            self.revision += 1
            self.on_change()
        return changed

    def view(self) -> View:
        """What gateways route by now."""
        live: dict[str, ModelDescription] = {}
        for (name, generation), entry in self.entries.items():
            if self._may_exist(name) and (name not in live or live[name].generation < generation):
                live[name] = entry.description
        pool: dict[str, tuple[PoolMember, ...]] = {}
        for member in (each for _, members in self.pool.values() for each in members):
            pool[member.model] = (*pool.get(member.model, ()), member)
        return View(
            self.revision,
            live,
            frozenset(self.declared) | live.keys() | self.outlines.keys(),
            self.draining,
            self.complete,
            {name: outline.fallback for name, outline in self.outlines.items()},
            pool,
            frozenset(name for name, outline in self.outlines.items() if outline.optional)
            | {name for name in self.declared if is_canary(name)},
            {name: route for name, each in self.rollouts.items() if (route := each.route)},
            self.controller_ends,
            failures(self.progress.values()),
            self._aliases(live),
            {name: each.task for name, each in self.outlines.items() if not is_canary(name)},
        )

    def _aliases(self, live: Mapping[str, ModelDescription]) -> dict[str, str]:
        """Other names of models, to their own: as soon as one is begun, and as long as it is live,
        also for a registry that was not there when it was begun."""
        said = [(name, outline.aliases) for name, outline in self.outlines.items()]
        said += [(name, description.aliases) for name, description in live.items()]
        return {alias: name for name, many in said if not is_canary(name) for alias in many}

    def _drop_blobs(self) -> None:
        used = {entry.description.tokenizer_digest for entry in self.entries.values()}
        self.blobs = {digest: blob for digest, blob in self.blobs.items() if digest in used}


def failures(progress: Iterable[ReplicaProgress]) -> dict[str, str]:
    """Why each model cannot start whose latest start that is over failed. The newest report is the
    last."""
    ended = {each.model: each for each in progress if each.phase in STARTED}
    return {
        name: each.detail[:_SHOWN_REASON] for name, each in ended.items() if each.phase == "failed"
    }
