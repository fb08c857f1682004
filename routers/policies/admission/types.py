"""What controllers of admission are asked, what they are told, and what they answer.

A controller answers at a moment of its own: when a request comes (`OnArrival`), before one that is
late waits (`OnceLate`), when one's turn has come (`AtTurn`). An answer changes nothing: whether a
no holds is a matter of the controller's mode, and the core asks, counts, writes down and sends away
(`core/admission.py`). What a controller learns from the core tells it apart from its questions, and
only what it asks to hear: news that it does not override is not told to it. A new controller is a
class in a file of its own and a line in `policies/registry.py`. An answer is made for nearly every
request, so it is a tuple: that costs a third of a frozen dataclass.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from routers.api.requests import FlowKey, FlowWork, Reason
from routers.api.settings import AdmissionParameters, DispatcherSettings, Mode
from routers.policies.admission.verdicts import Verdicts
from routers.state.request_queue import RequestQueue
from routers.state.rows import TrackedRequest

_SLOS = 5.0  # an average spans at least so many, hence more batches


@dataclass(slots=True)
class Newcomer:
    """A request that has come, none of whose rows waits yet, and what it finds; to be looked at and
    not changed. Seconds that wait are predicted device seconds of on-time work, here and, as far as
    is known, at other gateways.

    waiting: all that waits. edge: of the bucket that it is told apart by; 0: of a generation, whose
    lengths are not. slack_s: until its latest start; 0 or less: it is late, whatever
    controllers say. capacity: replicas, as many as work as fast as those of the reference group; 0:
    none runs, and one is expected in `capacity_in_s` (0.0: nobody knows when). Of one that has
    slack and replicas: before_s: what of its flow goes before it; urgent_s: what waits in more
    urgent priorities; rivals: weights of the flows of its priority that have work waiting, its own
    too if it has.
    """

    tracked: TrackedRequest
    waiting: RequestQueue
    edge: int
    slack_s: float
    capacity: float
    capacity_in_s: float = 0.0
    before_s: float = 0.0
    urgent_s: float = 0.0
    rivals: float = 0.0


class Answer(NamedTuple):
    """To a newcomer. refused: it may not wait at all. late_by_s: above 0: it may wait only behind
    all that is on time. forecast_s: predicted queue wait. is_probe: it would be late, but is let in
    to see whether that is true. teaches: the controller learns from having said so (`told`)."""

    forecast_s: float = 0.0
    late_by_s: float = 0.0
    refused: bool = False
    is_probe: bool = False
    teaches: bool = False


ADMIT = Answer()
REFUSE = Answer(refused=True)


@dataclass(slots=True)
class LateWork:
    """Late work that would wait: work_s: in all, predicted device seconds, that of the request that
    is asked about too; left_s: until it expires. capacity: as of `Newcomer`. is_new: it has just
    come; else it waits, and its deadline has passed."""

    work_s: float
    left_s: float
    capacity: float
    is_new: bool


class Controller:
    """reason: what a request is told that is refused as it comes; one that may not wait late is
    told `LATE`, one that leaves at its turn `SHED`. verdicts: its mode, and how often it has said
    no; the core sets and counts."""

    reason: ClassVar[Reason] = Reason.SHED

    def __init__(self) -> None:
        self.verdicts = Verdicts(Mode.ENFORCE)

    def mode(self, admission: AdmissionParameters) -> Mode | None:
        """None: it has no parameters of its own, and its mode stands in `admission.modes`."""
        return None

    def tune(self, settings: DispatcherSettings) -> None:
        """Other settings, or the first ones; what was learnt stays."""
        return

    def value(self, capacity: float, now: float) -> float:
        """What it has learnt, in a number to be shown."""
        return 0.0

    def by_flow(self, now: float) -> tuple[FlowWork, ...]:
        """The same of each flow, where it has one."""
        return ()

    def waited(self, tracked: TrackedRequest, wait_s: float, now: float, *, taken: bool) -> None:
        """A request that was let in on time while a replica ran has left the queue after `wait_s`:
        `taken` to a replica, or late."""
        return

    def served(self, work: Sequence[FlowWork], now: float, *, late: bool) -> None:
        """Flows were given device seconds, by this gateway or by another. `late`: in a batch of
        late rows."""
        return


# No ABC, here and in all of `routers/`: compiled, all share one cache of who is an instance, and
# one moment's controller passes for another's. mypy refuses one that lacks its question all the
# same.


class OnArrival(Controller):
    """May this new request wait, on time or late?"""

    @abstractmethod
    def judge(self, newcomer: Newcomer, now: float) -> Answer:
        """Also asked of requests that have not come, to know what they would be told."""
        ...

    def came(self, newcomer: Newcomer, now: float) -> None:
        """It has come and is asked about next."""
        return

    def told(self, newcomer: Newcomer, answer: Answer, now: float) -> None:
        """This was the answer to one that has come; told where it `teaches`."""
        return

    def refused_again(self, flow: FlowKey, edge: int | None, now: float) -> None:
        """A new request was refused as late unasked, as the like of it had just been. `edge`: of
        its bucket; None: nobody has read it."""
        return


class OnceLate(Controller):
    """May a late request wait?"""

    reason: ClassVar[Reason] = Reason.LATE

    @abstractmethod
    def refuses(self, late: LateWork, now: float) -> bool:
        """Also asked of requests that have not come."""
        ...


class AtTurn(Controller):
    """Should a request that was on time leave, now that its turn has come?"""

    @abstractmethod
    def look(
        self, seen: Any, tracked: TrackedRequest, wait_s: float, now: float
    ) -> tuple[Any, bool]:
        """What is known of its flow once it has been looked at, and whether it should leave. Each
        request is asked about once, before the batch is filled: who leaves makes room for the
        next."""
        ...

    def seen(self, flow: FlowKey) -> Any:
        """What is known of the flow, to begin with."""
        return None

    def learn(self, seen: Mapping[FlowKey, Any]) -> None:
        """What looking has shown, of a plan that is carried out."""
        return


@dataclass(slots=True)
class TurnLook:
    """What a controller sees while a batch is planned: of each flow, and how often it says no."""

    controller: AtTurn
    seen: dict[FlowKey, Any]
    noes: int = 0


def window_s(least_s: float, settings: DispatcherSettings) -> float:
    """That an average of what comes in batches should span: at least so long, and several SLOs."""
    return max(least_s, _SLOS * settings.slo_s)
