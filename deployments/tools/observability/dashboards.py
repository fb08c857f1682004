"""The dashboards: the overview for an incident, and what each tenant asks for and gets.

They are written as the JSON that Grafana's sidecar or its provisioning reads from a file. A row has
three panels. The data source is a variable of the dashboard, so that the file fits any Grafana with
a Prometheus. Source: Grafana's dashboard JSON model, schema version 39 (Grafana 11).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from deployments.tools.observability import alerts, promql
from deployments.tools.observability.promql import Dashboard, Panel, PanelRow, Query, Variable

CHOSEN = 'namespace=~"$namespace",model=~"$model"'
NO_DCGM = "there is no GPU, or no dcgm-exporter"
STAGE_QUANTILES = (0.5, 0.95, 0.99)


def rate(counter: str, by: str, more: str = "") -> str:
    return promql.rate(counter, by, promql.RATE_WINDOW, CHOSEN + more)


def mean(histogram: str, by: str) -> str:
    return promql.mean(histogram, by, promql.RATE_WINDOW, CHOSEN)


def total(gauge: str, by: str) -> str:
    return f"sum by ({by}) (headrace_{gauge}{{{CHOSEN}}})"


def worst(gauge: str, by: str) -> str:
    return f"max by ({by}) (headrace_{gauge}{{{CHOSEN}}})"


def by_model(query: str) -> str:
    return f"sum by (model) ({query})"


def quantiles(histogram: str) -> tuple[Query, ...]:
    """p50, p95 and p99 of everything chosen."""
    return tuple(
        Query(promql.quantile(q, histogram, "", promql.RATE_WINDOW, CHOSEN), f"p{q * 100:g}")
        for q in STAGE_QUANTILES
    )


def _stages(q: float) -> Panel:
    says = (
        "Of requests: upstream, parse, tokenize, queue, reply. Of batches: pad, copy, run, post, "
        "transport."
    )
    query = promql.quantile(q, "stage_seconds", "stage", promql.RATE_WINDOW, CHOSEN)
    by_stage = (Query(query, "{{stage}}"),)
    return Panel(f"p{q * 100:g} by stage", says, "s", by_stage, logarithmic=True)


_ARRIVED = f"({rate('arrivals_total', 'tenant')} > 0)"
ARRIVALS = PanelRow(
    "Arrivals",
    (
        Panel(
            "Arrivals by tenant", "Requests whose tenant and model are known.", "reqps",
            (Query(rate("arrivals_total", "tenant"), "{{tenant}}"),), stacked=True,
        ),
        Panel(
            "Ends by outcome", "`ok`, or what went wrong, by the table of errors.", "reqps",
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

QUEUE = PanelRow(
    "Queue",
    (
        Panel(
            "Queue depth", "Waiting rows; of these, rows past their deadline.", "short",
            (
                Query(total("queue_rows", "model"), "{{model}}"),
                Query(total("queue_late_rows", "model"), "{{model}}, late"),
            ),
        ),
        Panel(
            "Queue depth by bucket", "Waiting rows, by their bucket's longest length in tokens.",
            "short", (Query(total("bucket_queue_rows", "bucket"), "to {{bucket}}"),), stacked=True,
        ),
        Panel(
            "Backlog and oldest wait",
            "Predicted service time of all waiting rows; the wait of the oldest row.", "s",
            (
                Query(total("backlog_seconds", "model"), "{{model}} backlog"),
                Query(worst("queue_oldest_wait_seconds", "model"), "{{model}} oldest"),
            ),
        ),
    ),
)  # fmt: skip

LATENCY = PanelRow(
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
    """Rows that ran, over the rows of as many full batches of the same buckets."""
    batches = rate("service_seconds_count", "model, bucket")
    full = f"max by (model, bucket) (headrace_batch_size_target{{{CHOSEN}}})"
    return f"{rate('batch_size_sum', 'model')} / sum by (model) ({batches} * {full})"


BATCHES = PanelRow(
    "Batches",
    (
        Panel(
            "Batch fill", "Rows in batches over rows in full batches; above 1 after edges moved.",
            "percentunit", (Query(_fill(), "{{model}}"),),
        ),
        Panel(
            "Rows in a batch", "The mean.", "short",
            (Query(mean("batch_size", "model"), "{{model}}"),),
        ),
        Panel(
            "Padding", "Padding's share of a batch's tokens, mean over batches.", "percentunit",
            (Query(mean("padding_ratio", "model"), "{{model}}"),),
        ),
        Panel(
            "Batch time by bucket", "Mean service time of a batch.", "s",
            (Query(mean("service_seconds", "bucket"), "to {{bucket}}"),),
        ),
        Panel(
            "Deviation of batch times", "Standard deviation over mean, by bucket.", "percentunit",
            (Query(promql.deviation("bucket", promql.RATE_WINDOW, CHOSEN), "to {{bucket}}"),),
        ),
        Panel(
            "Measured over predicted", "Batch times' p50, p95, p99. 1: the cost model is right.",
            "short", quantiles("cost_ratio"),
        ),
    ),
)  # fmt: skip

DEVICES = PanelRow(
    "Accelerators",
    (
        Panel(
            "Occupancy by replica", "Share of recent time in which its device ran our batches.",
            "percentunit", (Query(worst("replica_duty_cycle", "replica"), "{{replica}}"),),
        ),
        Panel(
            "Replicas", "Replicas that take batches, that are wanted, and that start.", "short",
            (
                Query(worst("replicas", "model"), "{{model}} serving"),
                Query(by_model(worst("target_replicas", "model, group")), "{{model}} target"),
                Query(worst("starting_replicas", "model"), "{{model}} starting"),
                Query(worst("asleep", "model"), "{{model}} asleep"),
            ),
        ),
        Panel(
            "Slowdown by replica", "Measured over predicted batch time, at the worst gateway.",
            "short", (Query(worst("replica_slowdown", "replica"), "{{replica}}"),),
        ),
        Panel(
            "Left out", "Replicas that get no work: ejected as slow, or silent.", "short",
            (
                Query(by_model(worst("replica_ejected", "model, replica")), "{{model}} ejected"),
                Query(by_model(worst("replica_suspended", "model, replica")), "{{model}} silent"),
            ),
        ),
        Panel(
            "GPU engine busy", "From dcgm-exporter; for a MIG device, its own part.", "percentunit",
            (Query("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "{{Hostname}} {{gpu}} {{GPU_I_ID}}"),),
            may_be_empty=NO_DCGM,
        ),
        Panel(
            "GPU memory in use", "From dcgm-exporter.", "percentunit",
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

COPIES = PanelRow(
    "Copies, losses, books",
    (
        Panel(
            "Copies", "Of batches that took long, waited behind another, or were lost.", "short",
            (
                Query(rate("hedges_total", "model"), "{{model}} hedges"),
                Query(rate("hedges_won_total", "model"), "{{model}} hedges won"),
                Query(rate("ties_total", "model"), "{{model}} ties"),
                Query(rate("retries_total", "model"), "{{model}} retries"),
                Query(rate("probes_total", "model"), "{{model}} probes"),
            ),
        ),
        Panel(
            "Copy budget", "Device time left for copies, at the gateway with the least.", "s",
            (Query(f"min by (model) (headrace_copy_budget_seconds{{{CHOSEN}}})", "{{model}}"),),
        ),
        Panel(
            "Batches by end", "`lost`: with a replica. `returned`: another gateway's turn came.",
            "short", (Query(rate("batches_total", "end"), "{{end}}"),), stacked=True,
        ),
        Panel(
            "Accounting drift", "A gateway's count of batches less batches that exist. Always 0.",
            "short",
            (Query(f"max by (model) (abs(headrace_accounting_drift{{{CHOSEN}}}))", "{{model}}"),),
        ),
    ),
)  # fmt: skip

WAR_ROOM = Dashboard(
    "headrace-overview",
    "Headrace: overview",
    "Arrivals, queue, latency, batches, replicas and devices.",
    (Variable("namespace", "headrace_arrivals_total"), Variable("model", "headrace_replicas")),
    (ARRIVALS, QUEUE, LATENCY, BATCHES, DEVICES, COPIES),
)


_OF_TENANTS = 'namespace=~"$namespace",model=~"$model",tenant=~"$tenant"'
_GENERATES = "no model generates text"


def _rate(counter: str, by: str = "tenant", more: str = "") -> str:
    return promql.rate(counter, by, promql.RATE_WINDOW, _OF_TENANTS + more)


def _total(gauge: str) -> str:
    return f"sum by (tenant) (headrace_{gauge}{{{_OF_TENANTS}}})"


def _quantile(q: float, histogram: str) -> Query:
    query = promql.quantile(q, histogram, "tenant", promql.RATE_WINDOW, _OF_TENANTS)
    return Query(query, f"{{{{tenant}}}} p{q * 100:g}")


def _burn(window: str) -> Query:
    missed = alerts.missed(window, _OF_TENANTS)
    budget = f"{1 - alerts.OBJECTIVE:g}"
    return Query(f"{missed} / {budget}", f"{{{{tenant}}}}, {{{{model}}}}, {window}")


ASKED = PanelRow(
    "Asked for and answered",
    (
        Panel(
            "Arrivals", "Requests whose tenant and model are known.", "reqps",
            (Query(_rate("arrivals_total"), "{{tenant}}"),),
        ),
        Panel(
            "Ends by outcome", "`ok`, or what went wrong.", "reqps",
            (Query(_rate("requests_total", "tenant, outcome"), "{{tenant}} {{outcome}}"),),
        ),
        Panel(
            "Refused and failed, by reason", "What the reasons mean: docs/observability.md.",
            "reqps",
            (
                Query(
                    _rate("requests_total", "tenant, reason", ',outcome!="ok"'),
                    "{{tenant}} {{reason}}",
                ),
            ),
            may_be_empty="nothing was refused, and nothing failed",
        ),
    ),
)  # fmt: skip

PROMISE = PanelRow(
    "Promise",
    (
        Panel(
            "Within the promise", "Answers within the model's `slo`, of requests that arrived.",
            "percentunit",
            (Query(f"{_rate('slo_kept_total')} / ({_rate('arrivals_total')} > 0)", "{{tenant}}"),),
        ),
        Panel(
            "Burn rate", "1: a month's error budget would last exactly a month. 14.4 over an hour "
            "or 6 over six hours fires an alert.", "short", (_burn("5m"), _burn("1h")),
        ),
        Panel(
            "Total time", "Of answered requests.", "s",
            tuple(_quantile(q, "request_seconds") for q in (0.5, 0.95, 0.99)), logarithmic=True,
        ),
        Panel(
            "Queue wait", "Of answered requests.", "s",
            tuple(_quantile(q, "queue_wait_seconds") for q in (0.5, 0.95)), logarithmic=True,
        ),
    ),
)  # fmt: skip

SHARE = PanelRow(
    "Share",
    (
        Panel(
            "Device time", "Service seconds a second that the tenant got; weights divide them.",
            "short", (Query(_rate("tenant_served_seconds_total"), "{{tenant}}"),), stacked=True,
        ),
        Panel(
            "Rows that wait", "Late rows included.", "short",
            (Query(_total("tenant_queue_rows"), "{{tenant}}"),), stacked=True,
        ),
        Panel(
            "Backlog", "Predicted service time of waiting rows that are not late.", "s",
            (Query(_total("tenant_backlog_seconds"), "{{tenant}}"),), stacked=True,
        ),
    ),
)  # fmt: skip

GENERATED = PanelRow(
    "Generated text",
    (
        Panel(
            "Tokens", "Of prompts; of prompts, found in a replica's cache; of outputs.", "short",
            tuple(
                Query(_rate(f"{kind}_tokens_total"), f"{{{{tenant}}}} {kind}")
                for kind in ("input", "cached", "output")
            ),
            may_be_empty=_GENERATES,
        ),
        Panel(
            "Time to the first token", "Of answers that streamed.", "s",
            tuple(_quantile(q, "time_to_first_token_seconds") for q in (0.5, 0.95)),
            may_be_empty=_GENERATES,
        ),
        Panel(
            "Time per further token", "Of answers that streamed.", "s",
            tuple(_quantile(q, "time_per_output_token_seconds") for q in (0.5, 0.95)),
            may_be_empty=_GENERATES,
        ),
    ),
)  # fmt: skip

BY_TENANT = Dashboard(
    "headrace-tenants",
    "Headrace: tenants",
    "What each tenant asks for, what it gets, and whether its promises are kept.",
    (
        Variable("namespace", "headrace_arrivals_total"),
        Variable("model", "headrace_arrivals_total"),
        Variable("tenant", "headrace_arrivals_total"),
    ),
    (ASKED, PROMISE, SHARE, GENERATED),
)


DASHBOARDS = (WAR_ROOM, BY_TENANT)
_SCHEMA = 39
_WIDE, _HIGH, _ACROSS = 8, 8, 3
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
Json = dict[str, Any]


def dashboard_json(dashboard: Dashboard) -> str:
    return json.dumps(dashboard_model(dashboard), indent=2) + "\n"


def dashboard_model(dashboard: Dashboard) -> Json:
    return {
        "uid": dashboard.name,
        "title": dashboard.title,
        "description": dashboard.says,
        "tags": ["headrace"],
        "schemaVersion": _SCHEMA,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [_datasource(), *map(_variable, dashboard.variables)]},
        "panels": list(_panels(dashboard)),
    }


def _datasource() -> Json:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
    }


def _variable(variable: Variable) -> Json:
    query = f"label_values({variable.metric}, {variable.name})"
    return {
        "name": variable.name,
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": variable.name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _panels(dashboard: Dashboard) -> Iterator[Json]:
    top = number = 0
    for row in dashboard.rows:
        number += 1
        place = {"x": 0, "y": top, "w": _WIDE * _ACROSS, "h": 1}
        yield {"id": number, "type": "row", "title": row.title, "gridPos": place, "panels": []}
        for at, panel in enumerate(row.panels):
            number += 1
            line, column = divmod(at, _ACROSS)
            place = {"x": column * _WIDE, "y": top + 1 + line * _HIGH, "w": _WIDE, "h": _HIGH}
            yield _panel(number, panel, place)
        top += 1 + _HIGH * -(-len(row.panels) // _ACROSS)


def _panel(number: int, panel: Panel, place: Json) -> Json:
    note = f" Empty where {panel.may_be_empty}." if panel.may_be_empty else ""
    drawn: Json = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 0, "showPoints": "never"}
    if panel.stacked:
        drawn |= {"fillOpacity": 30, "stacking": {"mode": "normal", "group": "A"}}
    bounds: Json = {"min": 0}
    if panel.logarithmic:
        drawn |= {"scaleDistribution": {"type": "log", "log": 10}}
        bounds = {}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.says + note,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, **bounds, "custom": drawn},
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": _SOURCE,
                "expr": query.promql,
                "legendFormat": query.legend,
            }
            for place, query in enumerate(panel.queries)
        ],
    }
