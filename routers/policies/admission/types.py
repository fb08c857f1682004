"""What controllers of admission are asked, what they are told, and what they answer.

A controller answers at one of three moments: when a request arrives (`OnArrival`), before a late
request waits (`OnceLate`), or when a request's turn has come (`AtTurn`). An answer changes nothing.
The controller's mode decides whether a no is enforced, and the core (`shared/admission.py`) asks,
counts, records and rejects. What a controller learns reaches it by calls of their own, apart from
the questions, and only those that its class overrides.

A new controller is a class in a file of its own and a line in `policies/registry.py`. What is made
for nearly every request is a plain class here, see `routers.state.rows`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from routers.api.requests import FlowKey, FlowWork, Reason
from routers.api.settings import AdmissionParameters, DispatcherSettings, Mode
from routers.state.flows import Flow
from routers.state.request_queue import RequestQueue
from routers.state.rows import TrackedRequest

# Places among a flow's notes, of the controllers that keep one
LIMIT_NOTE: Final = 0
FORECAST_NOTE: Final = 1
_SLOS: Final = 5.0  # SLOs that an average spans at least, hence several batches


class Newcomer:
    """A new request, none of whose rows waits yet, and what it finds; to be read and not changed.
    Seconds that wait are predicted device seconds of on-time work, here and, as far as reports
    tell, at other gateways."""

    tracked: TrackedRequest
    waiting: RequestQueue
    edge: int  # of the bucket of its length; 0: a generation, whose length is not told apart
    slack_s: float  # until its latest start; 0 or less: it is late, whatever controllers say
    capacity: float  # running replicas, in those of the reference group; 0: none runs
    capacity_in_s: float  # while none runs, until one is expected; 0.0: not known

    # Of a request that has slack, while replicas run:
    before_s: float  # work of its flow that goes before it
    urgent_s: float  # work of more urgent priorities
    competing_weight: float  # summed, of its priority's flows with work waiting, its own too

    def __init__(
        self,
        tracked: TrackedRequest,
        waiting: RequestQueue,
        edge: int,
        slack_s: float,
        capacity: float,
        capacity_in_s: float = 0.0,
    ) -> None:
        self.tracked, self.waiting, self.edge = tracked, waiting, edge
        self.slack_s, self.capacity, self.capacity_in_s = slack_s, capacity, capacity_in_s
        self.before_s = self.urgent_s = self.competing_weight = 0.0

    def finds(self, before_s: float, urgent_s: float, competing_weight: float) -> Newcomer:
        """The newcomer itself, with what waits before it; to be called by whoever makes it."""
        self.before_s, self.urgent_s = before_s, urgent_s
        self.competing_weight = competing_weight
        return self


@dataclass(slots=True, init=False)
class Answer:
    """What a controller answers to a newcomer."""

    forecast_s: float  # predicted queue wait
    late_by_s: float  # above 0: it may wait only behind all that is on time
    refused: bool  # it may not wait at all
    is_probe: bool  # predicted late, but let in to see whether that is true
    teaches: bool  # the controller learns from having answered so (`told`)

    def __init__(
        self,
        forecast_s: float = 0.0,
        late_by_s: float = 0.0,
        *,
        refused: bool = False,
        is_probe: bool = False,
        teaches: bool = False,
    ) -> None:
        self.forecast_s, self.late_by_s, self.refused = forecast_s, late_by_s, refused
        self.is_probe, self.teaches = is_probe, teaches


ADMIT: Final = Answer()
REFUSE: Final = Answer(refused=True)


class LateWork:
    """Late work that would wait with the request in question."""

    work_s: float  # predicted device seconds of all of it, the request included
    left_s: float  # until the request expires
    capacity: float  # as in `Newcomer`
    is_new: bool  # the request has just arrived; else it waits, and its deadline has passed

    def __init__(self, work_s: float, left_s: float, capacity: float, is_new: bool) -> None:
        self.work_s, self.left_s, self.capacity, self.is_new = work_s, left_s, capacity, is_new


class Controller:
    """What all controllers have in common.

    `reason` is what a request is told that is refused on arrival. A request that may not wait late
    is told `LATE`, one that leaves at its turn `SHED`. `verdicts` keeps the mode and counts; the
    core writes it.
    """

    reason: ClassVar[Reason] = Reason.SHED

    def __init__(self) -> None:
        self.verdicts = Verdicts(Mode.ENFORCE)

    def mode(self, admission: AdmissionParameters) -> Mode | None:
        """Its mode in these settings; None: it has no parameters of its own, and its mode stands in
        `admission.modes`."""
        return None

    def tune(self, settings: DispatcherSettings) -> None:
        """Go on under other settings, or the first ones; what was learnt stays."""
        return

    def value(self, capacity: float, now: float) -> float:
        """What it has learnt, as one number to be shown."""
        return 0.0

    def by_flow(self, now: float) -> tuple[FlowWork, ...]:
        """The same number for each flow, where it has one."""
        return ()

    def waited(self, tracked: TrackedRequest, wait_s: float, now: float, *, taken: bool) -> None:
        """A request that was let in on time while a replica ran has left the queue after `wait_s`:
        to a replica (`taken`), or because it was late."""
        return

    def served(
        self, work: tuple[FlowWork, ...], now: float, *, late: bool, flows: Sequence[Flow] = ()
    ) -> None:
        """Flows were given device seconds, by this gateway or by another one. `late`: in a batch of
        late rows. `flows`: theirs, if they are known."""
        return


# No ABC, here and in all of `routers/`: once compiled, all ABCs share one cache of `isinstance`
# results, so that a controller of one moment would pass for one of another. mypy still refuses a
# controller that lacks its question.


class OnArrival(Controller):
    """May this new request wait, on time or late?"""

    @abstractmethod
    def judge(self, newcomer: Newcomer, now: float) -> Answer:
        """The answer to this newcomer. Also asked for requests that have not arrived, to know what
        they would be told; so it changes nothing."""
        ...

    def came(self, newcomer: Newcomer, now: float) -> None:
        """The newcomer has arrived, and `judge` is called next."""
        return

    def told(self, newcomer: Newcomer, answer: Answer, now: float) -> None:
        """This was the answer to a newcomer that has arrived; called where the answer `teaches`."""
        return

    def rejected_from_cache(self, flow: FlowKey, edge: int | None, now: float) -> None:
        """A new request was refused as late from the rejection cache, without asking this
        controller. `edge`: of its bucket; None: its body was not read."""
        return


class OnceLate(Controller):
    """May a late request wait?"""

    reason: ClassVar[Reason] = Reason.LATE

    @abstractmethod
    def refuses(self, late: LateWork, now: float) -> bool:
        """Whether it may not wait. Also asked for requests that have not arrived."""
        ...


class AtTurn(Controller):
    """Should a request that was on time leave, now that its turn has come?"""

    @abstractmethod
    def look(
        self, seen: Any, tracked: TrackedRequest, wait_s: float, now: float
    ) -> tuple[Any, bool]:
        """What is known of its flow after looking at this request, and whether the request should
        leave, which makes room for the next. Asked until one of its rows has been served."""
        ...

    def seen(self, flow: FlowKey) -> Any:
        """What is known of the flow."""
        return None

    def learn(self, flow: FlowKey, seen: Any) -> None:
        """Keep what looking has shown of the flow."""
        return


def window_s(min_s: float, settings: DispatcherSettings) -> float:
    """Seconds that an average should span whose samples come in batches: at least `min_s`, and
    several SLOs."""
    return max(min_s, _SLOS * settings.slo_s)


@dataclass(slots=True)
class Verdicts:
    """A policy's mode and its counts. Two fields follow the mode: `off`, the policy is not to be
    asked, and `acts`, a no is enforced.

    One record a policy. With mode `OFF` the policy is not asked; `OBSERVE` counts a no and lets the
    request pass; `ENFORCE` counts and sheds. A no that is only observed changes nothing, so
    `would_shed` counts in a system whose queue goes on filling: under lasting overload it is larger
    than what `ENFORCE` would shed.
    """

    mode: Mode
    shed: int = 0
    would_shed: int = 0
    off: bool = field(init=False)
    acts: bool = field(init=False)

    def __post_init__(self) -> None:
        self.tune(self.mode)

    def tune(self, mode: Mode) -> None:
        """Set the mode; counts stay."""
        self.mode, self.off, self.acts = mode, mode is Mode.OFF, mode is Mode.ENFORCE

    def no(self) -> bool:
        """Count a no. Returns whether it is enforced."""
        if self.acts:
            self.shed += 1
            return True
        self.would_shed += 1
        return False
