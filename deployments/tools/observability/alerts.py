"""Prometheus's alerts on a server, besides those on the error budget of each tenant (`slo`).

Every alert names something that a person can act on, and fires only after it has lasted for a
while. Alerts are told apart by model (those of GPUs by GPU), and by namespace where Prometheus adds
that label.

Gateways' values are added, or the worst one counts. Whether a model is ready is the exception: the
best gateway counts, since another may belong to a cluster that still starts. A metric that does not
exist (no GPU, no `hedge`) fires no alert. `HeadraceIsGone` fires when the metrics of all gateways
of a job have disappeared. Metrics of GPUs come from dcgm-exporter, for every GPU that it reports.
"""

from __future__ import annotations

from deployments.tools.observability import slo
from deployments.tools.observability.queries import deviation, mean, quantile
from deployments.tools.observability.types import Alert, RecordedSeries, RuleGroup, Severity

MODEL = "namespace, model"
_QUEUE = "headrace:queue_rows:sum"
_KEY = "namespace, tenant, key"
_OWNER = "{{ with $labels.tenant }}tenant {{ . }}{{ else }}an operator{{ end }}"
_DAY_S = 86_400
_FEWEST_ROWS = 10
_FEWEST_BATCHES = 30
_HOUR_BEFORE = f"avg_over_time({_QUEUE}[1h] offset 1h)"  # excludes the rows that wait now


def rule_groups() -> tuple[RuleGroup, ...]:
    return (*slo.groups(), RuleGroup("headrace", (QUEUE_ROWS, *ALERTS)))


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
