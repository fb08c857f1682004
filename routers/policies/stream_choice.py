"""Which stream replica should this row go to, the one with most room or one that knows its prompt?

To whichever is predicted to have its first token soonest, in seconds: the prompts it has yet to
read, this one's among them less what it knows of it, and what one more sequence beside all that run
there, and its group's own pace, cost this row until its end. What all replicas know (a prompt that
everybody begins with) makes no difference between them. So a preference gives way to load by as
much as it saves and no more. A session's last replica is taken to know half of the prompt, where
hashes do not tell.

Source: Mooncake's conductor (FAST'25), Preble's E2 (ICLR'25).
"""

from __future__ import annotations

from collections.abc import Iterable

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
    """`best`: the one that is asked first by its load; `session`: the one that served the row's
    session last, None: none did."""
    plan, settings = row.tracked.plan, generations.settings
    if plan is None or settings.affinity == "off" or row.retried:
        return best
    found, least_s = best, _seconds(generations, plan, best, session, best)
    for name in _names(generations, plan, session):
        replica = replicas.by_id.get(name)
        if replica is None or replica is best or replica.unhealthy or replica not in replicas.ready:
            continue
        seconds = _seconds(generations, plan, replica, session, best)
        if seconds < least_s:
            capacity = replicas.capacity_of(replica, now, trusted=True)
            reads = capacity.reads(row, settings.long_tokens, settings.max_long_tokens)
            if replica.streams and reads and capacity.has_room(row):
                found, least_s = replica, seconds
    return found


def _step_s(replica: ReplicaState) -> float:
    """Seconds of an output token of a sequence that runs there alone."""
    engine = replica.group.engine
    assert engine is not None
    return engine.alone_s


def _names(generations: Generations, plan: GenerationPlan, session: str | None) -> Iterable[str]:
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
    """Of the replica, for the parts that differ between it and `best`."""
    apart_s = 0.0
    if replica.group is not best.group:
        apart_s = _step_s(replica) - _step_s(best)
    known = generations.known(
        plan, replica.spec.replica_id, session=replica.spec.replica_id == session
    )
    to_read = replica.reading + plan.prompt - known
    engine = replica.group.engine
    assert engine is not None
    company_s = engine.company_s(len(replica.leases), load_of(replica))
    return to_read * engine.prompt_s + plan.output / plan.sequences * (company_s + apart_s)
