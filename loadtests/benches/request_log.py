"""Logs the outcome of every request during faults: answered, refused or lost, and by which fault.

A request is refused if it got 429 or 503 with `Retry-After`. Every other request without a right
answer is lost: no answer, a wrong one, another error. A loss is *promised* by a fault if the
request was under way at the process that the fault ended, or came while nobody could connect. The
log also keeps the longest times in which no caller got an answer. Times are those of
`time.monotonic`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from loadtests.benches.process_faults import Injected

ANYBODY = "anybody"
CONNECT_S = 2.0  # until the port of a killed HAProxy is open again
SILENCE_S = 0.2
_SLACK_S = 0.1  # from a process's end until its callers and this bench notice it


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """The outcome of one request."""

    caller: str
    began_s: float
    ended_s: float
    why: str = ""  # what was wrong; "": a right answer
    refused: bool = False  # with 429 or 503 and `Retry-After`

    @property
    def took_s(self) -> float:
        return self.ended_s - self.began_s


@dataclass(slots=True)
class RequestLog:
    """The outcomes of all requests.

    A gap is the time between two successive right answers, in seconds, with the time at which it
    began. ANYBODY stands for all callers together.
    """

    counts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    failed: list[LoggedRequest] = field(default_factory=list)
    gaps: dict[str, tuple[float, float]] = field(default_factory=dict)
    silences: list[tuple[float, float]] = field(default_factory=list)
    longest_s: dict[str, float] = field(default_factory=dict)
    _last_s: dict[str, float] = field(default_factory=dict)

    def note(self, request: LoggedRequest) -> None:
        if request.why:
            self.failed.append(request)
            self.counts[request.caller]["refused" if request.refused else "lost"] += 1
            return
        self.counts[request.caller]["answered"] += 1
        longest_s = self.longest_s.get(request.caller, 0.0)
        self.longest_s[request.caller] = max(longest_s, request.took_s)
        for who in (request.caller, ANYBODY):
            self._answered(who, request.ended_s)

    def ended(self, who: str, now: float) -> None:
        """Ends the gap of a caller that sends no more requests."""
        if who in self._last_s:
            self._answered(who, now)

    def _answered(self, who: str, now: float) -> None:
        last_s = self._last_s.get(who, now)
        gap = (now - last_s, last_s)
        self.gaps[who] = max(self.gaps.get(who, (0.0, 0.0)), gap)
        if who == ANYBODY and gap[0] >= SILENCE_S:
            self.silences.append(gap)
        self._last_s[who] = now

    @property
    def lost(self) -> list[LoggedRequest]:
        return [each for each in self.failed if not each.refused]

    def total(self, what: str) -> int:
        return sum(counts[what] for counts in self.counts.values())


def promised_by(request: LoggedRequest, injected: Iterable[Injected]) -> Injected | None:
    """The fault that promises this loss, or None."""
    for each in injected:
        struck = each.fault.struck
        if request.caller not in struck.ends or not each.ends:
            continue
        until_s = each.gone_s + (CONNECT_S if struck.port else _SLACK_S)
        if request.began_s <= until_s and request.ended_s >= each.at_s - _SLACK_S:
            return each
    return None


def beyond(lost: Sequence[LoggedRequest], injected: Sequence[Injected]) -> list[LoggedRequest]:
    """The lost requests that no fault promises."""
    return [each for each in lost if promised_by(each, injected) is None]


def silence_s(log: RequestLog, begun_s: float, until_s: float) -> float:
    """The longest gap of ANYBODY that overlaps with the given time; 0 if all are shorter than
    SILENCE_S."""
    return max((s for s, at in log.silences if at <= until_s and at + s >= begun_s), default=0.0)


def by_fault(
    failed: Iterable[LoggedRequest], injected: Sequence[Injected]
) -> dict[int, list[LoggedRequest]]:
    """Failed requests by the last fault before them, as an index of `injected`; -1: before any."""
    found: dict[int, list[LoggedRequest]] = defaultdict(list)
    for request in failed:
        before = sum(each.at_s <= request.ended_s + _SLACK_S for each in injected)
        found[before - 1].append(request)
    return found
