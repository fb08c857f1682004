"""The gateway's settings: where it listens, what it accepts, what it reports.

Sizes are bytes as they are on the wire unless a name says otherwise. Everything that listens has
its port here, Ray Serve's HAProxy included. What a model accepts stands with the model.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from deployments.settings.channel import ChannelSettings, channel_ports
from deployments.settings.groups import Text
from deployments.settings.tls import TlsSettings
from yaml_document.section import Section, listed, wrong

MIB = 1024 * 1024
PRIORITIES = ("interactive", "standard", "bulk")
MOST_PRIORITIES = 16
_PRIORITY = re.compile(r"[a-z0-9]([-a-z0-9_]{0,30}[a-z0-9])?")
Port = Annotated[int, Field(ge=1, le=65_535)]


def _network(value: Any) -> Any:
    try:
        return str(ipaddress.ip_network(value))
    except ValueError as why:
        raise wrong(f"must be a network such as 10.0.0.0/8 ({why})") from None


HostName = Annotated[str, StringConstraints(pattern=r"^(\*|(\*\.)?[a-z0-9-]+(\.[a-z0-9-]+)*)$")]
Network = Annotated[str, BeforeValidator(_network)]


def _priorities(value: Any) -> Any:
    names = listed(value)
    if not isinstance(names, tuple) or not 1 <= len(names) <= MOST_PRIORITIES:
        raise wrong(f"must be a list of 1 to {MOST_PRIORITIES} names, the most urgent first")
    for position, name in enumerate(names):
        if not isinstance(name, str) or not _PRIORITY.fullmatch(name):
            raise wrong("must be 1 to 32 of a-z 0-9 - _, in quotes where YAML reads something "
                        "else", position)  # fmt: skip
        if name in names[:position]:
            raise wrong(f"is {name}, which stands above already; must be there once", position)
    return names


class LimitSettings(Section):
    max_requests: int = Field(
        default=2000,
        ge=1,
        le=65_536,
        description="Requests that one gateway may have under way, one with a large answer until "
        "its client has taken it; more get 503. One tenant may have all of them; of one that has "
        "less than its share by weight the gateway takes that on top, up to twice as many in all, "
        "and HAProxy lets it. Over 2,000 they may overflow its listen queue.",
    )
    max_body_bytes: int = Field(
        default=64 * MIB, ge=1024, le=2048 * MIB, description="Largest request body accepted."
    )
    max_inflated_bytes: int = Field(
        default=256 * MIB,
        ge=1024,
        le=8192 * MIB,
        description="Largest size a gzip body may inflate to.",
    )
    max_held_bytes: int = Field(
        default=1024 * MIB,
        ge=1024,
        le=1_048_576 * MIB,
        description="Memory that large bodies under way may take together at one gateway, and "
        "large answers until their clients have taken them. One tenant may take all of it; one "
        "that has less than its share by weight gets that on top, up to twice as much in all.",
    )
    body_timeout_s: float = Field(
        default=30,
        gt=0,
        le=3600,
        description="A body must have arrived within this time.",
    )
    headers_timeout_s: float = Field(
        default=10,
        gt=0,
        le=3600,
        description="A request's headers must have arrived within this time (30 s at the plain "
        "proxy).",
    )
    connections_per_source: int = Field(
        default=0,
        ge=0,
        le=65_536,
        description="Connections that HAProxy takes from one address at most; 0: no bound until "
        "four fifths of all are taken, then a tenth of all. A load balancer or a load test is one "
        "address, so leave it at 0 behind the one (or name it in `gateway.trusted_proxies`) and "
        "for the other.",
    )
    max_arriving_bodies: int = Field(
        default=1000,
        ge=1,
        le=65_536,
        description="Bodies that did not come with their headers which one gateway reads at once, "
        "shared by tenants as `max_held_bytes` is.",
    )
    min_bytes_per_s: float = Field(
        default=500,
        ge=0,
        le=1_000_000_000,
        description="A body must arrive, and an answer be taken, at this rate at least; 0: at any.",
    )
    slow_grace_s: float = Field(
        default=5,
        gt=0,
        le=3600,
        description="Time that a body has before its rate counts.",
    )
    pool_threshold_bytes: int = Field(
        default=65_536,
        ge=0,
        le=2048 * MIB,
        description="Bodies larger than this are parsed in the pool, not on the event loop.",
    )


class PreprocessSettings(Section):
    workers: int = Field(
        default=2,
        ge=1,
        le=256,
        description="Threads that tokenise texts, decode images and parse large bodies.",
    )
    cache_bytes: int = Field(
        default=64 * MIB, ge=0, le=65_536 * MIB, description="Memory for tokens of frequent texts."
    )
    max_pending: int = Field(
        default=1024,
        ge=1,
        le=1_000_000,
        description="Pieces of work that may wait for a thread. One tenant may have all of them; "
        "one that has less than an even share gets that on top, up to twice as many in all.",
    )


class TracingSettings(Section):
    otlp_endpoint: Annotated[str, StringConstraints(pattern=r"^https?://[^\s/]+\S*$")] | None = (
        Field(
            default=None,
            examples=["http://127.0.0.1:4318"],
            description="OTLP/HTTP collector that spans are sent to; unset, no spans.",
        )
    )
    sample_ratio: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="Share of requests that are traced unless the caller decides.",
    )


class LogSettings(Section):
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severe lines that are written."
    )
    format: Literal["json", "text"] = Field(default="json", description="Form of a log line.")


class GatewaySettings(Section):
    replicas: int = Field(
        default=1, ge=1, le=1000, description="Gateway processes; fixed while it runs."
    )
    num_cpus: float = Field(
        default=1,
        ge=0,
        le=64,
        description="Logical CPUs that Ray reserves for a gateway on a cluster of several nodes.",
    )
    replicas_per_node: int = Field(
        default=1,
        ge=1,
        le=100,
        description="Gateways on one node at most; on a cluster of several nodes.",
    )
    labels: dict[Text, Text] = Field(
        default_factory=dict,
        examples=["{headrace.io/role: gateway}"],
        description="Labels of the nodes that gateways may run on, as Ray's label selector has "
        "them; on a cluster of several nodes.",
    )
    host: Annotated[str, StringConstraints(pattern=r"^[^\s/]+$")] = Field(
        default="127.0.0.1",
        examples=["127.0.0.1"],
        description="Address to listen on; 0.0.0.0 is every interface, and what a cluster of "
        "several nodes takes unless the file says.",
    )
    port: Port = Field(default=8000, description="Port of the HTTP surface.")
    ingress: Literal["haproxy", "proxy", "auto"] = Field(
        default="auto",
        description="What accepts connections: Ray Serve's HAProxy or its Python proxy; `auto` is "
        "haproxy on Linux, proxy elsewhere.",
    )
    metrics_port: Port = Field(
        default=9400,
        description="Port of a node's first gateway's own `/metrics`; each further one there "
        "adds 1.",
    )
    metrics_host: Annotated[str, StringConstraints(pattern=r"^[^\s/]+$")] | None = Field(
        default=None,
        examples=["127.0.0.1"],
        description="Address of the gateways' own `/metrics`, which needs no key; unset, 127.0.0.1 "
        "under `headrace serve`, and `gateway.host` on a cluster of several nodes, where a network "
        "policy says who may scrape.",
    )
    tls: TlsSettings | None = Field(
        default=None,
        description="Encrypts what callers send, by HAProxy; unset, they send it as it is, which "
        "is right behind a load balancer that ends TLS.",
    )
    haproxy_admin_host: Annotated[str, StringConstraints(pattern=r"^[^\s/]+$")] = Field(
        default="127.0.0.1",
        examples=["127.0.0.1"],
        description="Address of HAProxy's statistics page and of its own metrics.",
    )
    haproxy_stats_port: Port = Field(default=8404, description="Port of HAProxy's statistics page.")
    haproxy_metrics_port: Port = Field(default=9101, description="Port of HAProxy's own metrics.")
    haproxy_threads: int = Field(default=1, ge=1, le=64, description="Threads of HAProxy.")
    drain_s: float = Field(
        default=30,
        ge=0,
        le=86_400,
        description="Time that running requests get to finish at a stop.",
    )
    keep_alive_s: float = Field(
        default=90, gt=0, le=86_400, description="An idle connection is kept open this long."
    )
    priorities: Annotated[tuple[str, ...], BeforeValidator(_priorities)] = Field(
        default=PRIORITIES,
        description="Names of the priorities that requests may have, the most urgent first.",
    )
    auth: Literal["required", "open"] | None = Field(
        default=None,
        description="Whether callers need a tenant's key: `required`, or `open`, where `x-tenant` "
        "says who calls and no tenant may have keys. Unset, they do with `tenants_path`, else as "
        "soon as a tenant has a list of `keys`, even an empty one; lists that are gone open "
        "nothing. Who comes without a key that is needed is the tenant `default` if it is "
        "declared, else refused.",
    )
    tenants_path: Annotated[str, StringConstraints(pattern=r"^/.+")] | None = Field(
        default=None,
        examples=["/etc/headrace/tenants"],
        description="File, or folder of *.yaml files, on the gateways' machines that says who the "
        "tenants are, re-read when it changes; unset, the tenants of this file.",
    )
    allowed_hosts: Annotated[tuple[HostName, ...], BeforeValidator(listed)] = Field(
        default=(),
        examples=[["llm.example.org", "*.example.org"]],
        description="Names by which callers know a server that needs no keys, besides addresses, "
        "names without a dot and those ending in .localhost, .svc, .cluster.local or .internal: a "
        "request for another Host is refused, since a page in somebody's browser may have sent "
        "it, and so is what changes something or runs a model from a page of another origin. "
        "`*` allows any.",
    )
    trusted_proxies: Annotated[tuple[Network, ...], BeforeValidator(listed)] = Field(
        default=(),
        examples=[["10.0.0.0/8"]],
        description="Networks of load balancers before HAProxy, whose `X-Forwarded-For` is taken "
        "for the caller's address and which no bound of a single source holds; from anybody else "
        "that header is replaced. Not known to the plain proxy.",
    )
    replay: bool = Field(
        default=True,
        description="Whether HAProxy sends a request that a gateway had when it died to another "
        "gateway, unless the request says `x-idempotent: false`.",
    )
    compression: bool = Field(
        default=False,
        description="Whether HAProxy compresses answers for who asks (`Accept-Encoding: gzip`, as "
        "most HTTP libraries do unasked): whole JSON from 4 KiB on, no stream and no tensor's "
        "bytes. It takes about 6 us a KiB and numbers keep 60 % of their length, so it pays over "
        "networks slower than 500 Mbit/s. It stops while HAProxy is busy for more than half of "
        "the time.",
    )
    limits: LimitSettings = Field(
        default_factory=LimitSettings, description="What a request may weigh and take to arrive."
    )
    channel: ChannelSettings = Field(
        default_factory=ChannelSettings,
        description="Between gateways and replicas. A change restarts them.",
    )
    preprocess: PreprocessSettings = Field(
        default_factory=PreprocessSettings,
        description="The pool for texts, images and large bodies.",
    )
    tracing: TracingSettings = Field(
        default_factory=TracingSettings, description="OpenTelemetry spans."
    )
    log: LogSettings = Field(default_factory=LogSettings, description="What is logged and how.")

    @model_validator(mode="after")
    def _haproxy_ends_tls(self) -> GatewaySettings:
        if self.tls is not None and self.ingress == "proxy":
            raise wrong("needs HAProxy; must not stand beside ingress: proxy", "tls")
        return self

    @model_validator(mode="after")
    def _ports_differ(self) -> GatewaySettings:
        taken = {self.port: "port"}
        names = ["metrics_port"]
        if self.ingress != "proxy":
            names += ["haproxy_stats_port", "haproxy_metrics_port"]
        for name in names:
            port = getattr(self, name)
            # Every gateway listens on a port of its own from metrics_port on.
            span = self.replicas if name == "metrics_port" else 1
            for each in range(port, port + span):
                if each in taken:
                    raise wrong(f"uses port {each}, which {taken[each]} has; must differ", name)
                taken[each] = name
        for each, name in taken.items():
            if each in channel_ports(self.channel) and each:
                raise wrong(f"includes port {each}, which {name} has", "channel", "first_port")
        if self.metrics_port + self.replicas - 1 > 65_535:
            raise wrong("leaves too few ports below 65536 for every gateway", "metrics_port")
        return self
