"""What does a request ask of a queue besides its rows, and may its tenant ask for so much?

The same for every kind of request: time already spent is gone from its budgets, a session is its
tenant's own, lengths are held against the tenant's bounds. Seconds and tokens.
"""

from __future__ import annotations

from time import perf_counter

from deployments.contract import errors
from deployments.contract.description import Scheduling
from deployments.gateway.queues.tickets import Demand
from deployments.gateway.request_context import RequestContext
from deployments.gateway.tenancy.tenants import Caller

_LONGEST_SESSION = 128  # as of `x-session-id`; a gateway remembers many


def demand_of(flight: RequestContext, promise: Scheduling, session: str = "") -> Demand:
    """Some of a request's time has passed since its headers arrived. `session`: where its headers
    name none."""
    assert flight.who is not None
    tenant, asked = flight.who.tenant, flight.asked
    spent_s, budget_s = perf_counter() - flight.exchange.arrived, asked.budget_s
    session = asked.session or (session if len(session) <= _LONGEST_SESSION else "")
    due_s = promise.slo_s if budget_s is None else budget_s
    if promise.core.generation is not None and budget_s is not None:
        due_s = min(promise.slo_s, budget_s)  # its first token is due before all of its answer
    return Demand(
        tenant=tenant.name,
        priority=flight.who.rank,
        deadline_s=due_s - spent_s,
        expires_s=(promise.timeout_s if budget_s is None else budget_s) - spent_s,
        weight=tenant.weight,
        tenant_rows=tenant.max_queue_rows,
        # Sessions of different tenants are different, whatever their callers name them.
        session=f"{tenant.name}/{session}" if session else "",
        repeatable=asked.repeatable,
    )


def check_own_bounds(who: Caller, lengths: tuple[int, ...]) -> None:
    """Raises BadRequest for what is over the tenant's own limits."""
    bound, most = who.tenant.max_length, who.tenant.max_queue_rows
    if most and len(lengths) > most:
        raise errors.BadRequest(
            f"the request has {len(lengths)} rows; this tenant's may be {most} (max_queue_rows)"
        )
    if bound is not None and max(lengths) > bound:
        raise errors.BadRequest(
            f"a row is {max(lengths)} long; this tenant's rows may be {bound} at most (max_length)"
        )
