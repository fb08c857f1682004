"""How much of a replica does the lease of a request that generates occupy, and what does its flow
owe for it?

- A flow pays a lease's predicted cost when the lease is sent, and more as soon as more has been
  served. When the lease ends the flow gets back what was not served; everything, if nothing was, or
  if its replica was lost before the caller was shown anything.
- A lease occupies the tokens that its replica reports, and the room kept for output still to come.

Both follow from `Progress` events (`moved`) and from the report that closes the lease (`ended`).
The same reports teach the engine's speed, its pace and the share of prompts that is cached.
"""

from __future__ import annotations

from routers.api.events import Progress
from routers.api.requests import LeaseEnd, Tokens
from routers.estimates.generations import RunningGeneration
from routers.shared.core_state import State
from routers.shared.prompt_reading import engine_of
from routers.shared.requests import RequestTable
from routers.state.ready_replicas import load_of
from routers.state.replica_state import Lease

_FULL = 0.8  # share of a replica's room above which it counts as full
_MAX_TOKENS = 1_000_000_000  # a greater count in a report is not believed


def moved(state: State, lease: Lease, event: Progress, now: float) -> bool:
    """Take in how far a stream lease has got; whether its replica may now take more than before."""
    running, generations = lease.running, state.requests.generations
    if running is None or generations is None:
        state.leases.resize(lease, event.held)
        return True
    before, was_ejected = running.tokens, lease.replica.ejected
    tokens = _believable(event.tokens, before)
    is_first = tokens.output > 0 and running.first_at is None
    if is_first:
        _first_token(state, lease, running, tokens, now)
    elif tokens.output > before.output and running.first_at is not None:
        _further_tokens(state, lease, running, tokens, now)
    running.tokens = tokens
    _charge_served(state.requests, lease, running, tokens, now)
    served = generations.weighted(tokens) - generations.weighted(before)
    given = max(0.0, generations.weighted(event.given))
    full = _is_replica_full(state.requests, lease, counts_all=given > 0.0)
    engine_of(lease).worked(lease.replica_id, served, now, full=full, given=given)
    held, share = event.held, lease.share
    if not 0.0 <= held <= _MAX_TOKENS:  # a NaN included
        held = float(running.plan.prompt + tokens.output)
    if not tokens.output and held < running.plan.prompt:
        held = float(running.plan.prompt)  # the rest of the prompt has yet to be read
    state.leases.resize(lease, held + generations.left(running.plan, tokens.output))
    return is_first or lease.share < share or was_ejected is not lease.replica.ejected


def _first_token(
    state: State, lease: Lease, running: RunningGeneration, tokens: Tokens, now: float
) -> None:
    """The lease's first token has come: judge its replica's pace, and learn first-token times."""
    generations, engine = state.requests.generations, engine_of(lease)
    assert generations is not None
    running.first_at = running.at = now
    read = max(0, tokens.input - tokens.cached)
    replica = lease.replica
    others = replica.reading > running.reads or replica.read_at > lease.starts_at
    others = others or running.loads
    if engine.knows_first_tokens and not (running.ahead or running.is_long or others):
        _judge_pace(state, lease, lease.starts_at, engine.first_token_s(running.ahead + read), now)
    if lease.live:  # else another replica was quicker, and this time is no sample
        seconds = now - lease.sent_at
        engine.waited(lease.batch.edge, now - lease.starts_at, running.first_s)
        if not running.loads:  # else it also waited for its adapter
            engine.began(running.ahead + read, seconds)
        generations.found(running, tokens.cached, lease.replica_id)
        state.requests.arrivals.first_token(lease.replica.group, read, seconds)
    lease.has_read(now)
    if running.plan.blocks:
        running.cached = tokens.cached


def _further_tokens(
    state: State, lease: Lease, running: RunningGeneration, tokens: Tokens, now: float
) -> None:
    """Further tokens have come: judge the replica's pace, and learn its time a step."""
    more = (tokens.output - running.tokens.output) / running.plan.sequences
    if more > 0.0 and running.tokens.output:
        sequences, engine = float(len(lease.replica.leases)), engine_of(lease)
        step_s, replica = engine.step_s(sequences), lease.replica
        reads = replica.reading > 0.0 or replica.read_at > running.at
        if step_s is not None and not reads:  # while it reads prompts a step takes longer
            _judge_pace(state, lease, running.at, more * step_s, now)
        engine.stepped(sequences, (now - running.at) / more)
    running.at = now


def _judge_pace(
    state: State, lease: Lease, began_at: float, predicted_s: float, now: float
) -> None:
    """Judge the replica's pace by a wait of this lease, from `began_at` to now, against its
    prediction. An ejected replica is judged by its probes only. None is ejected while the replicas
    are too busy for copies: pace says little where prompts of all sizes wait for each other, and
    the other replicas could not take over the work."""
    replica, engine = lease.replica, engine_of(lease)
    if engine.frozen or (replica.ejected and not lease.probe):
        return
    name = lease.replica_id
    ratio = engine.pace.took(name, began_at, now, predicted_s, alone=lease.probe)
    if ratio is not None:
        replica.runs_at(engine.pace.slowdown(name))
        if state.copies.is_too_busy and not lease.probe:
            return
        state.copies.ejection.judge(replica, ratio, now)


def _charge_served(
    requests: RequestTable, lease: Lease, running: RunningGeneration, tokens: Tokens, now: float
) -> None:
    """Charge the flow for what the lease was served beyond what was paid, and tell the controllers
    of everything served since they were told last."""
    generations, batch = requests.generations, lease.unsettled_charge
    if batch is None or generations is None:
        return  # a copy that has not won: no flow pays for it
    served_s = generations.weighted(tokens) * running.token_s
    if served_s > batch.predicted_s:
        ((priority, tenant, paid_s),) = batch.charges
        requests.served.charge(priority, tenant, served_s - paid_s)
        lease.owe(served_s)
    if served_s > running.told_s:
        priority, tenant, _ = lease.batch.charges[0]
        requests.served.report((priority, tenant, served_s - running.told_s), lease.batch.rank, now)
        running.told_s = served_s


def ended(state: State, lease: Lease, end: LeaseEnd, tokens: Tokens, now: float) -> None:
    """The lease has closed: learn from its last report, and settle what its flow owes."""
    running, requests = lease.running, state.requests
    generations = requests.generations
    if running is None or generations is None:
        return
    generations.ended(running.plan, lease.replica_id)
    before = running.tokens
    has_said = tokens.input > 0 or tokens.output > 0
    tokens = _believable(tokens, before) if has_said else before
    if running.first_at is None and end is LeaseEnd.DONE:
        # No `Progress` told of the first token, so what was cached is learnt only now.
        generations.found(running, tokens.cached, lease.replica_id)
    lease.has_read(now)
    served = generations.weighted(tokens) - generations.weighted(before)
    full = _is_replica_full(requests, lease, counts_all=False)
    engine_of(lease).worked(lease.replica_id, served, now, full=full)
    if not lease.replica.leases:
        engine_of(lease).idle(lease.replica_id)
    if end is LeaseEnd.DONE and tokens.output:
        generations.answered(running.plan, tokens)
    running.tokens = tokens
    _settle(requests, lease, running, end, now)


def _settle(
    requests: RequestTable, lease: Lease, running: RunningGeneration, end: LeaseEnd, now: float
) -> None:
    """Settle the account of the lease's flow, or refund it where nothing was served."""
    if _is_raced(lease):
        return  # the other lease goes on with the request, and settles when it ends
    batch, tokens = lease.take_unsettled(), running.tokens
    if batch is None:
        return
    nothing = not (tokens.input or tokens.output)
    shown = any(row.shown for row in batch.rows) and not nothing
    refunded = end is LeaseEnd.BUSY or (end is LeaseEnd.LOST and not shown)
    if refunded or (nothing and end is LeaseEnd.ABORTED):
        requests.served.settle(batch, None, now)
        return
    if nothing:  # a replica that reports no counts: the prediction stands
        served_s = batch.predicted_s
    else:
        assert requests.generations is not None
        served_s = requests.generations.weighted(tokens) * running.token_s
    requests.served.settle_stream(batch, served_s, served_s - running.told_s, now)
    running.told_s = served_s


def _is_raced(lease: Lease) -> bool:
    """Whether another lease of the same request is open and somebody waits for it."""
    other = lease.copy or lease.copy_of
    return other is not None and other.live > 0


def _is_replica_full(requests: RequestTable, lease: Lease, *, counts_all: bool) -> bool:
    """Whether the replica is full while rows wait, so that the rate it shows is its fastest. If it
    also serves other gateways, only where `counts_all`: the rate counts their tokens too."""
    replica = lease.replica
    if replica.shared and not counts_all:
        return False
    return requests.waiting.rows > 0 and load_of(replica) > _FULL


def _believable(tokens: Tokens, before: Tokens) -> Tokens:
    """The reported counts, with any that is impossible or less than before replaced."""
    read = _count(tokens.input, before.input)
    cached = min(_count(tokens.cached, 0), read)
    return Tokens(read, cached, _count(tokens.output, before.output))


def _count(value: int, least: int) -> int:
    return value if least <= value <= _MAX_TOKENS else least
