"""Prometheus's alerts on a server: one description, and the rule file made from it.

Every alert names something that a person can act on, and fires only after it has lasted for a
while. Alerts are told apart by model (those of GPUs by GPU), and by namespace where Prometheus adds
that label. Those on the error budget follow The Site Reliability Workbook (Google, 2018), chapter
5, "Multiwindow, Multi-Burn-Rate"; the file, prometheus.io, "Alerting rules".

Gateways' values are added, or the worst one counts. Whether a model is ready is the exception: the
best gateway counts, since another may belong to a cluster that still starts. A metric that does not
exist (no GPU, no `hedge`) fires no alert.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from deployments.contract import errors
from deployments.tools.observability.promql import (
    Alert,
    RecordedSeries,
    RuleGroup,
    Severity,
    deviation,
    mean,
    quantile,
    rate,
)

# How fast does each tenant's error budget burn, for each model? A request is good if it was
# answered within its model's `slo`, bad if later or with a 5xx; one that ended in a 4xx, or whose
# caller left, is neither. At a burn rate of 1, the budget (1 - OBJECTIVE) lasts 30 days. An alert
# fires if the rate is high over a long window, so that the loss matters, and over a short one, so
# that the alert ends soon after the trouble.
OBJECTIVE = 0.99
FLOW = "namespace, model, tenant"
FEWEST_REQUESTS = 50  # in the long window: one bad request of three says little
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
    """Good and bad requests a second. `chosen`: as in `promql`."""
    outcomes = f'outcome=~"{"|".join(counted_outcomes())}"'
    return rate("requests_total", FLOW, window, f"{outcomes},{chosen}" if chosen else outcomes)


def kept(window: str, chosen: str = "") -> str:
    """Good requests a second."""
    return rate("slo_kept_total", FLOW, window, chosen)


def missed(window: str, chosen: str = "") -> str:
    """The share of bad requests. A model that never was ready has no series of good requests."""
    whole, good = ended(window, chosen), kept(window, chosen)
    return f"clamp_min(1 - ({good} or 0 * {whole}) / ({whole} > 0), 0)"


def slo_groups() -> tuple[RuleGroup, ...]:
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
            "overview: queue depth, replicas, batch times."
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


MODEL = "namespace, model"
_QUEUE = "headrace:queue_rows:sum"
_KEY = "namespace, tenant, key"
_OWNER = "{{ with $labels.tenant }}tenant {{ . }}{{ else }}an operator{{ end }}"
_DAY_S = 86_400
_FEWEST_ROWS = 10
_FEWEST_BATCHES = 30
_HOUR_BEFORE = f"avg_over_time({_QUEUE}[1h] offset 1h)"  # excludes the rows that wait now


def rule_groups() -> tuple[RuleGroup, ...]:
    return (*slo_groups(), RuleGroup("headrace", (QUEUE_ROWS, *ALERTS)))


def alerts() -> tuple[Alert, ...]:
    return tuple(rule for group in rule_groups() for rule in group.rules if isinstance(rule, Alert))


QUEUE_ROWS = RecordedSeries(_QUEUE, f"sum by ({MODEL}) (headrace_queue_rows)")

ALERTS = (
    Alert(
        "HeadraceIsGone",
        "count by (namespace, job) (present_over_time(headrace_model_ready[3h])) unless "
        "count by (namespace, job) (headrace_model_ready)",
        "5m",
        Severity.CRITICAL,
        "Prometheus gets no metrics from any gateway of {{ $labels.job }} any more.",
        "Its pods or processes: do they run, and does Prometheus reach them (page \"Targets\")? On "
        "Kubernetes, `kubectl get pods`.",
    ),
    Alert(
        "HeadraceQueueGrows",
        f"{_QUEUE} > 3 * ({_HOUR_BEFORE} or avg_over_time({_QUEUE}[1h])) "
        f"and {_QUEUE} > {_FEWEST_ROWS}",
        "2m",
        Severity.WARNING,
        "{{ $value | humanize }} rows wait for {{ $labels.model }}, over three times the average "
        "of an hour before.",
        "Arrivals by tenant (does one send more?), replicas (is one missing or ejected?), batch "
        "times (are they longer than predicted?).",
    ),
    Alert(
        "HeadraceRowsAreLate",
        f"sum by ({MODEL}) (headrace_queue_late_rows) > {_FEWEST_ROWS}",
        "10m",
        Severity.WARNING,
        "{{ $value | humanize }} rows for {{ $labels.model }} wait past their deadline.",
        "Arrivals and answers, replicas, time by stage: more requests arrive than are served, or "
        "a backlog does not shrink.",
    ),
    Alert(
        "HeadraceTailIsLong",
        f"{quantile(0.95, 'request_seconds', MODEL, '10m')} > "
        f"3 * {quantile(0.5, 'request_seconds', MODEL, '10m')}",
        "15m",
        Severity.INFO,
        "The slowest twentieth of requests to {{ $labels.model }} takes over {{ $value | "
        "humanizeDuration }}, more than three times the median.",
        "Time by stage: a long `queue` means too few replicas, a long `run` a slow replica or "
        "very different lengths in one bucket.",
    ),
    Alert(
        "HeadraceBatchTimesVary",
        f"{deviation(f'{MODEL}, bucket', '10m')} > 0.4 and sum by ({MODEL}, bucket) "
        f"(increase(headrace_service_seconds_count[10m])) > {_FEWEST_BATCHES}",
        "15m",
        Severity.INFO,
        "Batch times of {{ $labels.model }} up to {{ $labels.bucket }} tokens deviate by "
        "{{ $value | humanizePercentage }} of their mean.",
        "Rows in a batch (batches of different sizes take different times), measured over "
        "predicted time, slowdown by replica.",
    ),
    Alert(
        "HeadracePaddingIsHigh",
        f"{mean('padding_ratio', MODEL, '15m')} > 0.3",
        "15m",
        Severity.WARNING,
        "{{ $value | humanizePercentage }} of what {{ $labels.model }} computes is padding.",
        "Waiting rows by bucket: callers' lengths may no longer fit the buckets' edges.",
    ),
    Alert(
        "HeadraceAccountingDrifts",
        f"max by ({MODEL}) (abs(headrace_accounting_drift)) > 0 or "
        f"max by ({MODEL}) (abs(headrace_replica_accounting_drift)) > 0",
        "2m",
        Severity.CRITICAL,
        "A gateway's count of batches of {{ $labels.model }} differs by {{ $value }} from the "
        "batches that exist.",
        "Accounting drift by gateway and replica, and the logs of both since it began. This is a "
        "bug of Headrace.",
    ),
    Alert(
        "HeadraceColdStarts",
        f"changes((max by ({MODEL}) (headrace_asleep))[1h:1m]) >= 6",
        "0m",
        Severity.WARNING,
        "{{ $labels.model }} fell asleep or woke {{ $value }} times in an hour.",
        "Its arrivals, and its time to capacity: how long a request that wakes it waits.",
    ),
    Alert(
        "HeadraceModelIsNotReady",
        f"max by ({MODEL}, optional) (headrace_model_ready) == 0",
        "10m",
        Severity.WARNING,
        "No gateway reaches a replica of {{ $labels.model }}: its requests are refused.",
        "`headrace status` says what the model waits for; on Kubernetes, `kubectl describe pod`.",
    ),
    Alert(
        "HeadraceCopyBudgetIsSpent",
        f"min by ({MODEL}) (headrace_copy_budget_seconds) < "
        f"{mean('service_seconds', MODEL, '10m')} and sum by ({MODEL}) "
        "(increase(headrace_hedges_total[1h]) + increase(headrace_ties_total[1h])) > 0",
        "10m",
        Severity.WARNING,
        "{{ $labels.model }} has {{ $value | humanizeDuration }} of device time left for copies of "
        "batches, less than one batch takes.",
        "Copies sent and won, retries, probes, slowdown by replica: many copies mean slow or lost "
        "replicas.",
    ),
    Alert(
        "HeadraceReplicaIsEjected",
        f"max by ({MODEL}, replica) (headrace_replica_ejected) == 1",
        "2m",
        Severity.WARNING,
        "Replica {{ $labels.replica }} of {{ $labels.model }} is ejected: it gets no work because "
        "it is slow.",
        "The replica's slowdown, and its node: other load, a throttled GPU, memory.",
    ),
    Alert(
        "HeadraceReplicaIsSilent",
        f"max by ({MODEL}, replica) (headrace_replica_suspended) == 1",
        "1m",
        Severity.WARNING,
        "Replica {{ $labels.replica }} of {{ $labels.model }} has stopped sending messages and "
        "gets no work.",
        "Is the replica's process stopped, or its node swapping or cut off? The logs of both.",
    ),
    Alert(
        "HeadraceKeyExpiresSoon",
        f"max by ({_KEY}) (headrace_key_expires_timestamp_seconds) - time() < {14 * _DAY_S} and "
        f"max by ({_KEY}) (headrace_key_expires_timestamp_seconds) > time() and "
        f"max by ({_KEY}) (headrace_key_last_used_timestamp_seconds) > time() - {3 * _DAY_S}",
        "10m",
        Severity.WARNING,
        f"Key {{{{ $labels.key }}}} (in use) of {_OWNER} expires in "
        "{{ $value | humanizeDuration }}.",
        "Who uses it (headrace_key_requests_total)? Make another with `headrace key new` and give "
        "it to them.",
    ),
    Alert(
        "HeadraceExpiredKeyIsUsed",
        f"sum by ({_KEY}) (increase(headrace_key_expired_requests_total[1h])) > 0",
        "5m",
        Severity.WARNING,
        "Key {{ $labels.key }} has expired, and about {{ $value | humanize }} requests that "
        "brought it were refused in an hour.",
        "Access log lines with this `key_id` say who sends it. Give these callers a new key.",
    ),
    Alert(
        "HeadraceTenantsAreOld",
        "max by (namespace, gateway) (headrace_tenants_age_seconds) > 30",
        "1m",
        Severity.WARNING,
        "Gateway {{ $labels.gateway }} could not read tenants and keys for "
        "{{ $value | humanizeDuration }}: keys revoked since then still work there.",
        "Does Ray's GCS answer? Does the tenants' file, if the settings name one, still exist? "
        "The gateway's log; `headrace status`.",
    ),
    Alert(
        "HeadraceControllerHangs",
        "round(max by (namespace) (increase(headrace_serve_controller_ends_total[1h]))) >= 2",
        "0m",
        Severity.WARNING,
        "Serve's controller was ended {{ $value }} times in an hour, because it hung.",
        "The registry's log and the audit log say why. The head's processors and memory, the "
        "number of replicas and applications, the controller's own log.",
    ),
    Alert(
        "HeadraceGpuMemoryIsFull",
        "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) > 0.97",
        "10m",
        Severity.WARNING,
        "{{ $value | humanizePercentage }} of GPU {{ $labels.gpu }}'s memory on "
        "{{ $labels.Hostname }} is in use.",
        "Which processes run there, and the memory that they need by `headrace plan mig`.",
    ),
    Alert(
        "HeadraceGpusIdleWhileRowsWait",
        f"avg(DCGM_FI_PROF_GR_ENGINE_ACTIVE) < 0.2 and on () sum({_QUEUE}) > {_FEWEST_ROWS}",
        "15m",
        Severity.WARNING,
        "GPUs are busy {{ $value | humanizePercentage }} of the time while rows wait.",
        "Time by stage: which stage besides `run` is long? Rows in a batch, idle gaps, replicas "
        "per GPU.",
    ),
)  # fmt: skip


RUNBOOK = "docs/alerts.md"


class _Dumper(yaml.SafeDumper):
    """Writes strings of several lines in YAML's block style, so that queries stay readable."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def rules_file(groups: Sequence[RuleGroup] = rule_groups()) -> str:
    return yaml.dump(rules(groups), Dumper=_Dumper, sort_keys=False, width=1000)


def rules(groups: Sequence[RuleGroup] = rule_groups()) -> dict[str, Any]:
    return {"groups": [_group(group) for group in groups]}


def annotations_of(alert: Alert) -> dict[str, str]:
    """The alert's annotations: summary, where to look, and its section of the runbook."""
    return {
        "summary": alert.summary,
        "description": alert.look_at,
        "runbook_url": f"{RUNBOOK}#{alert.name.lower()}",
    }


def _group(group: RuleGroup) -> dict[str, Any]:
    interval = {"interval": group.interval} if group.interval else {}
    return {"name": group.name, **interval, "rules": [_rule(rule) for rule in group.rules]}


def _rule(rule: RecordedSeries | Alert) -> dict[str, Any]:
    if isinstance(rule, RecordedSeries):
        return {"record": rule.name, "expr": rule.query}
    return {
        "alert": rule.name,
        "expr": rule.query,
        "for": rule.lasts,
        "labels": {"severity": str(rule.severity)},
        "annotations": annotations_of(rule),
    }
