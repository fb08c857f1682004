"""Any events keep both schedulers' promises: nothing lost or answered twice, order, limits, time.

The machine keeps its own plain model of what each row is (waiting or leased) and judges every
action by it; the dispatcher's own invariants are checked after each step as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from routers.api.actions import Abort, Dispatch, Evict, Reject, WakeAt
from routers.api.events import (
    Arrive,
    Cancel,
    Closed,
    Heard,
    Opened,
    Progress,
    Reconfigure,
    Replicas,
    Tick,
)
from routers.api.requests import (
    Generation,
    LeaseEnd,
    Reason,
    Replica,
    ReplicaKind,
    Report,
    Request,
    Tokens,
)
from routers.api.settings import (
    AdmissionParameters,
    CodelParameters,
    DispatcherSettings,
    GenerationParameters,
    GroupSettings,
    HedgeParameters,
    LimitParameters,
    Mode,
    PolicyNames,
    SilenceParameters,
)
from routers.policies.registry import BATCHINGS, HEDGINGS, ORDERS, PLACEMENTS, PREEMPTIONS
from routers.schedulers import scheduler_of
from routers.state.replica_state import EJECTED, SILENT
from tests.routers.invariants import check

pytestmark = pytest.mark.slow

EDGES = (4, 8, 16)
IDS = ("a", "b", "c")
GROUP_OF = {"a": "fast", "b": "slow", "c": "unlisted"}
FAST = GroupSettings("fast", profile=((1, 16, 0.01), (8, 16, 0.02)))
SLOW = GroupSettings("slow", profile=((1, 16, 0.4), (8, 16, 3.0)), max_size=2)
SHORT = replace(SLOW, max_length=8)  # as the group that no settings list, then
SHORT_FIRST = (replace(FAST, max_length=4), SLOW)
CAPACITIES = st.sampled_from((0, 1, 2, 3, 20))
POLICIES = st.builds(
    PolicyNames,
    st.sampled_from(tuple(ORDERS)),
    st.sampled_from(tuple(BATCHINGS)),
    st.sampled_from(tuple(PLACEMENTS)),
    st.sampled_from(((), ("codel",), ("feasibility",), PolicyNames().admission)),
    st.sampled_from(tuple(HEDGINGS)),
    preemption=st.sampled_from(tuple(PREEMPTIONS)),
)


@dataclass
class Known:
    """One live request as the machine sees it; `leased`: row index to the leases it stands in.
    `copied`: rows that were in a copy that may have been started. `shown`: its caller has had a
    part of its answer."""

    request: Request
    arrived: float
    waiting: set[int]
    order: int
    leased: dict[int, set[int]] = field(default_factory=dict)
    retried: set[int] = field(default_factory=set)
    copied: set[int] = field(default_factory=set)
    moved: dict[int, set[int]] = field(default_factory=dict)
    late_from: float = inf
    shown: bool = False


class SchedulerMachine(RuleBasedStateMachine):
    kind: ReplicaKind
    roomy: int  # capacity of a replica that takes any row

    @initialize(
        late=st.sampled_from(("demote", "refuse")),
        pads=st.booleans(),
        max_size=st.sampled_from((1, 2, 3, 8)),
        max_tokens=st.sampled_from((1, 12, 40)),
        max_queue_rows=st.sampled_from((1, 4, 30)),
        max_late_rows=st.sampled_from((0, 3, 30)),
        initial_cost_s=st.sampled_from((0.0, 0.5)),
        preempt_streams=st.booleans(),
        warm=st.sampled_from((False, True, True)),
        defers=st.booleans(),
        suspect_hold_s=st.sampled_from((0.0, 0.0, 3.0)),
        generation=st.builds(
            GenerationParameters,
            output_tokens=st.sampled_from((None, 3)),
            reserve_quantile=st.sampled_from((0.5, 0.9, 1.0)),
            block_tokens=st.just(2),
            long_tokens=st.sampled_from((4, 100)),
            max_long_tokens=st.sampled_from((0.0, 12.0, inf)),
            affinity=st.sampled_from(("off", "session", "prefix")),
        ),
        admission=st.builds(
            AdmissionParameters,
            feasibility=st.sampled_from(Mode),
            codel=st.builds(CodelParameters, st.sampled_from(Mode), st.just(0.02), st.just(0.5)),
            limit=st.builds(LimitParameters, st.sampled_from(Mode), st.sampled_from((None, 1, 4))),
        ),
        hedge=st.builds(
            HedgeParameters,
            mode=st.sampled_from(("off", "hedge", "hedge", "tied", "tied")),
            fixed_delay_s=st.sampled_from((None, 0.0, 0.2)),
            budget=st.sampled_from((0.05, 10.0, 10.0)),
            max_utilisation=st.just(1.0),
            min_samples=st.just(1),
        ),
        silence=st.builds(
            SilenceParameters,
            mode=st.sampled_from(("off", "suspend", "suspend")),
            fixed_s=st.sampled_from((None, 0.0, 0.2)),
        ),
        groups=st.sampled_from(
            (
                (),
                (),
                (FAST, SLOW),
                (FAST, replace(SLOW, after_s=0.2)),
                (FAST, SHORT),
                SHORT_FIRST,
                (replace(FAST, after_s=0.2), SHORT),
            )
        ),
        policies=POLICIES,
    )
    def begin(self, warm, defers, **chosen):
        self.defers, self.undecided = defers, False
        if self.kind is ReplicaKind.BATCH:
            chosen["generation"] = None
        self.settings = DispatcherSettings(EDGES, **chosen)
        self.dispatcher = scheduler_of(self.settings)
        self.now, self.timer, self.arrivals = 0.0, None, 0
        self.known: dict[int, Known] = {}
        self.ended: set[int] = set()
        self.leases: dict[int, Dispatch] = {}
        self.running: dict[str, Replica] = {}
        self.opened: set[int] = set()
        self.aborted: set[int] = set()
        if warm:
            self.warm_up()

    def warm_up(self):
        """Both replicas have answered once, so copies may be sent there."""
        self.replicas_change({"a": self.roomy, "b": self.roomy})
        for _ in range(4):
            self.arrive([3], 1.0, 20.0, True)
            self.decide()
        while self.leases:
            self.now += 0.1
            self.close(min(self.leases), LeaseEnd.DONE, 0.1)
            self.decide()

    # -- events

    def step(self, event):
        """Requests and ends of leases may be taken in, and decided upon later; most other events
        decide upon them as well."""
        actions = []
        if self.defers and isinstance(event, Arrive | Closed):
            self.undecided |= self.dispatcher.take(event, self.now, actions)
        else:
            self.undecided &= isinstance(event, Progress | Heard)
            actions = self.dispatcher.step(event, self.now)
        self.follow(actions)

    def decide(self):
        if self.undecided:
            self.undecided = False
            self.follow(self.dispatcher.decide(self.now))

    def follow(self, actions):
        self.see_what_moved()
        for action in actions:
            self.judge(action)
        if not self.undecided:
            check(self.dispatcher)

    def see_what_moved(self):
        """Rows leave silent replicas once, if they may run twice, and wait again."""
        for request_id, tracked in self.dispatcher._requests.live.items():
            known = self.known[request_id]
            for row in tracked.rows:
                if row.moved_from and row.index not in known.moved:
                    ids = {lease.lease_id for lease in row.moved_from}
                    assert known.request.retryable
                    assert not known.shown
                    assert row.index not in known.retried
                    assert known.leased.pop(row.index) == ids
                    assert all(lease.replica.leases for lease in row.moved_from)
                    known.moved[row.index] = ids
                    known.waiting.add(row.index)
                    if row.isolated:
                        known.retried.add(row.index)

    @rule(
        lengths=st.lists(st.integers(0, 17), min_size=1, max_size=4),
        slo=st.sampled_from((0.0, 1.0, 5.0)),
        extra=st.sampled_from((0.0, 1.0, 20.0)),
        retryable=st.booleans(),
        priority=st.integers(0, 2),
        most=st.integers(0, 12),
        start=st.integers(0, 2),
        streams=st.booleans(),
    )
    def arrive(self, lengths, slo, extra, retryable, priority=1, most=0, start=0, streams=True):
        """`most`: output tokens, where it generates; prompts with the same `start` begin alike."""
        self.arrivals += 1
        deadline = self.now + slo
        generation = None
        if self.settings.generation is not None:
            lengths = lengths[:1]
            blocks = tuple(100 * start + n for n in range(lengths[0] // 2))
            generation = Generation(most, 1, blocks)
        request = Request(
            self.arrivals, tuple(lengths), self.now, deadline, deadline + extra,
            priority=priority, retryable=retryable, generation=generation,
            streams=streams and generation is not None,
        )  # fmt: skip
        rows = set(range(len(lengths)))
        self.known[self.arrivals] = Known(request, self.now, rows, self.arrivals)
        self.step(Arrive(request))

    @rule(seconds=st.sampled_from((0.0, 0.001, 0.3, 1.0, 4.0)))
    def time_passes(self, seconds):
        """The shell's timer fires on the way, as it would."""
        self.decide()
        until = self.now + seconds
        while self.timer is not None and self.timer <= until:
            self.now, self.timer = max(self.now, self.timer), None
            self.step(Tick())
        self.now = until
        self.nothing_is_overdue()

    @rule(rows=st.integers(1, 3))
    def work_straggles(self, rows):
        """What comes may be copied, and long enough passes without an answer."""
        for _ in range(rows):
            self.arrive([3], 5.0, 20.0, True)
        self.time_passes(0.3)

    @rule(seconds=st.sampled_from((0.5, 3.0)))
    def loop_stalls(self, seconds):
        """Time passes and the timer comes late: the next event finds things overdue."""
        self.now += seconds

    @rule(
        chosen=st.fixed_dictionaries({"a": CAPACITIES, "b": CAPACITIES})
        | st.dictionaries(st.sampled_from(IDS), CAPACITIES)
    )
    def replicas_change(self, chosen):
        self.running = {
            key: Replica(
                key, capacity, self.kind, group=GROUP_OF[key] if self.settings.groups else ""
            )
            for key, capacity in chosen.items()
        }
        self.step(Replicas(tuple(self.running.values())))

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def caller_leaves(self, data):
        request_id = data.draw(st.sampled_from(sorted(self.known)))
        self.end(request_id)
        self.step(Cancel(request_id))

    @rule(replica_id=st.sampled_from(IDS))
    def replica_speaks(self, replica_id):
        self.step(Heard(replica_id))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def replica_starts(self, data):
        lease_id = data.draw(st.sampled_from(sorted(self.leases)))
        if lease_id not in self.opened and self.is_tied(lease_id):
            self.starts_first(lease_id)
        self.opened.add(lease_id)
        self.step(Opened(lease_id))

    def is_tied(self, lease_id):
        return self.dispatcher._leases.open[lease_id].tied

    def starts_first(self, lease_id):
        """Its rows leave the other one of the pair."""
        for request_id, index in self.leases[lease_id].rows:
            known = self.known.get(request_id)
            if known is not None and lease_id in known.leased.get(index, ()):
                known.leased[index] = {lease_id}

    @precondition(lambda self: self.leases and self.kind is ReplicaKind.STREAM)
    @rule(
        data=st.data(),
        held=st.floats(0, 30),
        tokens=st.builds(Tokens, st.integers(-1, 17), st.integers(-1, 17), st.integers(-1, 14)),
    )
    def stream_moves(self, data, held, tokens):
        self.moves(data.draw(st.sampled_from(sorted(self.leases))), held, tokens)

    def moves(self, lease_id, held, tokens):
        """Of two leases that race, the first to say anything has the row; what comes of one that
        was wanted back before is given to nobody."""
        lease = self.dispatcher._leases.open[lease_id]
        if lease.begun or lease_id in self.aborted:
            pass
        elif lease.is_probe and lease.copy_of is not None:
            self.leaves_race(lease_id)
        elif not lease.is_probe:
            self.starts_first(lease_id)
            self.shows(lease_id)
        self.step(Progress(lease_id, 1.0, held, tokens))

    def shows(self, lease_id):
        """To a caller that streams, from now on."""
        for request_id, index in self.leases[lease_id].rows:
            known = self.known.get(request_id)
            if known is not None and lease_id in known.leased.get(index, ()):
                known.shown = known.request.streams

    def leaves_race(self, lease_id):
        """A probe, of which nothing is given to anybody."""
        ((request_id, index),) = self.leases[lease_id].rows
        known = self.known.get(request_id)
        if known is not None:
            known.leased.get(index, set()).discard(lease_id)

    @precondition(lambda self: self.kind is ReplicaKind.STREAM)
    @rule(
        most=st.integers(1, 12),
        wins=st.sampled_from(("copy", "first", "nobody")),
        streams=st.booleans(),
        ends=st.lists(st.sampled_from((LeaseEnd.LOST, LeaseEnd.LOST, LeaseEnd.BUSY)), max_size=3),
    )
    def streams_race(self, most, wins, streams, ends):
        """What generates may be copied, and long enough passes without a token. `ends`: how its
        leases end then, one after another, all without an answer."""
        self.replicas_change({"a": 20, "b": 20, "c": 20})
        before = set(self.leases)
        self.arrive([3], 5.0, 20.0, True, most=most, streams=streams)
        self.time_passes(0.3)
        new = sorted(set(self.leases) - before)
        copies = [each for each in new if self.leases[each].copy_of]
        if copies and wins != "nobody":
            copy = self.leases[copies[0]]
            first = copy.lease_id if wins == "copy" else copy.copy_of
            self.moves(first, 4.0, Tokens(3, 0, 1))
        for end in ends:
            self.decide()
            own = [each for each, lease in self.leases.items() if lease.rows[0][0] == self.arrivals]
            if own:
                self.close(max(own), end, 0.1)

    @precondition(lambda self: self.leases)
    @rule(
        data=st.data(),
        end=st.sampled_from((LeaseEnd.DONE, LeaseEnd.DONE, LeaseEnd.BUSY, LeaseEnd.LOST)),
        seconds=st.sampled_from((0.0, 0.01, 1.0)),
    )
    def lease_closes(self, data, end, seconds):
        lease_id = data.draw(st.sampled_from(sorted(self.leases)))
        if lease_id in self.aborted and data.draw(st.booleans()):
            end = LeaseEnd.ABORTED
        self.close(lease_id, end, seconds, self.failures(data, lease_id, end))

    def failures(self, data, lease_id, end):
        """Positions of rows that the model failed on."""
        lease = self.leases[lease_id]
        if end is not LeaseEnd.DONE:
            return ()
        places = st.sampled_from(range(len(lease.rows)))
        return tuple(sorted(data.draw(st.just(set()) | st.sets(places), label="failed")))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def replica_answers_all(self, data):
        """One replica catches up, and may be asked for what others have not answered."""
        replica_id = data.draw(
            st.sampled_from(sorted({e.replica_id for e in self.leases.values()}))
        )
        for lease_id in sorted(self.leases):
            if self.leases[lease_id].replica_id == replica_id:
                self.now += 0.1
                self.close(lease_id, LeaseEnd.DONE, 0.1)

    def close(self, lease_id, end, seconds, failed=()):
        lease = self.leases.pop(lease_id)
        for place, (request_id, index) in enumerate(lease.rows):
            self.comes_back(request_id, index, lease_id, None if place in failed else end)
        if end in (LeaseEnd.BUSY, LeaseEnd.ABORTED) and not seconds:
            self.never_ran(lease)
        report = Report(service_s=seconds, retry_in_s=seconds, transport_s=0.001)
        self.step(Closed(lease_id, end, report, failed))

    def never_ran(self, lease):
        """Whatever it raced is alone with the rows, which may be copied once more."""
        if lease.lease_id not in self.opened:
            for request_id, index in lease.rows:
                known = self.known.get(request_id)
                if known is not None and len(known.leased.get(index, ())) == 1:
                    known.copied.discard(index)

    def comes_back(self, request_id, index, lease_id, end):
        """`end` None: the model failed on the row."""
        known = self.known.get(request_id)
        if known is None:
            return
        if lease_id in known.moved.get(index, ()) and end is LeaseEnd.DONE:
            self.answered_late(request_id, known, index)
            return
        if lease_id not in known.leased.get(index, ()):
            return
        known.leased[index].remove(lease_id)
        if end is not LeaseEnd.DONE and known.leased[index]:
            return
        del known.leased[index]
        if end is LeaseEnd.DONE:
            if not known.leased and not known.waiting:
                self.end(request_id)
            return
        known.waiting.add(index)
        if end in (LeaseEnd.LOST, None):
            known.retried.add(index)

    def answered_late(self, request_id, known, index):
        """By the replica that the row had been moved from."""
        known.waiting.discard(index)
        known.leased.pop(index, None)
        if not known.leased and not known.waiting:
            self.end(request_id)

    # -- judging actions

    def judge(self, action):
        match action:
            case Dispatch():
                self.judge_dispatch(action)
            case Reject() | Evict():
                self.judge_refusal(action)
            case Abort():
                assert action.lease_id not in self.aborted, "aborted twice"
                self.aborted.add(action.lease_id)
                rows = self.leases[action.lease_id].rows
                members = [self.known[each].leased for each, _ in rows if each in self.known]
                held = [ids for leased in members for ids in leased.values()]
                if any(action.lease_id in ids for ids in held):
                    assert self.is_stopped(action) or self.is_silent(action.replica_id), (
                        "aborted although somebody waits for it"
                    )
            case WakeAt():
                assert action.at > self.now
                self.timer = action.at

    def is_stopped(self, action):
        """Taken back from a stream replica, for what is more urgent."""
        rows = [self.known[each] for each, _ in self.leases[action.lease_id].rows]
        waiting = [known for known in self.known.values() if known.waiting]
        return (
            self.settings.preempt_streams
            and self.kind is ReplicaKind.STREAM
            and all(known.request.retryable and not known.shown for known in rows)
            and min([known.request.priority for known in waiting], default=inf)
            < max(known.request.priority for known in rows)
        )

    def is_silent(self, replica_id):
        return self.dispatcher._replicas.by_id[replica_id].reasons & SILENT

    def judge_refusal(self, action):
        known = self.known[action.request_id]
        if action.reason is Reason.EXPIRED:
            assert self.now >= known.request.expires
        elif isinstance(action, Evict) and action.reason in (Reason.LOST, Reason.FAILED):
            assert known.retried
        elif action.reason is Reason.INTERRUPTED:
            assert known.shown
        if isinstance(action, Reject):
            assert known.arrived == self.now
        self.end(action.request_id)

    def judge_dispatch(self, action):
        assert action.lease_id not in self.leases
        replica = self.running[action.replica_id]
        rows = [(self.known[request_id], index) for request_id, index in action.rows]
        for known, index in rows:
            assert known.request.expires > self.now, "dispatched at or past its expiry"
            longest = self.longest(replica.group)
            assert known.request.lengths[index] <= longest, "too long for its group"
        if action.copy_of:
            self.judge_copy(action, rows)
            return
        for known, index in rows:
            assert index in known.waiting, "dispatched, but it did not wait"
            assert not known.shown, "shown twice"
        self.judge_room(replica, rows, action)
        self.judge_limits(rows)
        if not self.settings.groups:  # a slow group passes rows that only another can answer
            self.judge_order(rows)
        elif replica.group == "slow":
            assert len(rows) <= SLOW.max_size
        for known, index in rows:
            known.waiting.remove(index)
            known.leased[index] = {action.lease_id}
        self.leases[action.lease_id] = action

    def longest(self, group):
        said = {each.name: each.max_length or EDGES[-1] for each in self.settings.groups}
        return said.get(group, min(said.values(), default=EDGES[-1]))

    def judge_copy(self, action, rows):
        """It races an open lease elsewhere; rows that may run twice, none of them a second time. A
        replica that is left out is probed with a copy, even where nothing else is copied."""
        if self.dispatcher._leases.open[action.lease_id].is_probe:
            assert self.dispatcher._replicas.by_id[action.replica_id].reasons & EJECTED
        else:
            assert self.settings.hedge.mode != "off"
        assert self.leases[action.copy_of].replica_id != action.replica_id
        self.judge_room(self.running[action.replica_id], rows, action)
        for known, index in rows:
            assert known.leased[index] == {action.copy_of}
            assert known.request.retryable
            assert index not in known.copied | known.retried
            known.copied.add(index)
            known.leased[index].add(action.lease_id)
        self.leases[action.lease_id] = action

    def judge_room(self, replica, rows, action):
        """As many leases as slots; one more in the place of one that is less urgent and unstarted,
        which comes back."""
        others = [each for each in self.leases.values() if each.replica_id == replica.replica_id]
        if replica.kind is not ReplicaKind.BATCH:
            assert len(rows) == 1
            self.judge_cache(replica)
        elif len(others) + 1 > replica.capacity:
            assert len(others) == replica.capacity >= 2, "more leases than slots"
            assert any(
                each.rank[:2] > (0, 0) and each.lease_id not in self.opened for each in others
            )

    def judge_cache(self, replica):
        """What is predicted to be held fits, unless it is the only one there."""
        known = self.dispatcher._replicas.by_id[replica.replica_id]
        assert known.held <= max(replica.capacity, 0)

    def judge_limits(self, rows):
        lengths = [known.request.lengths[index] for known, index in rows]
        tokens = len(rows) * max(lengths) if self.settings.pads else sum(lengths)
        assert len(rows) == 1 or tokens <= self.settings.max_tokens
        assert len(rows) <= self.settings.max_size
        assert len(rows) == 1 or not any(index in known.retried for known, index in rows)

    def judge_order(self, rows):
        """Earliest deadline first in a flow's bucket, or first come, first served where that is the
        order, no late row in front of one on time."""
        if any(known.request.generation is not None for known, _ in rows):
            return  # one that has no room is passed by those that have
        taken = {
            (self.queue(known, index), self.place(known), index)
            for known, index in rows
            if not self.is_late(known.request.request_id) and index not in known.retried
        }
        for known in self.known.values():
            if self.is_late(known.request.request_id) or known.request.generation is not None:
                continue
            for index in known.waiting - known.retried:
                queue = self.queue(known, index)
                later = {each for each in taken if each[0] == queue}
                place = (queue, self.place(known), index)
                assert place in taken or not later or place > max(later), "overtaken in its bucket"

    def queue(self, known, index):
        return known.request.priority, self.bucket(known.request.lengths[index])

    def place(self, known):
        first_come = self.settings.policies.order == "fifo"
        return 0.0 if first_come else known.request.deadline, known.order

    def is_late(self, request_id):
        """Also one that was found late in this step and may not stay."""
        tracked = self.dispatcher._requests.live.get(request_id)
        return tracked is None or tracked.late

    def bucket(self, length):
        return next(edge for edge in EDGES if length <= edge)

    def end(self, request_id):
        assert request_id not in self.ended, "answered twice"
        self.ended.add(request_id)
        del self.known[request_id]

    def nothing_is_overdue(self):
        """With a timer that works, nobody waits past the time at which nobody waits any longer."""
        assert not [each for each in self.known.values() if each.request.expires <= self.now]

    # -- invariants

    @invariant()
    def counts_agree(self):
        if not hasattr(self, "dispatcher"):
            return
        seen = self.dispatcher.snapshot(self.now)
        assert seen.waiting_rows == sum(len(known.waiting) for known in self.known.values())
        assert seen.leased_rows == sum(len(known.leased) for known in self.known.values())
        assert seen.leases == len(self.leases)
        assert seen.oldest_wait_s >= 0
        assert seen.unknown_closes == 0

    def teardown(self):
        if not hasattr(self, "dispatcher"):
            return
        self.replicas_change({"a": self.roomy})
        while self.leases or self.known:
            for lease_id in sorted(self.leases):
                lease = self.leases.pop(lease_id)
                for request_id, index in lease.rows:
                    self.comes_back(request_id, index, lease_id, LeaseEnd.DONE)
                self.step(Closed(lease_id, LeaseEnd.DONE))
            self.time_passes(0.6)
        self.replicas_change({})
        end = self.dispatcher.snapshot(self.now)
        assert (end.waiting_rows, end.waiting_requests, end.leases, end.replicas) == (0, 0, 0, ())
        assert self.ended == set(range(1, self.arrivals + 1))
        timers = self.dispatcher._requests.timers
        assert not timers.line
        assert not timers.heap


class BatchMachine(SchedulerMachine):
    kind = ReplicaKind.BATCH
    roomy = 2

    @rule(policies=POLICIES, hold=st.sampled_from(("never", "auto")))
    def other_policies(self, policies, hold):
        self.settings = replace(self.settings, policies=policies, hold=hold)
        self.step(Reconfigure(self.settings))


class StreamMachine(SchedulerMachine):
    kind = ReplicaKind.STREAM
    roomy = 20


TestBatches, TestStreams = BatchMachine.TestCase, StreamMachine.TestCase
TestBatches.settings = TestStreams.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
