"""What the host remembers of rollouts: of each model the one that is under way, or the last one.

The registry forgets a rollout when its canary is gone, so whoever waits for its end asks the host.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from deployments.contract.rollout.account import RolloutAccount, RolloutRecord, VersionAccount
from deployments.control.deployed import Canary, Deployed
from deployments.control.rollout_reasons import STILL_IN_FILE
from deployments.settings.tree import Settings

Tell = Callable[[str, str, str, Settings, Settings], None]
_NOTHING = VersionAccount(version="", answered=0, failed=0, median_ms=None)


class RolloutRecords:
    """The rollouts by model. `tell` is called at each end with the model, "promoted" or "aborted",
    the reason, and the settings before and after. Any thread may call any method."""

    def __init__(self, tell: Tell = lambda *_: None) -> None:
        self._kept: dict[str, RolloutRecord] = {}
        self._starting: Mapping[str, Canary] = {}
        self._lock = threading.Lock()
        self._tell = tell

    @contextmanager
    def starting(self, canaries: Mapping[str, Canary]) -> Iterator[None]:
        """While the block runs, these canaries (by model) are put but not known to run."""
        self._starting = canaries
        try:
            yield
        finally:
            self._starting = {}

    def note(self, canary: Canary, account: RolloutAccount) -> None:
        """Take in the registry's account. An end that it reports counts only when it is carried
        out. A canary whose end is known, or that has a successor, is ignored."""
        with self._lock:
            known = self._kept.get(canary.model)
            if known is None or (known["id"], known["over"]) <= (canary.number, False):
                self._kept[canary.model] = {**account, "id": canary.number, "over": False}

    def end(self, canary: Canary, why: str, before: Settings, after: Settings) -> None:
        """The rollout has ended: aborted if there is a reason, else promoted. `before` and `after`
        are the live settings."""
        how = "aborted" if why else "promoted"
        with self._lock:
            known = self._of(canary)
            self._kept[canary.model] = {
                **known, "phase": how, "why": why, "over": True, "share": 0.0
            }  # fmt: skip
        self._tell(canary.model, how, why, before, after)

    def listing(self, deployed: Deployed) -> list[RolloutRecord]:
        """All records, by model. A running canary of which the registry has reported nothing yet
        counts as being checked."""
        found = dict(self._kept)
        starting = self._starting
        for canary in deployed.canaries.values():
            if canary.undecided:
                found[canary.model] = self._of(canary)
        for name, canary in starting.items():
            found[name] = {**self._of(canary), "phase": "starting"}
        return [found[name] for name in sorted(found)]

    def undecided(self, deployed: Deployed, model: str) -> str:
        """Why the model's rollout cannot be decided now; "" if it can."""
        if model not in deployed.settings.models:
            return f"no model {model!r}; there are: {', '.join(deployed.settings.models)}"
        if model in self._starting:
            return f"the new version of {model} is still starting: ask again once it runs"
        canary = deployed.canaries.get(model)
        if canary is not None and canary.undecided:
            return ""
        last = self._kept.get(model)
        if last is not None and last["over"]:
            because = f" ({last['why']})" if last["why"] else ""
            return f"the last rollout of {model} is over: {last['phase']}{because}"
        others = [c.model for c in deployed.canaries.values() if c.undecided]
        return f"no rollout of {model} is under way; under way: {', '.join(others) or 'none'}"

    def _of(self, canary: Canary) -> RolloutRecord:
        known = self._kept.get(canary.model)
        if known is not None and known["id"] == canary.number:
            return known
        return {**unseen(canary), "id": canary.number, "over": False}


def end_sentence(model: str, how: str, why: str) -> str:
    """A rollout's end as a log line."""
    if how == "promoted":
        return f"rollout of {model}: promoted, the new version is the live one"
    return f"rollout of {model}: aborted, the live version goes on: {why} ({STILL_IN_FILE})"


def unseen(canary: Canary) -> RolloutAccount:
    """The account of a rollout of which the registry has reported nothing yet."""
    terms = canary.terms
    return RolloutAccount(
        model=canary.model,
        number=canary.rollout or 0,
        phase="checking",
        share=0.0,
        step=1,
        steps=len(terms.shares),
        held_s=0.0,
        hold_s=terms.hold_s,
        why="",
        live=_NOTHING,
        canary=_NOTHING,
        copies=_NOTHING,
        compared=0,
        agreed=0,
    )
