"""The admission controllers of one model at a gateway, as its settings name them.

Each controller is a class of `policies/registry.py`. The controllers are asked in the order of the
setting `policies.admission`, each only at its own moment (arrival, being late, its turn). This
module sets their modes, counts their refusals and passes on what they learn from; the caller
decides what a refusal leads to. A controller with mode `off` is not asked and hears of no request,
but still hears of served work, so that it is up to date when it is turned on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from routers.api.requests import FlowKey, FlowWork, Reason
from routers.api.settings import DispatcherSettings, Mode
from routers.api.snapshot import ControllerSnapshot
from routers.policies.admission.types import AtTurn, Controller, LateWork, OnArrival, OnceLate
from routers.policies.registry import ADMISSIONS
from routers.state.flows import Flow
from routers.state.rows import TrackedRequest

T = TypeVar("T", bound=Controller)


class Controllers:
    """The controllers, by the moment at which each is asked, and by what each wants to hear."""

    def __init__(self, settings: DispatcherSettings) -> None:
        self._by_name: dict[str, Controller] = {}
        self.tune(settings)

    def tune(self, settings: DispatcherSettings) -> None:
        """Adopt new settings. A controller that is named in both keeps what it has learnt."""
        names, self._frozen = settings.policies.admission, settings.frozen
        self._by_name = {name: self._by_name.get(name) or ADMISSIONS[name]() for name in names}
        modes = dict(settings.admission.modes)
        for name, each in self._by_name.items():
            each.tune(settings)
            mode = each.mode(settings.admission)
            each.verdicts.tune(modes.get(name, Mode.ENFORCE) if mode is None else mode)
        every = self._by_name.values()
        asked = [each for each in every if not each.verdicts.off]
        self.on_arrival = tuple(each for each in asked if isinstance(each, OnArrival))
        self.once_late = tuple(each for each in asked if isinstance(each, OnceLate))
        self.at_turn = tuple(each for each in asked if isinstance(each, AtTurn))
        self._late_verdicts = tuple(each.verdicts for each in asked if each.reason is Reason.LATE)
        self._hear_refusals = _overriding(self.on_arrival, OnArrival.rejected_from_cache)
        self._hear_waits = _overriding(asked, Controller.waited)
        self._hear_work = _overriding(every, Controller.served)

    # -- questions to all controllers of one moment

    def refuse_late(self, late: LateWork, now: float) -> bool:
        """Whether a controller refuses to let the late work wait; counts the refusal."""
        return any(each.refuses(late, now) and each.verdicts.no() for each in self.once_late)

    def would_refuse_late(self, late: LateWork, now: float) -> bool:
        """What `refuse_late` would answer for a hypothetical request; counts nothing."""
        return any(each.verdicts.acts and each.refuses(late, now) for each in self.once_late)

    def shed_at_turn(self, tracked: TrackedRequest, now: float) -> bool:
        """Whether a controller sheds a request whose turn has come; counts the refusal."""
        flow, wait_s = tracked.flow.key, now - tracked.queued_at
        for each in self.at_turn:
            known = each.seen(flow)
            seen, is_no = each.look(known, tracked, wait_s, now)
            if seen is not known:
                each.learn(flow, seen)
            if is_no and each.verdicts.no():
                return True
        return False

    # -- what they learn from

    def rejected_from_cache(self, flow: FlowKey, edge: int | None, now: float) -> None:
        """The rejection cache refused a new request as late: tell the controllers of arrival, and
        count a refusal of every controller that refuses as late."""
        for each in self._hear_refusals:
            each.rejected_from_cache(flow, edge, now)
        for verdicts in self._late_verdicts:
            verdicts.no()

    def waited(self, tracked: TrackedRequest, now: float, *, taken: bool) -> None:
        """A request that had a forecast goes to a replica (`taken`), or has turned late."""
        flow, wait_s = tracked.flow, now - tracked.queued_at
        for each in self._hear_waits:
            each.waited(flow, tracked, wait_s, now, taken=taken)

    def served(
        self, work: tuple[FlowWork, ...], now: float, *, late: bool, flows: Sequence[Flow] = ()
    ) -> None:
        """Flows were given device seconds; `late`: for late rows; `flows`: theirs, if known."""
        for each in self._hear_work:
            each.served(work, now, late=late, flows=flows)

    # -- snapshot

    def snapshot(self, capacity: float, now: float) -> tuple[ControllerSnapshot, ...]:
        """One entry a controller, in the registry's order. `capacity`: running replicas."""
        shown = [(name, self._by_name[name]) for name in ADMISSIONS if name in self._by_name]
        return tuple(
            ControllerSnapshot(
                name,
                each.verdicts.mode.value,
                self._frozen,
                each.value(capacity, now),
                each.verdicts.shed,
                each.verdicts.would_shed,
                each.by_flow(now),
            )
            for name, each in shown
        )


def _overriding(controllers: Iterable[T], method: Callable[..., Any]) -> tuple[T, ...]:
    """The controllers whose class overrides this method; calling the others would do nothing."""
    name = method.__name__
    return tuple(each for each in controllers if getattr(type(each), name) is not method)
