"""The dashboard by tenant: what each tenant asks for, what it gets, and whether in time."""

from __future__ import annotations

from deployments.tools.observability import queries, slo
from deployments.tools.observability.queries import RATE_WINDOW
from deployments.tools.observability.types import Dashboard, Panel, Query, Row, Variable

CHOSEN = 'namespace=~"$namespace",model=~"$model",tenant=~"$tenant"'
_GENERATES = "no model generates text"


def _rate(counter: str, by: str = "tenant", more: str = "") -> str:
    return queries.rate(counter, by, RATE_WINDOW, CHOSEN + more)


def _total(gauge: str) -> str:
    return f"sum by (tenant) (headrace_{gauge}{{{CHOSEN}}})"


def _quantile(q: float, histogram: str) -> Query:
    query = queries.quantile(q, histogram, "tenant", RATE_WINDOW, CHOSEN)
    return Query(query, f"{{{{tenant}}}} p{q * 100:g}")


def _burn(window: str) -> Query:
    missed = slo.missed(window, CHOSEN)
    budget = f"{1 - slo.OBJECTIVE:g}"
    return Query(f"{missed} / {budget}", f"{{{{tenant}}}}, {{{{model}}}}, {window}")


ASKED = Row(
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

PROMISE = Row(
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

SHARE = Row(
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

GENERATED = Row(
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
