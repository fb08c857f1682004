"""Which tenants' promises are broken how fast: the rules of the error budget.

A request is good if it was answered within its model's `slo`; bad if it was not, or ended in a 5xx.
What is the caller's own doing (a 4xx, or leaving) is neither. Of `OBJECTIVE`, the share that should
be good, what is left over is the budget; a burn rate of 1 spends all of it in 30 days. An alert
needs a high burn rate over a long window, so that it matters, and over a short one, so that it ends
when the trouble does; and enough requests, since of three requests one is a third.

Source: The Site Reliability Workbook (Google, 2018), chapter 5, "Multiwindow, Multi-Burn-Rate".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deployments.contract import errors
from deployments.tools.observability.queries import rate
from deployments.tools.observability.types import Alert, RecordedSeries, RuleGroup, Severity

OBJECTIVE = 0.99
FLOW = "namespace, model, tenant"
FEWEST_REQUESTS = 50  # in the long window
ANSWERED = "ok"


@dataclass(frozen=True, slots=True)
class Burn:
    """A pair of windows, and how many times faster than even the budget is spent in both."""

    long: str
    short: str
    rate: float
    hours: float


FAST = (Burn("1h", "5m", 14.4, 1.0), Burn("6h", "30m", 6.0, 6.0))
SLOW = (Burn("1d", "2h", 3.0, 24.0), Burn("3d", "6h", 1.0, 72.0))
HOURS = ("5m", "30m", "1h", "2h", "6h")
DAYS = ("1d", "3d")
# Between two evaluations of what covers days, which is dear and changes slowly. A minute less than
# the five for which Prometheus takes a sample for current: a later one would leave gaps.
DAYS_INTERVAL = "4m"
# Requests before a model was first ready are those of `other`: `HeadraceModelIsNotReady`'s matter.
_EVER_READY = 'model!="other"'


def counted_outcomes() -> tuple[str, ...]:
    """Those that are the server's doing: `ok` and every 5xx of the table of errors."""
    return (ANSWERED, *sorted({each.outcome for each in _errors() if each.status >= 500}))


def ended(window: str, chosen: str = "") -> str:
    """Requests a second that were good or bad. `chosen`: as in `queries`."""
    outcomes = f'outcome=~"{"|".join(counted_outcomes())}"'
    return rate("requests_total", FLOW, window, f"{outcomes},{chosen}" if chosen else outcomes)


def kept(window: str, chosen: str = "") -> str:
    """Of those, the good ones."""
    return rate("slo_kept_total", FLOW, window, chosen)


def missed(window: str, chosen: str = "") -> str:
    """The bad ones' share. What never became ready has no good ones at all."""
    whole, good = ended(window, chosen), kept(window, chosen)
    return f"clamp_min(1 - ({good} or 0 * {whole}) / ({whole} > 0), 0)"


def groups() -> tuple[RuleGroup, ...]:
    return (
        RuleGroup("headrace-slo", _recorded(HOURS)),
        RuleGroup("headrace-slo-days", _recorded(DAYS), DAYS_INTERVAL),
        RuleGroup(
            "headrace-slo-alerts",
            (
                _alert("HeadraceSloBurnsFast", FAST, "2m", Severity.CRITICAL, "days"),
                _alert("HeadraceSloBurnsSlowly", SLOW, "15m", Severity.WARNING, "weeks"),
            ),
        ),
    )


def _recorded(windows: Sequence[str]) -> tuple[RecordedSeries, ...]:
    whole = [
        RecordedSeries(f"headrace:requests_ended:rate{window}", ended(window, _EVER_READY))
        for window in windows
    ]
    bad = [
        RecordedSeries(f"headrace:slo_missed:ratio_rate{window}", missed(window, _EVER_READY))
        for window in windows
    ]
    return (*whole, *bad)


def _alert(
    name: str, burns: tuple[Burn, ...], lasts: str, severity: Severity, budget: str
) -> Alert:
    return Alert(
        name=name,
        query="\nor\n".join(f"({_too_fast(each)})" for each in burns),
        lasts=lasts,
        severity=severity,
        summary=(
            "{{ $value | humanizePercentage }} of {{ $labels.tenant }}'s requests to "
            f"{{{{ $labels.model }}}} miss their promise: a month's budget lasts {budget}."
        ),
        look_at=(
            "The dashboard by tenant: which outcome, which stage. If all tenants are hit, the war "
            "room: queue depth, replicas, batch times."
        ),
    )


def _too_fast(burn: Burn) -> str:
    most = f"{burn.rate:g} * {1 - OBJECTIVE:g}"
    fewest = f"{FEWEST_REQUESTS} / {burn.hours * 3600:g}"
    return (
        f"headrace:slo_missed:ratio_rate{burn.long} > {most}"
        f" and headrace:slo_missed:ratio_rate{burn.short} > {most}"
        f" and headrace:requests_ended:rate{burn.long} > {fewest}"
    )


def _errors() -> list[type[errors.HeadraceError]]:
    found = [errors.HeadraceError]
    for each in found:
        found += each.__subclasses__()
    return found
