"""How fast does each tenant's error budget burn, for each model? Recording rules and alerts.

A request is good if it was answered within its model's `slo`. It is bad if it was answered later or
ended in a 5xx. A request that ended in a 4xx, or whose caller left, is neither. `OBJECTIVE` is the
share of good requests that is promised; one less `OBJECTIVE` is the error budget. At a burn rate of
1, the budget lasts exactly 30 days.

An alert fires if the burn rate is high over a long window, so that the loss matters, and over a
short window, so that the alert ends soon after the trouble. It also needs `FEWEST_REQUESTS`
requests in the long window, since one bad request of three says little.

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
    """A pair of windows, and the burn rate above which an alert fires in both."""

    long: str
    short: str
    rate: float
    hours: float  # length of the long window


FAST = (Burn("1h", "5m", 14.4, 1.0), Burn("6h", "30m", 6.0, 6.0))
SLOW = (Burn("1d", "2h", 3.0, 24.0), Burn("3d", "6h", 1.0, 72.0))
HOURS = ("5m", "30m", "1h", "2h", "6h")
DAYS = ("1d", "3d")
# Between two evaluations of the rules over days, which cost much and change slowly. One minute less
# than Prometheus's lookback of five minutes: a longer interval would leave gaps.
DAYS_INTERVAL = "4m"
# Requests that came before a model was first ready have the label `other`; for these there is the
# alert `HeadraceModelIsNotReady`.
_EVER_READY = 'model!="other"'


def counted_outcomes() -> tuple[str, ...]:
    """Outcomes of good and bad requests: `ok` and every 5xx of the table of errors."""
    return (ANSWERED, *sorted({each.outcome for each in _errors() if each.status >= 500}))


def ended(window: str, chosen: str = "") -> str:
    """Good and bad requests a second. `chosen`: as in `queries`."""
    outcomes = f'outcome=~"{"|".join(counted_outcomes())}"'
    return rate("requests_total", FLOW, window, f"{outcomes},{chosen}" if chosen else outcomes)


def kept(window: str, chosen: str = "") -> str:
    """Good requests a second."""
    return rate("slo_kept_total", FLOW, window, chosen)


def missed(window: str, chosen: str = "") -> str:
    """The share of bad requests. A model that never was ready has no series of good requests."""
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
            f"{{{{ $labels.model }}}} miss their promise: a month's error budget lasts {budget}."
        ),
        look_at=(
            "The dashboard by tenant: which outcome, which stage? If all tenants are affected, the "
            "war room: queue depth, replicas, batch times."
        ),
    )


def _too_fast(burn: Burn) -> str:
    limit = f"{burn.rate:g} * {1 - OBJECTIVE:g}"
    fewest = f"{FEWEST_REQUESTS} / {burn.hours * 3600:g}"
    return (
        f"headrace:slo_missed:ratio_rate{burn.long} > {limit}"
        f" and headrace:slo_missed:ratio_rate{burn.short} > {limit}"
        f" and headrace:requests_ended:rate{burn.long} > {fewest}"
    )


def _errors() -> list[type[errors.HeadraceError]]:
    found = [errors.HeadraceError]
    for each in found:
        found += each.__subclasses__()
    return found
