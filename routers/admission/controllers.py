"""What do the controllers of admission know and say, together?

It only keeps them, one of each for a model at a gateway, tells them settings and shows their
states. `feasibility` and `late_room` judge newcomers, `limit` counts them, `codel` looks at what
leaves the queue; each decides by itself and knows nothing of the others. The freeze switch
(`settings.frozen`) stops all learning: states stay as they are, decisions go on.
"""

from __future__ import annotations

from routers.admission.best_effort_capacity import LateRoom
from routers.admission.codel import Codel
from routers.admission.feasibility import Feasibility
from routers.admission.forecast import Forecast
from routers.admission.learnt_limit import LearntLimit
from routers.admission.verdicts import Verdicts
from routers.settings import DispatcherSettings
from routers.types import ControllerSnapshot, FlowKey, FlowWork

_WINDOW_S = 0.5
_LATE_WINDOW_S = 2.0
_SLOS = 5.0  # an average spans at least so many, hence more batches


class Admission:
    def __init__(self, settings: DispatcherSettings) -> None:
        self.feasibility = Feasibility()
        self.late_room = LateRoom()
        self.codel = Codel(settings.admission.codel)
        self.limit = LearntLimit(settings.admission.limit)
        self.tune(settings)

    def tune(self, settings: DispatcherSettings) -> None:
        """Other settings; what was learnt stays."""
        admission, frozen = settings.admission, settings.frozen
        least_s = _SLOS * settings.slo_s
        self.feasibility.tune(admission.feasibility, max(_WINDOW_S, least_s), frozen=frozen)
        self.feasibility.fixed_margin_s = admission.margin_s
        self.late_room.tune(admission.feasibility, max(_LATE_WINDOW_S, least_s), frozen=frozen)
        self.late_room.fixed_s = admission.late_room_s
        self.codel.tune(admission.codel, frozen=frozen)
        self.limit.tune(admission.limit, frozen=frozen)

    def refused_again(self, flow: FlowKey) -> None:
        """A newcomer was refused as late, as the like of it had just been."""
        self.feasibility.refused_again(flow)
        self.late_room.verdicts.no()

    def waited(self, flow: FlowKey, forecast: Forecast, wait_s: float, now: float) -> None:
        """A request that was on time left the queue for a replica, or turned late there."""
        self.feasibility.waited(flow, forecast, wait_s, now)
        self.limit.waited(flow, wait_s, forecast.slack_s, now)

    def snapshot(self, replicas: int, now: float) -> tuple[ControllerSnapshot, ...]:
        margins = self._margins(now)
        limits = tuple((*flow, limit) for flow, limit in self.limit.limits().items())
        lowest = min((limit for _, _, limit in limits), default=self.limit.start)
        margin_s = max((margin for _, _, margin in margins), default=0.0)
        stands = tuple((*flow, 1.0) for flow in self.codel.standing())
        spare = self.late_room.spare(replicas, now)
        return (
            self._show("feasibility", self.feasibility.verdicts, margin_s, margins),
            self._show("late_room", self.late_room.verdicts, spare),
            self._show("codel", self.codel.verdicts, len(stands), stands),
            self._show("limit", self.limit.verdicts, lowest, limits),
        )

    def _margins(self, now: float) -> tuple[FlowWork, ...]:
        fixed_s = self.feasibility.fixed_margin_s
        return tuple(
            (*each.flow, each.margin_s if fixed_s is None else fixed_s)
            for each in self.feasibility.flows(now)
        )

    def _show(
        self, name: str, verdicts: Verdicts, value: float, by_flow: tuple[FlowWork, ...] = ()
    ) -> ControllerSnapshot:
        return ControllerSnapshot(
            name,
            verdicts.mode.value,
            self.feasibility.frozen,
            value,
            verdicts.shed,
            verdicts.would_shed,
            by_flow,
        )
