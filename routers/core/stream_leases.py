"""The lease of a request that generates: what it occupies, and what its flow owes.

A flow pays for a lease's predicted cost when it is sent, for more as soon as more has been served,
and gets back what was not served when it ends; nothing where nothing was. What a lease occupies is
what its replica says, with the room that is kept for what is still to come. Prompts that are being
read are counted by replica, long ones apart: the next prompt waits behind them. All of it is told
by `Progress` and by the report that closes the lease.
"""

from __future__ import annotations

from routers.api.events import Progress
from routers.api.requests import LeaseEnd, Tokens
from routers.core.core_state import State
from routers.core.prompt_reading import engine_of
from routers.core.request_table import RequestTable
from routers.estimates.generations import RunningGeneration
from routers.state.ready_replicas import load_of
from routers.state.replica_state import Lease

_FULL = 0.8  # of a replica's room
_MOST_TOKENS = 1_000_000_000


def moved(state: State, lease: Lease, event: Progress, now: float) -> bool:
    """Take in how far it is; whether its replica may be able to take more than before."""
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
        _stepped(state, lease, running, tokens, now)
    running.tokens = tokens
    _pay(state.requests, lease, running, tokens, now)
    served = generations.weighted(tokens) - generations.weighted(before)
    given = max(0.0, generations.weighted(event.given))
    full = _is_full(state.requests, lease, counts_all=given > 0.0)
    engine_of(lease).worked(lease.replica_id, served, now, full=full, given=given)
    held, share = event.held, lease.share
    if not 0.0 <= held <= _MOST_TOKENS:  # of a NaN neither is true
        held = float(running.plan.prompt + tokens.output)
    if not tokens.output and held < running.plan.prompt:
        held = float(running.plan.prompt)  # the rest of it has yet to be read
    state.leases.resize(lease, held + generations.left(running.plan, tokens.output))
    return is_first or lease.share < share or was_ejected is not lease.replica.ejected


def _first_token(
    state: State, lease: Lease, running: RunningGeneration, tokens: Tokens, now: float
) -> None:
    generations, engine = state.requests.generations, engine_of(lease)
    assert generations is not None
    running.first_at = running.at = now
    read = max(0, tokens.input - tokens.cached)
    replica = lease.replica
    others = replica.reading > running.reads or replica.read_at > lease.starts_at
    if engine.knows_first_tokens and not (running.ahead or running.is_long or others):
        _judge(state, lease, lease.starts_at, engine.first_token_s(running.ahead + read), now)
    if lease.live:  # else another replica was quicker: nobody waited for this one
        seconds = now - lease.sent_at
        engine.waited(lease.batch.edge, now - lease.starts_at, running.first_s)
        engine.began(running.ahead + read, seconds)
        generations.found(running.cached, tokens.cached)
        state.requests.arrivals.first_token(lease.replica.group, read, seconds)
    lease.has_read(now)
    if running.plan.blocks:
        running.cached = tokens.cached


def _stepped(
    state: State, lease: Lease, running: RunningGeneration, tokens: Tokens, now: float
) -> None:
    more = (tokens.output - running.tokens.output) / running.plan.sequences
    if more > 0.0 and running.tokens.output:
        sequences, engine = float(len(lease.replica.leases)), engine_of(lease)
        step_s, replica = engine.step_s(sequences), lease.replica
        reads = replica.reading > 0.0 or replica.read_at > running.at
        if step_s is not None and not reads:  # else it had more to do than these tokens
            _judge(state, lease, running.at, more * step_s, now)
        engine.stepped(sequences, (now - running.at) / more)
    running.at = now


def _judge(state: State, lease: Lease, began_at: float, predicted_s: float, now: float) -> None:
    """What a wait of this lease says of its replica's pace. One that is ejected is judged by its
    probes. None is ejected while all are so busy that nothing is copied: where prompts of all sizes
    wait for each other pace says little, and the others could not do its work."""
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


def _pay(
    requests: RequestTable, lease: Lease, running: RunningGeneration, tokens: Tokens, now: float
) -> None:
    """What it has had beyond what its flow has paid; the controllers hear of all of it."""
    generations, batch = requests.generations, lease.owes
    if batch is None or generations is None:
        return  # a copy that has not won, which nobody pays for
    served_s = generations.weighted(tokens) * running.token_s
    if served_s > batch.predicted_s:
        ((priority, tenant, paid_s),) = batch.charges
        requests.served.charge(priority, tenant, served_s - paid_s)
        lease.owe(served_s)
    if served_s > running.told_s:
        priority, tenant, _ = lease.batch.charges[0]
        requests.served.tell((priority, tenant, served_s - running.told_s), lease.batch.rank, now)
        running.told_s = served_s


def ended(state: State, lease: Lease, end: LeaseEnd, tokens: Tokens, now: float) -> None:
    """The lease has closed: settles what its flow owes, and learns."""
    running, requests = lease.running, state.requests
    generations = requests.generations
    if running is None or generations is None:
        return
    before = running.tokens
    has_said = tokens.input > 0 or tokens.output > 0
    tokens = _believable(tokens, before) if has_said else before
    if running.first_at is None and end is LeaseEnd.DONE:
        generations.found(running.cached, tokens.cached)  # when its first token came nobody said
    lease.has_read(now)
    served = generations.weighted(tokens) - generations.weighted(before)
    full = _is_full(requests, lease, counts_all=False)
    engine_of(lease).worked(lease.replica_id, served, now, full=full)
    if not lease.replica.leases:
        engine_of(lease).idle(lease.replica_id)
    if end is LeaseEnd.DONE and tokens.output:
        generations.answered(running.plan, tokens.output)
    running.tokens = tokens
    _settle(requests, lease, running, end, now)


def _settle(
    requests: RequestTable, lease: Lease, running: RunningGeneration, end: LeaseEnd, now: float
) -> None:
    if _races(lease):
        return  # what races it goes on with the request, and settles
    batch, tokens = lease.take_owed(), running.tokens
    if batch is None:
        return
    nothing = not (tokens.input or tokens.output)
    if end in (LeaseEnd.BUSY, LeaseEnd.LOST) or (nothing and end is LeaseEnd.ABORTED):
        requests.served.settle(batch, None, now)
        return
    if nothing:  # its replica counts nothing: what was predicted stands
        served_s = batch.predicted_s
    else:
        assert requests.generations is not None
        served_s = requests.generations.weighted(tokens) * running.token_s
    requests.served.settle_stream(batch, served_s, served_s - running.told_s, now)
    running.told_s = served_s


def _races(lease: Lease) -> bool:
    """Whether another lease of the same request is under way."""
    other = lease.copy or lease.copy_of
    return other is not None and other.live > 0


def _is_full(requests: RequestTable, lease: Lease, *, counts_all: bool) -> bool:
    """Whether its replica works as fast as it can, and for us, unless what it does for all is
    counted: what waits, waits for room there."""
    replica = lease.replica
    if replica.shared and not counts_all:
        return False
    return requests.waiting.rows > 0 and load_of(replica) > _FULL


def _believable(tokens: Tokens, before: Tokens) -> Tokens:
    """Counts that never go back, and are counts."""
    read = _count(tokens.input, before.input)
    cached = min(_count(tokens.cached, 0), read)
    return Tokens(read, cached, _count(tokens.output, before.output))


def _count(value: int, least: int) -> int:
    return value if least <= value <= _MOST_TOKENS else least
