"""How many prompt tokens has a stream replica yet to read (prefill) when a lease is sent?

The prompt of a new lease waits behind them, so its first token is predicted from their sum. Long
prompts are also counted apart. A lease's prompt counts at its replica from when it is sent until
its first token, or until the lease has closed.
"""

from __future__ import annotations

from routers.estimates.engine_speed import EngineSpeed
from routers.estimates.generations import Generations, RunningGeneration
from routers.state.replica_state import Lease

_MIN_S = 0.001  # a first token is never predicted sooner


def began(generations: Generations, lease: Lease) -> None:
    """Start the generation of a lease that was just opened: predict its cached tokens and its first
    token, and count its prompt at the replica."""
    row, replica = lease.batch.rows[0], lease.replica
    plan = row.tracked.plan
    assert plan is not None
    spec = replica.spec
    cached = generations.placed(plan, spec.replica_id, spec.capacity)
    reads = float(plan.prompt - cached)
    is_long = reads > generations.settings.long_tokens
    token_s, ahead = generations.token_s(), replica.reading
    first_s = max(_MIN_S, engine_of(lease).first_token_s(ahead + reads))
    loads = bool(plan.adapter) and generations.adapters.sent(spec.replica_id, plan.adapter)
    if loads:
        first_s += generations.adapters.load_s
    lease.generate(
        RunningGeneration(
            plan, token_s, cached, reads, ahead, is_long,
            at=lease.sent_at, first_s=first_s, loads=loads,
        )
    )  # fmt: skip


def engine_of(lease: Lease) -> EngineSpeed:
    """The engine speed of the lease's replica group, which must be one that streams."""
    engine = lease.replica.group.engine
    assert engine is not None
    return engine
