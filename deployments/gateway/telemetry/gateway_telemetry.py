"""What the gateway tells the world: metrics, traces, access lines, and the snapshot `status` shows.

Fed by the pipeline (a request that ended) and by the models' queues (a batch that came back); read
by `/metrics`, by the gateway's own metrics port and by the registry. It measures nothing itself:
times are taken where things happen, levels are read when somebody asks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, replace

from deployments.contract import errors
from deployments.contract.registry import GatewaySnapshot
from deployments.gateway.decisions import DecisionLog
from deployments.gateway.http.exchange import Exchange
from deployments.gateway.http.request_head import upstream_wait_s
from deployments.gateway.models.catalogue import Catalogue
from deployments.gateway.models.served_model import ServedModel
from deployments.gateway.queues.pending_requests import BatchRecord
from deployments.gateway.services import ENGINE_REFUSED, Generated, RequestContext
from deployments.gateway.telemetry.key_uses import KeyUses
from deployments.gateway.telemetry.levels import (
    GatewayLevels,
    ModelLevels,
    TokenRates,
    model_status,
)
from deployments.gateway.telemetry.metrics import GatewayMetrics, InferenceStatistics
from deployments.gateway.telemetry.metrics_server import MetricsServer
from deployments.gateway.telemetry.sample_tables import (
    ANSWERED,
    NOT_MEASURED,
    BatchSample,
    GenerationSample,
)
from deployments.gateway.telemetry.span_trees import span_writer, trace_batch, trace_request
from deployments.gateway.tenancy.fair_thread_pool import FairThreadPool
from deployments.gateway.tenancy.tenants import KnownTenants
from deployments.gateway.tracing import TraceContext, Tracing
from deployments.process import audit, logs
from deployments.process.audit import AuditLine
from deployments.process.logs import PerSecond
from deployments.settings.gateway import GatewaySettings
from routers.api.requests import Tokens
from yaml_document.credentials import without_keys

logger = logging.getLogger("headrace.access")
_NOT_FINE = 400
_MAX_CLIENTS = 65_536
_AUDITED_AT_ONCE = 20  # lines that are written on the event loop


class GatewayTelemetry:
    """`gateway`: the name every sample carries. `local_rank`: among the gateways of its node; it
    sets the metrics port."""

    def __init__(
        self, gateway: str, settings: GatewaySettings, local_rank: int, *, listen: bool = True
    ) -> None:
        logs.configure(settings.log.level, settings.log.format)
        tracing = settings.tracing
        self._gateway = gateway
        self._metrics = GatewayMetrics(gateway, levels=self._levels, priorities=settings.priorities)
        self._tracing = Tracing(span_writer(tracing.otlp_endpoint), tracing.sample_ratio)
        self._access = AccessLog()
        self._token_rates = TokenRates()
        self._keys = KeyUses()
        self.statistics = InferenceStatistics()
        self.decisions = DecisionLog(gateway) if settings.log.decisions else None
        self._clients: dict[object, None] = {}
        self._server: MetricsServer | None = None
        if listen:
            port = settings.metrics_port + local_rank
            host = settings.metrics_host or settings.host
            self._server = MetricsServer(host, port, self._page_for_anybody)
            self._server.start()

    def watch(self, models: Catalogue, pool: FairThreadPool, tenants: KnownTenants) -> None:
        """What levels, labels and snapshots are read from."""
        self._models, self._pool, self._tenants = models, pool, tenants
        models.on_change = self._declare
        models.decisions = self.decisions
        self._declare()

    def _declare(self) -> None:
        names = [*self._models.queued, *self._models.waiting_for]
        tenants = self._tenants.current
        self._metrics.names.declare(names, tenants.names)
        self.statistics.declare({d.name: d.version for d in self._models.descriptions})
        self._keys.declare(tenants.keys)

    def refresh(self) -> None:
        """Once a second: label names as settings have them now, records counted, lines settled."""
        self._declare()
        self._metrics.flush()
        self._access.settle(time.monotonic())

    # ---- fed --------------------------------------------------------------------------------

    def connection(self, client: object) -> None:
        """A request came from this address; the first from it opened the connection."""
        if client in self._clients:
            self._metrics.connection_reused()
            return
        self._metrics.connection_opened()
        if len(self._clients) >= _MAX_CLIENTS:
            del self._clients[next(iter(self._clients))]
        self._clients[client] = None

    def begin(self, headers: dict[bytes, bytes]) -> TraceContext:
        return self._tracing.begin(headers)

    def audit_keys(self) -> None:
        """A line in the audit log for the first use of each key on each day."""
        for tenant, key in self._keys.take_first_of_day(_AUDITED_AT_ONCE):
            whose = f"tenant {tenant}" if tenant else "operator"
            audit.record(AuditLine(f"key {key}", "use", whose, self._gateway))

    def used(self, key: str) -> None:
        """A request came by a key of this id, perhaps one that was published a moment ago; "": by
        none."""
        if key:
            self._keys.declare(self._tenants.current.keys)
            self._keys.used(key, time.time())

    def turned_away(self, exchange: Exchange, error: errors.HeadraceError) -> None:
        """A page was refused; requests to models end in `finished`."""
        if isinstance(error, errors.Unauthorized) and error.expired_key:
            self._keys.used_late(error.expired_key)
        if self._access.wants(error.status, time.monotonic()):
            total_s = time.perf_counter() - exchange.arrived
            self._access.write(_page_line(exchange, error, total_s))

    def arrived(self, context: RequestContext) -> None:
        assert context.caller is not None
        self._metrics.arrival(context.model, context.caller.tenant.name, context.caller.priority)

    def finished(self, context: RequestContext) -> None:
        """A request ended, in whichever way."""
        total_s = time.perf_counter() - context.exchange.arrived
        caller, stages = context.caller, context.stages
        tenant, priority = (caller.tenant.name, caller.priority) if caller is not None else ("", "")
        if caller is not None:
            if caller.tenant.key:
                self.used(caller.tenant.key)
        elif context.expired_key:
            self._keys.used_late(context.expired_key)
        self._metrics.request(
            (context.model, tenant, priority, context.protocol, context.outcome, context.reason),
            (
                total_s,
                _upstream(context),
                stages.get("parse", NOT_MEASURED),
                stages.get("tokenize", NOT_MEASURED),
                context.queue_wait_s if context.ran else NOT_MEASURED,
                stages.get("reply", NOT_MEASURED),
            ),
            context.response_bytes,
        )
        self.statistics.ended(context, total_s)
        if context.outcome == ANSWERED and context.kept(total_s):
            self._metrics.kept(context.model, tenant, priority)
        if context.fallback and context.outcome == ANSWERED:
            self._metrics.fallback(context.model, context.fallback)
        if context.generated is not None and context.reason != ENGINE_REFUSED:
            sample = _sample(context.generated, timed=context.outcome == ANSWERED)
            self._metrics.generated((context.model, tenant, priority), sample)
        if context.status >= _NOT_FINE and self._access.wants(context.status, time.monotonic()):
            self._access.write(_line(context, tenant, total_s))
        if self.decisions is not None:
            ended = f"{context.status} {context.outcome}"
            self.decided(context, "end", ended, _how(context, total_s))
        if self._tracing.records(context.trace):
            trace_request(self._tracing, context, total_s)

    def decided(self, context: RequestContext, event: str, decision: str, reason: str) -> None:
        """Where a request goes, outside of a queue."""
        if self.decisions is not None:
            request_id = context.exchange.request_id.decode("latin-1")
            self.decisions.note(request_id, context.model, event, decision, reason)

    def generated_late(self, context: RequestContext, more: Tokens) -> None:
        """Tokens that came after a request had ended: its engine did not know yet."""
        caller = context.caller
        assert caller is not None
        flow = context.model, caller.tenant.name, caller.priority
        self._metrics.generated(
            flow, GenerationSample(NOT_MEASURED, NOT_MEASURED, more.input, more.cached, more.output)
        )

    def batch(self, model: str, record: BatchRecord) -> None:
        """A batch came back from its replica."""
        reply = record.reply
        pad_s, copy_in_s, run_s, copy_out_s, post_s = reply.stages
        self.statistics.ran(model, record)
        padding = 1.0 - record.tokens / reply.padded_tokens if reply.padded_tokens else 0.0
        self._metrics.batch(
            BatchSample(
                model, record.bucket, record.size, max(padding, 0.0), reply.service_s,
                record.predicted_s, pad_s, copy_in_s + copy_out_s, run_s, post_s,
                reply.transport_s(record.round_trip_s),
            )
        )  # fmt: skip
        traced = [t for t in record.traces if t is not None and self._tracing.records(t)]
        if traced:
            trace_batch(self._tracing, model, record, traced)

    # ---- read -------------------------------------------------------------------------------

    def page(self, accept: str) -> tuple[bytes, str]:
        """`/metrics`: body and content type."""
        return self._metrics.exposition(accept)

    def _page_for_anybody(self, accept: str) -> tuple[bytes, str]:
        """As `page`, where no key is asked for: at most a second old."""
        return self._metrics.page(accept, time.monotonic())

    def snapshot(self) -> GatewaySnapshot:
        """For `headrace status`, for draining and for canaries that go: these are `models` too, by
        the names they are served under."""
        now = time.monotonic()
        return GatewaySnapshot(
            {
                m.model: model_status(m, self._token_rates.of(m.model, m.output_tokens, now))
                for m in self._levels().models
            },
            sum(m.queue.inflight for m in self._models.queued.values()),
            self._models.draining,
            self._models.frozen,
            self._tenants.problem,
        )

    def close(self) -> None:
        """Ends the metrics port and sends the spans that wait, in the background."""
        loop = asyncio.get_running_loop()
        if self._server is not None:
            self._closing = loop.create_task(self._server.close())
        loop.run_in_executor(None, self._tracing.close)

    def _levels(self) -> GatewayLevels:
        models = tuple(
            replace(
                _model_levels(name, m),
                asleep=self._models.asleep(name),
                outlook=self._models.outlooks.get(name),
            )
            for name, m in self._models.queued.items()
        )
        known = self._models
        ready = {(name, known.is_optional(name)): known.ready(name) for name in known.declared}
        return GatewayLevels(
            models, self._pool.statistics(), known.frozen, ready, tuple(self._keys),
            self._tenants.age_s, known.controller_ends,
        )  # fmt: skip


def _how(context: RequestContext, total_s: float) -> str:
    """How a request ended, in words."""
    said = [context.reason] if context.reason else []
    if context.fallback:
        said.append(f"answered by {context.fallback}")
    if context.reused is not None and not context.ran:
        said.append("from the cache or an identical request's run")
    said.append(f"{total_s * 1e3:.1f} ms in all")
    if context.ran:
        queued_ms, service_ms = context.queue_wait_s * 1e3, context.service_s * 1e3
        said.append(f"{queued_ms:.1f} ms queued, {service_ms:.1f} ms of service")
    return "; ".join(said)


def _upstream(context: RequestContext) -> float:
    stamp = context.exchange.headers.get(b"x-request-start")
    if stamp is None:
        return NOT_MEASURED
    waited_s = upstream_wait_s(stamp, time.time())
    if waited_s is None:
        return NOT_MEASURED
    return max(waited_s - (time.perf_counter() - context.exchange.arrived), 0.0)


def _sample(generated: Generated, *, timed: bool) -> GenerationSample:
    """`timed`: its times are samples; those of an answer that ended early are not."""
    tokens, ttft_s, tpot_s = generated.tokens, generated.ttft_s, generated.tpot_s
    streams = generated.streams and timed
    return GenerationSample(
        ttft_s if streams and ttft_s is not None else NOT_MEASURED,
        tpot_s if streams and tpot_s is not None else NOT_MEASURED,
        tokens.input, tokens.cached, tokens.output,
    )  # fmt: skip


def _page_line(exchange: Exchange, error: errors.HeadraceError, total_s: float) -> AccessLine:
    return AccessLine(
        exchange.request_id.decode("latin-1"), exchange.method, exchange.path,
        error.status, error.outcome, error.reason, "", "", total_s * 1e3,
        key_id=error.expired_key if isinstance(error, errors.Unauthorized) else "",
    )  # fmt: skip


def _line(context: RequestContext, tenant: str, total_s: float) -> AccessLine:
    tokens = None if context.generated is None else context.generated.tokens
    exchange = context.exchange
    return AccessLine(
        exchange.request_id.decode("latin-1"), exchange.method, exchange.path,
        context.status, context.outcome, context.reason, context.model, tenant, total_s * 1e3,
        None if tokens is None else tokens.input, None if tokens is None else tokens.output,
        context.expired_key if context.caller is None else context.caller.tenant.key,
        context.version,
    )  # fmt: skip


def _model_levels(name: str, model: ServedModel) -> ModelLevels:
    queue, tokenizer, reuse = model.queue, model.tokenizer, model.reuse
    return ModelLevels(
        name,
        queue.snapshot(),
        queue.cost_error(),
        queue.coefficients(),
        queue.duty,
        text_cache=tokenizer.statistics() if tokenizer is not None else None,
        batch_ends={end.value: count for end, count in queue.calls.ends.items()},
        reuse=reuse.levels() if reuse is not None else None,
        engines=queue.loads,
        output_tokens=queue.output_tokens,
        reached=queue.replicas,
        links=replace(model.channel.counts),
        device_memory=queue.device_memory,
        memory_faults=queue.memory_faults,
        ended=queue.calls.ended,
    )


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
    """A log line for each request that failed, and for each that was not let in: 401, 403 and 429.

    Metrics count everything; lines are for finding one. A flood of refusals must not cost what it
    was refused to save, so at most `max_per_s` lines a second are written of either kind, so that
    those who are not let in hide no failure; the next line written says how many were left out. A
    request that gets no line costs two comparisons. A key that a caller puts into a path by mistake
    is cut. `min_status`: lowest HTTP status that gets a line; 0 writes all, 600 none.
    """

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
