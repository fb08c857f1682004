"""Which keys are used: how often, when last, when each ends, and how often after its end.

By a key's id, never the key. Only keys that are in force are counted, and at most `MAX_NAMED` of
them by their own ids (the rest together as `other`), so that the number of series is bounded by the
settings. Times are of the wall clock, seconds since the epoch; a key that was not used since the
gateway started has 0 uses and no time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from deployments.gateway.telemetry.sample_tables import OTHER
from deployments.gateway.tenancy.tenants import Key

MAX_NAMED = 1000
_DAY_S = 86_400
KeyLabels = tuple[str, str]
"""Tenant ("" of an operator's) and id."""


@dataclass(slots=True)
class KeyUse:
    """`ends_s`: None: never, or of several together. `late_uses`: refused, for it had expired."""

    uses: int = 0
    last_s: float | None = None
    ends_s: float | None = None
    late_uses: int = 0
    noted_day: int = -1  # the last one of which a use is in the audit log, days since the epoch


class KeyUses:
    def __init__(self) -> None:
        self._by_id: dict[str, tuple[KeyLabels, KeyUse]] = {}
        self._declared: tuple[Key, ...] = ()

    def declare(self, keys: tuple[Key, ...]) -> None:
        """Those in force; what is known of them stays, all others are forgotten."""
        if keys is self._declared:
            return
        before, self._declared = self._by_id, keys
        rest = before.get("", (("", OTHER), KeyUse()))[1]
        self._by_id = {}
        for key in keys[:MAX_NAMED]:
            labels = key.tenant.name if key.tenant is not None else "", key.id
            known = before.get(key.id)
            use = known[1] if known is not None and known[0] == labels else KeyUse()
            use.ends_s = None if key.ends_s == inf else key.ends_s
            self._by_id[key.id] = labels, use
        if len(keys) > MAX_NAMED:
            self._by_id[""] = ("", OTHER), rest

    def used(self, key: str, wall_s: float) -> None:
        found = self._find(key)
        if found is not None:
            found.uses += 1
            found.last_s = wall_s

    def used_late(self, key: str) -> None:
        found = self._find(key)
        if found is not None:
            found.late_uses += 1

    def take_first_of_day(self, most: int) -> list[KeyLabels]:
        """Keys whose last use is the first that this gateway saw on its day (UTC), each once; the
        rest of more than `most` with the next call. Keys counted together are left out."""
        found: list[KeyLabels] = []
        for labels, use in self:
            if len(found) == most:
                break
            day = -1 if use.last_s is None else int(use.last_s // _DAY_S)
            if day > use.noted_day and labels[1] != OTHER:
                use.noted_day = day
                found.append(labels)
        return found

    def _find(self, key: str) -> KeyUse | None:
        found = self._by_id.get(key) or self._by_id.get("")
        return None if found is None else found[1]

    def __iter__(self) -> Iterator[tuple[KeyLabels, KeyUse]]:
        return iter(list(self._by_id.values()))
