"""The dashboard for a bad hour: what comes, what waits, how long it takes, what devices do."""

from __future__ import annotations

from deployments.tools.observability import queries
from deployments.tools.observability.queries import RATE_WINDOW
from deployments.tools.observability.types import Dashboard, Panel, Query, Row, Variable

CHOSEN = 'namespace=~"$namespace",model=~"$model"'
NO_DCGM = "there is no GPU, or no dcgm-exporter"
STAGE_QUANTILES = (0.5, 0.95, 0.99)


def rate(counter: str, by: str, more: str = "") -> str:
    return queries.rate(counter, by, RATE_WINDOW, CHOSEN + more)


def mean(histogram: str, by: str) -> str:
    return queries.mean(histogram, by, RATE_WINDOW, CHOSEN)


def total(gauge: str, by: str) -> str:
    return f"sum by ({by}) (headrace_{gauge}{{{CHOSEN}}})"


def worst(gauge: str, by: str) -> str:
    return f"max by ({by}) (headrace_{gauge}{{{CHOSEN}}})"


def by_model(query: str) -> str:
    return f"sum by (model) ({query})"


def quantiles(histogram: str) -> tuple[Query, ...]:
    """p50, p95 and p99 of everything chosen."""
    return tuple(
        Query(queries.quantile(q, histogram, "", RATE_WINDOW, CHOSEN), f"p{q * 100:g}")
        for q in STAGE_QUANTILES
    )


def _stages(q: float) -> Panel:
    says = (
        "Of requests: upstream, parse, tokenize, queue, reply. Of batches: pad, copy, run, post, "
        "transport."
    )
    query = queries.quantile(q, "stage_seconds", "stage", RATE_WINDOW, CHOSEN)
    by_stage = (Query(query, "{{stage}}"),)
    return Panel(f"p{q * 100:g} by stage", says, "s", by_stage, logarithmic=True)


_ARRIVED = f"({rate('arrivals_total', 'tenant')} > 0)"
ARRIVALS = Row(
    "Arrivals",
    (
        Panel(
            "Arrivals by tenant", "Requests whose tenant and model are known.", "reqps",
            (Query(rate("arrivals_total", "tenant"), "{{tenant}}"),), stacked=True,
        ),
        Panel(
            "Ends by outcome", "`ok` and what went wrong, by the table of errors.", "reqps",
            (Query(rate("requests_total", "outcome"), "{{outcome}}"),), stacked=True,
        ),
        Panel(
            "Refused and failed, by reason", "What the reasons mean: docs/observability.md.",
            "reqps",
            (
                Query(
                    rate("requests_total", "outcome, reason", ',outcome!="ok"'),
                    "{{outcome}} {{reason}}",
                ),
            ),
            may_be_empty="nothing was refused, and nothing failed",
        ),
        Panel(
            "Within the promise, by tenant",
            "Answers within the model's `slo`, of requests that arrived.", "percentunit",
            (Query(f"{rate('slo_kept_total', 'tenant')} / {_ARRIVED}", "{{tenant}}"),),
        ),
    ),
)  # fmt: skip

QUEUE = Row(
    "Queue",
    (
        Panel(
            "Queue depth", "Rows that wait, and those past their deadline.", "short",
            (
                Query(total("queue_rows", "model"), "{{model}}"),
                Query(total("queue_late_rows", "model"), "{{model}}, late"),
            ),
        ),
        Panel(
            "Queue depth by bucket", "Rows that wait, by their bucket's longest length in tokens.",
            "short", (Query(total("bucket_queue_rows", "bucket"), "to {{bucket}}"),), stacked=True,
        ),
        Panel(
            "Backlog and oldest wait",
            "Predicted service time of what waits, and how long the oldest row has waited.", "s",
            (
                Query(total("backlog_seconds", "model"), "{{model}} backlog"),
                Query(worst("queue_oldest_wait_seconds", "model"), "{{model}} oldest"),
            ),
        ),
    ),
)  # fmt: skip

LATENCY = Row(
    "Latency",
    (
        Panel(
            "Total time", "Of answered requests, from the headers to the last byte.", "s",
            quantiles("request_seconds"), logarithmic=True,
        ),
        *(_stages(q) for q in STAGE_QUANTILES),
    ),
)  # fmt: skip


def _fill() -> str:
    """Rows that ran over rows that would have, had each batch been its bucket's full one."""
    batches = rate("service_seconds_count", "model, bucket")
    full = f"max by (model, bucket) (headrace_batch_size_target{{{CHOSEN}}})"
    return f"{rate('batch_size_sum', 'model')} / sum by (model) ({batches} * {full})"


BATCHES = Row(
    "Batches",
    (
        Panel(
            "Batch fill", "Rows in batches over rows in full ones; more than 1 where edges moved.",
            "percentunit", (Query(_fill(), "{{model}}"),),
        ),
        Panel(
            "Rows in a batch", "Their mean.", "short",
            (Query(mean("batch_size", "model"), "{{model}}"),),
        ),
        Panel(
            "Padding", "Padding's share of a batch's tokens, mean of batches.", "percentunit",
            (Query(mean("padding_ratio", "model"), "{{model}}"),),
        ),
        Panel(
            "Batch time by bucket", "Mean service time of a batch.", "s",
            (Query(mean("service_seconds", "bucket"), "to {{bucket}}"),),
        ),
        Panel(
            "Deviation of batch times", "Standard deviation over mean, by bucket.", "percentunit",
            (Query(queries.deviation("bucket", RATE_WINDOW, CHOSEN), "to {{bucket}}"),),
        ),
        Panel(
            "Measured over predicted", "Batch times, p50, p95 and p99. 1: the cost model is right.",
            "short", quantiles("cost_ratio"),
        ),
    ),
)  # fmt: skip

DEVICES = Row(
    "Accelerators",
    (
        Panel(
            "Occupancy by replica", "Share of time that its device runs our batches, lately.",
            "percentunit", (Query(worst("replica_duty_cycle", "replica"), "{{replica}}"),),
        ),
        Panel(
            "Replicas", "That may be given batches, that are asked for, and that start.", "short",
            (
                Query(worst("replicas", "model"), "{{model}} serving"),
                Query(by_model(worst("target_replicas", "model, group")), "{{model}} target"),
                Query(worst("starting_replicas", "model"), "{{model}} starting"),
                Query(worst("asleep", "model"), "{{model}} asleep"),
            ),
        ),
        Panel(
            "Slowdown by replica", "Measured over predicted batch time; the worst gateway's.",
            "short", (Query(worst("replica_slowdown", "replica"), "{{replica}}"),),
        ),
        Panel(
            "Left out", "Replicas that are ejected as slow, or silent.", "short",
            (
                Query(by_model(worst("replica_ejected", "model, replica")), "{{model}} ejected"),
                Query(by_model(worst("replica_suspended", "model, replica")), "{{model}} silent"),
            ),
        ),
        Panel(
            "GPU engine busy", "By dcgm-exporter; of a MIG device its own part.", "percentunit",
            (Query("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "{{Hostname}} {{gpu}} {{GPU_I_ID}}"),),
            may_be_empty=NO_DCGM,
        ),
        Panel(
            "GPU memory in use", "By dcgm-exporter.", "percentunit",
            (
                Query(
                    "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)",
                    "{{Hostname}} {{gpu}} {{GPU_I_ID}}",
                ),
            ),
            may_be_empty=NO_DCGM,
        ),
    ),
)  # fmt: skip

COPIES = Row(
    "Copies, losses, books",
    (
        Panel(
            "Copies", "Of batches that took long, stood behind another, or were lost.", "short",
            (
                Query(rate("hedges_total", "model"), "{{model}} hedges"),
                Query(rate("hedges_won_total", "model"), "{{model}} hedges won"),
                Query(rate("ties_total", "model"), "{{model}} ties"),
                Query(rate("retries_total", "model"), "{{model}} retries"),
                Query(rate("probes_total", "model"), "{{model}} probes"),
            ),
        ),
        Panel(
            "Copy budget", "Device time that copies may cost now, the poorest gateway's.", "s",
            (Query(f"min by (model) (headrace_copy_budget_seconds{{{CHOSEN}}})", "{{model}}"),),
        ),
        Panel(
            "Batches by end", "`lost`: with their replica. `returned`: another gateway's turn.",
            "short", (Query(rate("batches_total", "end"), "{{end}}"),), stacked=True,
        ),
        Panel(
            "Accounting drift", "Batches accounted for less batches that there are. Always 0.",
            "short",
            (Query(f"max by (model) (abs(headrace_accounting_drift{{{CHOSEN}}}))", "{{model}}"),),
        ),
    ),
)  # fmt: skip

WAR_ROOM = Dashboard(
    "headrace-war-room",
    "Headrace: war room",
    "What comes, what waits, what takes how long, what the devices do.",
    (Variable("namespace", "headrace_arrivals_total"), Variable("model", "headrace_replicas")),
    (ARRIVALS, QUEUE, LATENCY, BATCHES, DEVICES, COPIES),
)
