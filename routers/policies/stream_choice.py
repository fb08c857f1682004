"""Which stream replica should this row go to: the one with most room, or one that knows its prompt?

To the replica with the least predicted seconds for this row, counting only what differs between
replicas: the prompts that it has yet to read, this row's prompt included, less what it has cached
of that prompt; the delay of each output token by the other sequences that run there; and the pace
of its group; and what it costs to have its adapter there. A prefix that all replicas have cached
makes no difference between them. So the preference for a replica that knows the prompt, or has the
adapter, gives way to load by as much as that replica saves, and no more. Where prompt hashes do not
tell, the replica that served the session last is assumed to know half of the prompt.

Source: Mooncake's conductor (FAST'25), Preble's E2 (ICLR'25).
"""

from __future__ import annotations

from routers.estimates.generations import GenerationPlan, Generations
from routers.state.ready_replicas import load_of
from routers.state.replica_state import ReplicaState
from routers.state.replicas import ReplicaSet
from routers.state.rows import Row


def preferred(
    replicas: ReplicaSet,
    generations: Generations,
    row: Row,
    best: ReplicaState,
    session: str | None,
    now: float,
) -> ReplicaState:
    """The replica to use. `best`: the one that its load puts first; `session`: id of the one that
    served the row's session last, None if there is none."""
    plan, settings = row.tracked.plan, generations.settings
    if plan is None or (settings.affinity == "off" and not plan.adapter) or row.isolated:
        return best
    found, min_s = best, _seconds(generations, plan, best, session, best)
    names = _candidates(generations, plan, None if settings.affinity == "off" else session)
    if plan.adapter:
        holders = generations.adapters.holders(plan.adapter)
        if not any(_is_ready(replicas, name) for name in holders):
            holders = list(replicas.by_id)  # one of them loads it: the one that loses least by it
        names |= dict.fromkeys(holders)
    for name in names:
        replica = replicas.by_id.get(name)
        if replica is None or replica is best or not _is_ready(replicas, name):
            continue
        if row.edge > replica.group.longest:
            continue
        seconds = _seconds(generations, plan, replica, session, best)
        if seconds < min_s:
            capacity = replicas.capacity_of(replica, now, trusted=True)
            reads = capacity.reads(row, settings.long_tokens, settings.max_long_tokens)
            if replica.streams and reads and capacity.has_room(row):
                found, min_s = replica, seconds
    return found


def _is_ready(replicas: ReplicaSet, name: str) -> bool:
    replica = replicas.by_id.get(name)
    return replica is not None and not replica.unhealthy and replica in replicas.ready


def _step_s(replica: ReplicaState) -> float:
    """Seconds of an output token of a sequence that runs there alone."""
    engine = replica.group.engine
    assert engine is not None
    return engine.alone_s


def _candidates(
    generations: Generations, plan: GenerationPlan, session: str | None
) -> dict[str, None]:
    """Ids of the replicas that may know some of the prompt."""
    names = dict.fromkeys(generations.tree.matches(plan.blocks))
    if session:
        names[session] = None
    return names


def _seconds(
    generations: Generations,
    plan: GenerationPlan,
    replica: ReplicaState,
    session: str | None,
    best: ReplicaState,
) -> float:
    """Predicted seconds for this row on the replica, of the parts that differ between it and
    `best`."""
    apart_s = 0.0
    if replica.group is not best.group:
        apart_s = _step_s(replica) - _step_s(best)
    known = generations.known(
        plan, replica.spec.replica_id, session=replica.spec.replica_id == session
    )
    to_read = replica.reading + plan.prompt - known
    engine = replica.group.engine
    assert engine is not None
    delay_by_others_s = engine.delay_by_others_s(len(replica.leases), load_of(replica))
    steps = plan.output / plan.sequences
    has_s = generations.adapters.price_s(
        replica.spec.replica_id, plan.adapter, steps * engine.alone_s
    )
    return has_s + to_read * engine.prompt_s + steps * (delay_by_others_s + apart_s)
