"""Changes Serve's list for several writers, none of whom undoes another silently.

Serve replaces the whole list at a `PUT`, without a condition. So a writer leases the list:
1. `GET`. While another writer holds the lease, wait for at most `PATIENCE_S`. A lease that has not
   moved for `DEAD_S` by the writer's own clock belongs to a writer that ended.
2. `PUT` the same list with the lease. Losing this race undoes nothing.
3. After `GAP_S`, `GET`. Without its lease at its revision, the writer begins again.
4. `PUT` the changed list, without the lease, with the id of the change.
5. Each second for `SETTLED_S`, `GET`. Without the id, another list undid the change: raise.
After that, if no request takes longer than `GAP_S`, nobody who read the list before the change can
undo it. The process that drives rollouts writes only while nobody has a lease, and derives again
what it loses.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from deployments.contract.app_names import CONTROL_APP
from deployments.contract.listed import MAX_CHANGES, Control, ListChange, ListLease
from deployments.control.application_list import AppList, beside_others, by_name, ours
from deployments.control.dashboard import ClusterError, ServeApplications
from deployments.process import audit

GAP_S = 2.0
# A list is never put more than `GAP_S` after it was read, so a writer's `PUT` reaches Serve within
# `GAP_S` and the time of one request after its `GET`.
SETTLED_S = 2 * GAP_S
DEAD_S = 10.0
PATIENCE_S = 20.0
_LOOKS_S = 0.5
_SETTLES_S = 1.0  # between two looks whether a change stands
_TRIES = 5
Config = Mapping[str, Any]
Details = Mapping[str, Any]


class ChangeLost(ClusterError):
    """Another list has replaced the one with this change."""


class _LeaseLost(Exception):
    """The lease, to another writer."""


class Writer:
    """`settled_at_s`: when, by the clock, nobody can undo the last change any more. Tests may
    replace `pause` and `clock`."""

    def __init__(
        self,
        rest: ServeApplications,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        who: str = "",
    ) -> None:
        self._rest = rest
        self._pause = pause
        self._clock = clock
        self._who = who or audit.user()
        self.settled_at_s = 0.0

    def change(
        self, verb: str, change: Callable[[Details], Config], *, settles: bool = True
    ) -> str:
        """Put what `change` makes of Serve's details. `change` may be called again, and raises
        ClusterError if it refuses. Returns the id of the change, for `check`. `settles`: look
        whether it stands; otherwise the caller does, each second up to `settled_at_s`."""
        holder = uuid.uuid4().hex[:12]
        for _ in range(_TRIES):
            try:
                self._carry_out(holder, verb, change)
                break
            except _LeaseLost:
                continue
        else:
            raise ClusterError(f"others changed the cluster {_TRIES} times meanwhile; try again")
        self.settled_at_s = self._clock() + SETTLED_S
        while settles and self._clock() < self.settled_at_s:
            self._pause(_SETTLES_S)
            self.check(self._rest.details(), holder)
        return holder

    def check(self, details: Details, change: str) -> None:
        """Raises ChangeLost if another list, put from one that was read before, replaced it.
        A list without the control plane's block, or with newer changes only, is no undoing."""
        control = _control(details)
        if control is None or control.revision is None:
            raise ChangeLost("another list of applications was put meanwhile, by an operator")
        if any(each.id == change for each in control.changes):
            return
        if len(control.changes) == MAX_CHANGES:
            return  # so many others changed it since that this one is not remembered
        last = control.changes[-1] if control.changes else None
        by = f"{last.verb} of {last.who}" if last else "a writer unknown"
        raise ChangeLost(f"the change was undone by {by} (revision {control.revision}); try again")

    def _carry_out(self, holder: str, verb: str, change: Callable[[Details], Config]) -> None:
        revision = self._acquire(holder, verb)
        asked, details = self._look()
        before = _control(details)
        held = before is not None and before.lease is not None and before.lease.holder == holder
        if revision is not None and not (held and before and before.revision == revision):
            raise _LeaseLost
        number = (before.revision or 0) + 1 if before else 1
        try:
            config = change(details)
        except ClusterError:
            if revision is not None:
                self._put(beside(details), revision=number, lease=None)
            raise
        if self._clock() - asked > GAP_S:
            raise _LeaseLost
        mine = ListChange(holder, self._who, verb, number)
        changes = ((*before.changes, mine) if before else (mine,))[-MAX_CHANGES:]
        self._put(config, revision=number, lease=None, changes=changes)

    def _acquire(self, holder: str, verb: str) -> int | None:
        """Take the lease. Returns the revision at which it was taken; None if there is no block to
        hold it."""
        details = self._free(holder)
        before = _control(details)
        if before is None:
            return None
        revision = (before.revision or 0) + 1
        self._put(beside(details), revision=revision, lease=ListLease(holder, self._who, verb))
        self._pause(GAP_S)
        return revision

    def _free(self, holder: str) -> Details:
        """A list, just read, that nobody living has a lease of. Raises ClusterError after
        `PATIENCE_S`."""
        began = since = self._clock()
        seen: tuple[str, int | None] | None = None
        while True:
            asked, details = self._look()
            control = _control(details)
            lease = control.lease if control else None
            if control is None or lease is None or lease.holder == holder:
                if self._clock() - asked <= GAP_S:
                    return details
                continue
            if seen != (lease.holder, control.revision):
                seen, since = (lease.holder, control.revision), self._clock()
            now = self._clock()
            if now - since >= DEAD_S and now - asked <= GAP_S:
                return details
            if now - began >= PATIENCE_S:
                raise ClusterError(
                    f"{lease.who} is changing the cluster ({lease.verb}, for {now - since:.0f} s "
                    "now); try again"
                )
            self._pause(_LOOKS_S)

    def _look(self) -> tuple[float, Details]:
        """When the question was asked, and Serve's details."""
        asked = self._clock()
        return asked, self._rest.details()

    def _put(self, config: Config, **fields: Any) -> None:
        """Put the config with these fields of the control plane's block."""
        listed = AppList.of(by_name(config))
        if listed.own is not None:
            own = listed.with_control(**fields).all()[CONTROL_APP]
            apps = [own if app["name"] == CONTROL_APP else app for app in config["applications"]]
            config = {**config, "applications": apps}
        self._rest.put(config)


def beside(details: Details) -> dict[str, Any]:
    """The list as it is."""
    return beside_others(ours(details).values(), details)


def _control(details: Details) -> Control | None:
    """The block; None if the list has none. Raises NewerFormat."""
    listed = AppList.of(ours(details))
    return None if listed.own is None else listed.control
