"""The controllers of admission of one model at a gateway, as settings name them.

Each is one of `policies/registry.py`, asked in the order of `policies.admission`, and only at the
moments that it answers at. Here their modes are set, their noes counted, and what they learn from
is passed on; what becomes of a no, whoever asks decides. One whose mode is `off` is not asked and
hears of no request, but of what is served, so that it is up to date when it is turned on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from routers.api.requests import FlowKey, FlowWork, Reason
from routers.api.settings import DispatcherSettings, Mode
from routers.api.snapshot import ControllerSnapshot
from routers.policies.admission.types import AtTurn, Controller, LateWork, OnArrival, OnceLate
from routers.policies.registry import ADMISSIONS
from routers.state.rows import TrackedRequest

T = TypeVar("T", bound=Controller)


class Controllers:
    """`on_arrival`, `once_late`, `at_turn`: those that are asked, by moment. `arrivals`: how the
    first are told of a new request and asked; methods of several classes are looked up once."""

    def __init__(self, settings: DispatcherSettings) -> None:
        self._by_name: dict[str, Controller] = {}
        self.tune(settings)

    def tune(self, settings: DispatcherSettings) -> None:
        """Other settings; of those that are named before and after, what was learnt stays."""
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
        self.arrivals = tuple((each.came, each.judge, each) for each in self.on_arrival)
        self.once_late = tuple(each for each in asked if isinstance(each, OnceLate))
        self.at_turn = tuple(each for each in asked if isinstance(each, AtTurn))
        self._late = tuple(each.verdicts for each in asked if each.reason is Reason.LATE)
        self._hear_refusals = _overriding(self.on_arrival, OnArrival.refused_again)
        self._hear_waits = _overriding(asked, Controller.waited)
        self._hear_work = _overriding(every, Controller.served)

    # -- questions that are asked of all of them alike

    def refuse_late(self, late: LateWork, now: float) -> bool:
        """Whether one of them does not let it wait; counts."""
        return any(each.refuses(late, now) and each.verdicts.no() for each in self.once_late)

    def would_refuse_late(self, late: LateWork, now: float) -> bool:
        """As `refuse_late` would say of one that has not come: counts nothing."""
        return any(each.verdicts.acts and each.refuses(late, now) for each in self.once_late)

    def shed_at_turn(self, tracked: TrackedRequest, now: float) -> bool:
        """Whether a request whose turn has come leaves instead; counts."""
        flow, wait_s = tracked.flow.key, now - tracked.queued_at
        for each in self.at_turn:
            seen, is_no = each.look(each.seen(flow), tracked, wait_s, now)
            each.learn({flow: seen})
            if is_no and each.verdicts.no():
                return True
        return False

    # -- what they learn from

    def refused_again(self, flow: FlowKey, edge: int | None, now: float) -> None:
        """A new request was refused as late unasked: a no of all who would have said so."""
        for each in self._hear_refusals:
            each.refused_again(flow, edge, now)
        for verdicts in self._late:
            verdicts.no()

    def waited(self, tracked: TrackedRequest, now: float, *, taken: bool) -> None:
        """One with a forecast goes to a replica (`taken`), or has turned late."""
        wait_s = now - tracked.queued_at
        for each in self._hear_waits:
            each.waited(tracked, wait_s, now, taken=taken)

    def served(self, work: Sequence[FlowWork], now: float, *, late: bool) -> None:
        for each in self._hear_work:
            each.served(work, now, late=late)

    # -- shown

    def snapshot(self, capacity: float, now: float) -> tuple[ControllerSnapshot, ...]:
        """In the registry's order, whichever they are asked in."""
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


def _overriding(controllers: Iterable[T], news: Callable[..., Any]) -> tuple[T, ...]:
    """Those that want to hear: the others are not called for nothing."""
    name = news.__name__
    return tuple(each for each in controllers if getattr(type(each), name) is not news)
