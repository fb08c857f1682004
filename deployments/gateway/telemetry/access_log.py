"""A log line for each request that failed, by default of status 500 and above, and for each that
was not let in: 401, 403 and 429.

Metrics count everything; lines are for finding one. A flood of refusals must not cost what it was
refused to save, so at most `max_per_s` lines a second are written of either kind, so that those
who are not let in hide no failure; the next line written says how many were left out. A request
that gets no line costs two comparisons. A key that a caller puts into a path by mistake is cut.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from deployments.process.logs import PerSecond
from yaml_document.credentials import without_keys

logger = logging.getLogger("headrace.access")


@dataclass(frozen=True, slots=True)
class AccessLine:
    """`request_id` as the caller sees it in the answer; never a body, a header or a key. `key_id`:
    of the key it came by. Tokens are those of a request that generates. `version`: of the model,
    which had it last; "": none had."""

    request_id: str
    method: str
    path: str
    status: int
    outcome: str
    reason: str
    model: str
    tenant: str
    total_ms: float
    input_tokens: int | None = None
    output_tokens: int | None = None
    key_id: str = ""
    version: str = ""


NOT_LET_IN = (401, 403, 429)
_ALL_FAILURES = 599


class AccessLog:
    """`min_status`: lowest HTTP status that gets a line; 0 writes all, 600 none."""

    def __init__(self, min_status: int = 500, max_per_s: int = 10) -> None:
        self.min_status = min_status
        self._failures, self._refusals = PerSecond(max_per_s), PerSecond(max_per_s)
        self._suppressed = 0

    def wants(self, status: int, now: float) -> bool:
        """Whether to build and `write` a line; counts it as left out when there are too many.

        `now`: seconds on any clock.
        """
        refusal = status in NOT_LET_IN
        if status < self.min_status and not (refusal and self.min_status <= _ALL_FAILURES):
            return False
        if (self._refusals if refusal else self._failures).take(now):
            return True
        self._suppressed += 1
        return False

    def write(self, line: AccessLine) -> None:
        extra = {name: getattr(line, name) for name in AccessLine.__slots__}
        extra["path"] = path = without_keys(line.path)
        extra["total_ms"] = round(line.total_ms, 3)
        extra["suppressed"] = self._suppressed or None
        self._suppressed = 0
        level = logging.WARNING if line.status >= 500 else logging.INFO
        logger.log(level, "%s %s %d", line.method, path, line.status, extra=extra)

    def settle(self, now: float) -> None:
        """Says what was left out if no line came since; once a second."""
        if self._suppressed and int(now) not in (self._failures.second, self._refusals.second):
            logger.warning("requests without a line", extra={"suppressed": self._suppressed})
            self._suppressed = 0
