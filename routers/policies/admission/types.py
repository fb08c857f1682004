"""What controllers of admission are asked, what they are told, and what they answer.

A controller answers at one of three moments: when a request arrives (`OnArrival`), before a late
request waits (`OnceLate`), or when a request's turn has come (`AtTurn`). An answer changes nothing.
The controller's mode decides whether a no is enforced, and the core (`shared/admission.py`) asks,
counts, records and rejects. What a controller learns reaches it by calls of their own, apart from
the questions, and only those that its class overrides.

The core's records of flows and requests derive from `FlowView` and `RequestView`, the numbers that
controllers may know of them: nothing is copied, and only the core assigns them. A new controller is
a class in a file of its own and a line in `policies/registry.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from routers.api.requests import FlowKey, FlowWork, Reason
from routers.api.settings import AdmissionParameters, DispatcherSettings, Mode

# Places among a flow's notes, of the controllers that keep one
LIMIT_NOTE: Final = 0
FORECAST_NOTE: Final = 1
_SLOS: Final = 5.0  # SLOs that an average spans at least, hence several batches


class FlowView:
    """A flow: one tenant at one priority."""

    tenant: str
    priority: int
    key: FlowKey
    weight: float

    rows: int  # on-time rows that wait
    late_rows: int  # late rows that wait
    live: int  # requests that wait or run
    # What controllers keep of the flow, so that they need not look for it each time; each of them
    # writes its own place, and believes only what is its own.
    notes: list[Any]


class RequestView:
    """A request. Times are seconds on the caller's monotonic clock."""

    queued_at: float
    latest_start: float  # its deadline less the usual turnaround of its bucket
    forecast_edge: int  # of the bucket of its length; 0: a generation, its length is not told apart
    cost_s: float  # predicted service seconds of all its rows, as of its arrival
    open: int  # rows queued or leased
    # Predicted queue wait, until that has proved true or false. None also for a request that came
    # late, or while no replica ran.
    forecast_s: float | None


# Plain classes: what is made for nearly every request is made seven times faster so, once compiled.


class Newcomer:
    """A new request, none of whose rows waits yet, and what it finds; to be read and not changed.
    Seconds that wait are predicted device seconds of on-time work, here and, as far as reports
    tell, at other gateways."""

    request: RequestView
    flow: FlowView
    slack_s: float  # until its latest start; 0 or less: it is late, whatever controllers say
    capacity: float  # running replicas, in those of the reference group; 0: none runs
    capacity_in_s: float  # while none runs, until one is expected; 0.0: not known

    # Of a request that has slack, while replicas run:
    before_s: float  # work of its flow that goes before it
    urgent_s: float  # work of more urgent priorities
    competing_weight: float  # summed, of its priority's flows with work waiting, its own too

    def __init__(
        self, request: RequestView, flow: FlowView, slack_s: float, capacity: float
    ) -> None:
        self.request, self.flow, self.slack_s, self.capacity = request, flow, slack_s, capacity
        self.capacity_in_s = self.before_s = self.urgent_s = self.competing_weight = 0.0


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

    def waited(
        self, flow: FlowView, request: RequestView, wait_s: float, now: float, *, taken: bool
    ) -> None:
        """A request of this flow that was let in on time while a replica ran has left the queue
        after `wait_s`: to a replica (`taken`), or because it was late."""
        return

    def served(
        self, work: tuple[FlowWork, ...], now: float, *, late: bool, flows: Sequence[FlowView] = ()
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
    def look(self, seen: Any, request: RequestView, wait_s: float, now: float) -> tuple[Any, bool]:
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
