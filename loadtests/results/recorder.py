"""Builds a record try by try while a run goes on, in several processes, and merges the parts.

A try counts if it was meant to be sent in the measured time; a retry counts as a further request.
An answer is in time if the whole of it came within its tenant's limit and its tokens kept theirs;
without a limit every answer is in time. Malformed requests are counted apart. Reading what answers'
headers say of batches, buckets and waits costs about a microsecond a try. Times are the player's:
seconds from the start of the warm-up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from loadtests.client.http1 import field as header
from loadtests.client.player import PlayedRequest
from loadtests.client.protocols.types import AnswerFacts
from loadtests.results.latency_histogram import LatencyHistogram
from loadtests.results.record import Client, Record, Second, TenantLengthStats

TURNED_AWAY = (429, 503)
MIN_LAG_S = 0.005
LAG_SHARE_OF_SLO = 0.05
MAX_CPU = 0.9


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """Were an answer's tokens in time: the first within its limit, the others at their rate?

    The tokens of an answer that did not stream cannot be timed: the whole answer must be there by
    the time that both limits allow together. A stream whose first token was not seen is not in
    time. `first_s`: from when a request was meant to be sent; `each_s`: mean time a further token.
    None: no such limit."""

    first_s: float | None = None
    each_s: float | None = None

    def __bool__(self) -> bool:
        return self.first_s is not None or self.each_s is not None

    def kept(
        self, heard: AnswerFacts | None, at_s: float, latency_s: float, *, streams: bool
    ) -> bool:
        """`at_s`: when it was meant to be sent."""
        if heard is None or not self:
            return True
        if not streams:
            return self._whole(heard.tokens_out, latency_s)
        first_s, each_s = heard.first_s, heard.per_token_s
        if self.first_s is not None and (first_s is None or first_s - at_s > self.first_s):
            return False
        return self.each_s is None or each_s is None or each_s <= self.each_s

    def _whole(self, tokens: int, latency_s: float) -> bool:
        if self.first_s is None or self.each_s is None:
            return self.first_s is None or tokens > 1 or latency_s <= self.first_s
        return latency_s <= self.first_s + self.each_s * max(tokens - 1, 0)

    def words(self) -> str:
        """`a first token within 500 ms and further ones every 50 ms`."""
        parts = []
        if self.first_s is not None:
            parts.append(f"a first token within {self.first_s * 1e3:g} ms")
        if self.each_s is not None:
            parts.append(f"further ones every {self.each_s * 1e3:g} ms")
        return " and ".join(parts)


@dataclass(frozen=True, slots=True)
class RecordingRules:
    """What counts, and how. `slos_s`: limits by tenant, None: any answer is in time. `edges`: of
    the length intervals; a longer length counts with the last. `tokens`: limits that a generated
    answer has besides."""

    slos_s: Mapping[str, float | None]
    edges: tuple[int, ...]
    begin_s: float
    end_s: float
    tokens: TokenLimits = field(default_factory=TokenLimits)
    streams: bool = True


@dataclass(slots=True)
class _Moment:
    """One second. `left`, `ended`: tries of the whole run that left and ended in it."""

    second: Second = field(default_factory=Second)
    latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    left: int = 0
    ended: int = 0


class RunRecorder:
    """One process's; `merge` adds up those of several."""

    def __init__(self, terms: RecordingRules) -> None:
        self.terms = terms
        self.cells = {
            name: {edge: TenantLengthStats() for edge in terms.edges} for name in terms.slos_s
        }
        self.moments = [_Moment() for _ in range(max(1, round(terms.end_s - terms.begin_s)))]
        self.batch_sizes: Counter[int] = Counter()
        self.malformed: Counter[str] = Counter()
        self.tokens = self.padded_tokens = 0
        self.tries = 0
        self.lag = LatencyHistogram()
        self.late = LatencyHistogram()  # what is this client's own of the lag

    def ended(self, played: PlayedRequest) -> None:
        self.tries += 1
        self._time_series(played)
        planned, terms = played.planned, self.terms
        if not terms.begin_s <= planned.at_s < terms.end_s:
            return
        self.lag.add(played.left_s - planned.at_s)
        self.late.add(played.taken_s - planned.at_s)
        if planned.malformed:
            self.malformed[played.trouble or str(played.status)] += 1
            return
        moment = self.moments[self._at(planned.at_s)]
        moment.second.offered += 1
        longest = max(planned.lengths)
        place = min(bisect_left(terms.edges, longest), len(terms.edges) - 1)
        cell = self.cells[planned.tenant][terms.edges[place]]
        cell.offered += 1
        cell.retries += planned.attempt > 1
        if played.ok:
            self._answered(played, cell, moment)
        else:
            _unanswered(played, cell, moment)

    def merge(self, other: RunRecorder) -> None:
        for tenant, cells in other.cells.items():
            for edge, cell in cells.items():
                self.cells[tenant][edge].merge(cell)
        for mine, its in zip(self.moments, other.moments, strict=True):
            mine.left += its.left
            mine.ended += its.ended
            mine.latency.merge(its.latency)
            for name in ("offered", "answered", "in_slo", "rejected", "failed"):
                setattr(mine.second, name, getattr(mine.second, name) + getattr(its.second, name))
        self.batch_sizes += other.batch_sizes
        self.malformed += other.malformed
        for name in ("tokens", "padded_tokens", "tries"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.lag.merge(other.lag)
        self.late.merge(other.late)

    def fill(self, record: Record, client: Client, seconds: float) -> None:
        """`seconds`: of the measured time, fewer than planned where a run was ended early."""
        record.seconds = seconds
        record.edges = self.terms.edges
        record.cells = {
            tenant: {edge: cell for edge, cell in cells.items() if cell.offered}
            for tenant, cells in self.cells.items()
        }
        record.time_series = self._seconds()[: max(1, round(seconds))]
        record.batch_sizes = dict(sorted(self.batch_sizes.items()))
        record.malformed = dict(self.malformed)
        record.tokens, record.padded_tokens = self.tokens, self.padded_tokens
        record.client = client
        client.sent, client.lag = self.tries, self.lag

    def behind(self, slo_s: float | None, cpu: float, full: int) -> str:
        """Why the run does not count, "" when it does. `cpu`: the busiest process's share of a
        core; `full`: how many connections there were if all of them were open, else 0."""
        limit_s = max(MIN_LAG_S, LAG_SHARE_OF_SLO * (slo_s or 0.0))
        late_s, lag_s = self.late.percentile_s(99) or 0.0, self.lag.percentile_s(99) or 0.0
        if cpu > MAX_CPU:
            return f"the generator's processor was {cpu:.0%} busy; use more processes"
        if late_s > limit_s:
            return (
                f"the generator fell behind: 1 % of requests left {late_s * 1e3:.1f} ms late or "
                f"more, which may be {limit_s * 1e3:.1f}; it had {cpu:.0%} of a processor, so "
                "something else was busy, or use more processes"
            )
        if full and lag_s > limit_s:
            return (
                f"all {full:,} connections were taken and requests waited {lag_s * 1e3:.1f} ms for "
                "one; allow more connections"
            )
        return ""

    # ---- one try ---------------------------------------------------------------------------------

    def _answered(self, played: PlayedRequest, cell: TenantLengthStats, moment: _Moment) -> None:
        planned = played.planned
        slo_s = self.terms.slos_s[planned.tenant]
        in_slo = (slo_s is None or played.latency_s <= slo_s) and self._tokens_in_time(played)
        cell.in_slo += in_slo
        moment.second.in_slo += in_slo
        cell.latency.add(played.latency_s)
        moment.latency.add(played.latency_s)
        cell.tokens_in += sum(planned.lengths)
        if played.head:
            self._headers(played, cell)
        if played.heard is not None:
            _heard(played.heard, planned.at_s, cell)

    def _tokens_in_time(self, played: PlayedRequest) -> bool:
        terms, at_s = self.terms, played.planned.at_s
        return terms.tokens.kept(played.heard, at_s, played.latency_s, streams=terms.streams)

    def _headers(self, played: PlayedRequest, cell: TenantLengthStats) -> None:
        if (wait_ms := header(played.head, b"x-queue-wait-ms")) is not None:
            cell.wait.add(_number(wait_ms) / 1e3)
        if (size := header(played.head, b"x-batch-size")) is not None:
            self.batch_sizes[int(_number(size))] += 1
        if (edge := header(played.head, b"x-bucket")) is not None:
            lengths = played.planned.lengths
            tokens = sum(lengths)
            self.tokens += tokens
            self.padded_tokens += max(tokens, int(_number(edge)) * len(lengths))

    def _time_series(self, played: PlayedRequest) -> None:
        self.moments[self._at(played.left_s)].left += 1
        if played.ended_s < self.terms.end_s:
            moment = self.moments[self._at(played.ended_s)]
            moment.ended += 1
            moment.second.answered += played.ok and played.ended_s >= self.terms.begin_s

    def _at(self, at_s: float) -> int:
        return min(len(self.moments) - 1, max(0, int(at_s - self.terms.begin_s)))

    def _seconds(self) -> list[Second]:
        under_way, found = 0, []
        for moment in self.moments:
            under_way += moment.left - moment.ended
            moment.second.under_way = under_way
            for name, percent in (("p50_ms", 50), ("p99_ms", 99)):
                found_s = moment.latency.percentile_s(percent)
                setattr(moment.second, name, None if found_s is None else found_s * 1e3)
            found.append(moment.second)
        return found


def _unanswered(played: PlayedRequest, cell: TenantLengthStats, moment: _Moment) -> None:
    reason = played.trouble or str(played.status)
    cell.reasons[reason] = cell.reasons.get(reason, 0) + 1
    turned_away = played.status in TURNED_AWAY
    cell.rejected += turned_away
    moment.second.rejected += turned_away
    moment.second.failed += not turned_away


def _heard(heard: AnswerFacts, at_s: float, cell: TenantLengthStats) -> None:
    cell.tokens_out += heard.tokens_out
    if heard.first_s is not None:
        cell.first.add(heard.first_s - at_s)
    if (per_token_s := heard.per_token_s) is not None:
        cell.per_token.add(per_token_s)


def _number(text: bytes) -> float:
    """0 of what is none: a foreign server's header of the same name."""
    try:
        return max(0.0, float(text))
    except ValueError:
        return 0.0
