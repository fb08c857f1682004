"""The gateway's settings: where it listens, what it accepts, and what it reports.

Sizes are bytes on the wire unless a name says otherwise. The ports of everything that listens are
here, those of Ray Serve's HAProxy included. What a model accepts is in the model's settings.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from deployments.settings.channel import ChannelSettings, channel_ports
from deployments.settings.gone import GONE
from deployments.settings.groups import NonEmptyText
from yaml_document.section import Section, listed, wrong

# Made absolute where the file is read; it may stand in HAProxy's configuration, unquoted.
_File = Annotated[str, StringConstraints(pattern=r"^/[0-9A-Za-z._/+@-]+$", max_length=4096)]


class TlsSettings(Section):
    certificate: _File = Field(
        examples=["/etc/headrace/tls.crt"],
        description="PEM file, on every node that callers reach, of the server's certificate and "
        "its intermediate certificates. A change takes effect within seconds.",
    )
    key: _File = Field(
        examples=["/etc/headrace/tls.key"],
        description="PEM file of the certificate's private key, without a password.",
    )
    client_ca: _File | None = Field(
        default=None,
        examples=["/etc/headrace/clients.crt"],
        description="PEM file of the authority that signed callers' certificates. Unset: callers "
        "need no certificate.",
    )
    client_ca_for: Literal["everyone", "operators"] = Field(
        default="everyone",
        description="Who needs a certificate of `client_ca`: all callers, including a load "
        "balancer's health checks (`everyone`), or only callers of `/admin` (`operators`).",
    )


MIB = 1024 * 1024
PRIORITIES = ("interactive", "standard", "bulk")
MAX_PRIORITIES = 16
_PRIORITY = re.compile(r"[a-z0-9]([-a-z0-9_]{0,30}[a-z0-9])?")
Port = Annotated[int, Field(ge=1, le=65_535)]
# First parts of the paths that are served without a prefix, too (gateway/http/request_head.py).
OWN_PATHS = frozenset(
    ("-", "admin", "classify", "detokenize", "docs", "embed_sparse", "healthz", "metrics",
     "openapi.json", "pooling", "readyz", "rerank", "tokenize", "v1", "v2")
)  # fmt: skip
_MAX_PREFIX_PARTS = 16
_GRPC_SERVICES = ("inference.GRPCInferenceService", "grpc.health.", "grpc.reflection.")
_PATH_PREFIX = r"^(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+$"


def _network(value: Any) -> Any:
    try:
        return str(ipaddress.ip_network(value))
    except ValueError as why:
        raise wrong(f"must be a network such as 10.0.0.0/8 ({why})") from None


HostName = Annotated[str, StringConstraints(pattern=r"^(\*|(\*\.)?[a-z0-9-]+(\.[a-z0-9-]+)*)$")]
Network = Annotated[str, BeforeValidator(_network)]
HostAndPort = Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]+(\.[a-z0-9-]+)*:[0-9]{1,5}$")]
Origin = Annotated[
    str,
    StringConstraints(
        pattern=r"^(\*|https?://([a-z0-9-]+(\.[a-z0-9-]+)*|\[[0-9a-f:.]{2,45}\])(:[0-9]{1,5})?)$",
        max_length=270,
    ),
]
ANY_ORIGIN = "*"
_MAX_ORIGINS = 200
_MAX_PROXIES = 1000  # networks; HAProxy learns them in one answer (contract/haproxy_settings.py)
_DEFAULT_PORT = re.compile(r"http:.*:80|https:.*:443")
HeaderName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]{1,64}$")]


def _priorities(value: Any) -> Any:
    names = listed(value)
    if not isinstance(names, tuple) or not 1 <= len(names) <= MAX_PRIORITIES:
        raise wrong(f"must be a list of 1 to {MAX_PRIORITIES} names, the most urgent first")
    for position, name in enumerate(names):
        if not isinstance(name, str) or not _PRIORITY.fullmatch(name):
            raise wrong("must be 1 to 32 of a-z 0-9 - _, in quotes if YAML would not read it as "
                        "text", position)  # fmt: skip
        if name in names[:position]:
            raise wrong(f"is {name}, which is already in the list; must be there once", position)
    return names


class LimitSettings(Section):
    gone = GONE["limits"]
    max_requests: int = Field(
        default=2000,
        ge=1,
        le=65_536,
        description="Requests that one gateway may have under way; further ones get 503. A request "
        "with a large answer counts until its client has read the answer. One tenant may have all "
        "of them. A tenant below its share by weight is let in above this number, up to twice the "
        "number in all; HAProxy's own limit has room for that. Above 2,000, connections may "
        "overflow HAProxy's listen queue. Half of the number may be bodies that arrive later than "
        "their headers.",
    )
    max_body_bytes: int = Field(
        default=64 * MIB,
        ge=1024,
        le=2048 * MIB,
        description="Largest request body accepted. A gzip body may inflate to four times as much.",
    )
    max_held_bytes: int = Field(
        default=1024 * MIB,
        ge=1024,
        le=1_048_576 * MIB,
        description="Memory at one gateway for large bodies under way, and for large answers until "
        "their clients have read them. One tenant may take all of it. A tenant below its share by "
        "weight may go above it, up to twice as much in all.",
    )
    body_timeout_s: float = Field(
        default=30,
        gt=0,
        le=3600,
        description="A body must have arrived within this time; and from its fifth second on, at "
        "500 bytes a second at least, at which clients must also read answers.",
    )
    headers_timeout_s: float = Field(
        default=10,
        gt=0,
        le=3600,
        description="A request's headers must have arrived within this time.",
    )
    connections_per_source: int = Field(
        default=0,
        ge=0,
        le=65_536,
        description="Connections that are accepted from one address at most. 0: no bound until "
        "four fifths of all connections are taken, then a tenth of all. A load balancer or a load "
        "test is one address: leave this at 0 for a load test, and behind a load balancer leave it "
        "at 0 or name the balancer in `gateway.trusted_proxies`.",
    )

    @property
    def max_inflated_bytes(self) -> int:
        """Largest size a gzip body may inflate to: numbers in JSON shrink to 60 %, so four times is
        more than honest callers need, and less than a bomb."""
        return 4 * self.max_body_bytes

    @property
    def max_arriving_bodies(self) -> int:
        """Request bodies that one gateway reads at once, of those that did not arrive together with
        their headers: half of all requests, so that slow senders leave room for the others."""
        return max(1, self.max_requests // 2)


class PreprocessSettings(Section):
    gone = GONE["preprocess"]
    workers: int = Field(
        default=2,
        ge=1,
        le=256,
        description="Threads that tokenise texts, decode images and parse large bodies.",
    )


class TracingSettings(Section):
    otlp_endpoint: Annotated[str, StringConstraints(pattern=r"^https?://[^\s/]+\S*$")] | None = (
        Field(
            default=None,
            examples=["http://127.0.0.1:4318"],
            description="OTLP/HTTP collector that spans are sent to. Unset: no spans.",
        )
    )
    sample_ratio: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="Share of requests that are traced, among those whose caller did not decide "
        "it (`traceparent`).",
    )


class LogSettings(Section):
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest severity that is logged."
    )
    format: Literal["json", "text"] = Field(default="json", description="Form of a log line.")
    decisions: bool = Field(
        default=False,
        description="Log each decision about a request: where it went, why it waited or failed. "
        "`headrace why REQUEST_ID` prints them. For debugging: about 4 lines per request, "
        "at most 2,000 per second and gateway.",
    )


def _is_port(digits: str) -> bool:
    """As URLs write one: without a zero in front."""
    return digits[0] != "0" and int(digits) <= 65_535


class GrpcSettings(Section):
    port: Port = Field(default=8001, description="Port for callers' gRPC requests.")
    idle_s: float = Field(
        default=3600,
        ge=1,
        le=86_400,
        description="A stream on which nothing is sent for so long is ended.",
    )
    max_message_bytes: int = Field(
        default=64 * MIB,
        ge=1024,
        le=2048 * MIB,
        description="Largest message accepted. A compressed one may inflate to four times as much.",
    )
    tls: bool = Field(
        default=True,
        description="Whether the port has the TLS of `gateway.tls`, where that is set.",
    )


class SharedMemorySettings(Section):
    prefix: Annotated[
        str,
        StringConstraints(pattern=r"^/?[A-Za-z0-9._-]*\{tenant\}[A-Za-z0-9._-]*$", max_length=64),
    ] = Field(
        default="headrace-{tenant}-",
        description="What the names of a tenant's regions in /dev/shm must begin with.",
    )
    max_bytes: int = Field(
        default=4096 * MIB,
        ge=1,
        le=1_048_576 * MIB,
        description="What one tenant may have registered at once, all regions together.",
    )


class ReferenceSettings(Section):
    hosts: Annotated[tuple[HostAndPort, ...], BeforeValidator(listed)] = Field(
        examples=[["objects.internal:443"]],
        description="Hosts and ports that inputs may be fetched from, by https.",
    )
    networks: Annotated[tuple[Network, ...], BeforeValidator(listed)] = Field(
        default=(),
        examples=[["10.0.0.0/8"]],
        description="Networks in which those hosts may be. Unset: public addresses only.",
    )
    max_bytes: int = Field(
        default=64 * MIB,
        ge=1024,
        le=2048 * MIB,
        description="Largest input that is fetched.",
    )

    @model_validator(mode="after")
    def _hosts_can_be_asked(self) -> ReferenceSettings:
        if not self.hosts:
            raise wrong("is empty; must have a host, or references be left out", "hosts")
        for each in self.hosts:
            name, _, port = each.rpartition(":")
            if not _is_port(port) or max(map(len, name.split("."))) > 63:
                raise wrong(f"has {each}; must be a name of DNS and a port, 1 to 65535", "hosts")
        return self


class CorsSettings(Section):
    origins: Annotated[tuple[Origin, ...], BeforeValidator(listed)] = Field(
        examples=[["https://app.example.org"]],
        description="Origins whose pages may call this server from a browser. `*`: any, without "
        "`credentials`.",
    )
    headers: Annotated[tuple[HeaderName, ...], BeforeValidator(listed)] = Field(
        default=(),
        examples=[["x-custom"]],
        description="Request headers that pages may send besides those that this server reads.",
    )
    credentials: bool = Field(
        default=False,
        description="Whether browsers may send cookies and client certificates.",
    )

    @model_validator(mode="after")
    def _origins_are_what_browsers_send(self) -> CorsSettings:
        if not 1 <= len(self.origins) <= _MAX_ORIGINS:
            raise wrong(f"must be a list of 1 to {_MAX_ORIGINS} origins", "origins")
        if ANY_ORIGIN in self.origins and len(self.origins) > 1:
            raise wrong("has `*` beside others; must be `*` alone, or a list of origins", "origins")
        if ANY_ORIGIN in self.origins and self.credentials:
            raise wrong(
                "is `*`, which lets no browser send credentials; must be a list of origins, or "
                "gateway.cors.credentials must be false",
                "origins",
            )
        for position, origin in enumerate(self.origins):
            if _DEFAULT_PORT.fullmatch(origin):
                raise wrong(
                    "names its scheme's own port, which browsers leave out; must be "
                    f"{origin.rpartition(':')[0]}",
                    "origins",
                    position,
                )
            port = re.search(r":([0-9]+)$", origin.rpartition("]")[2])
            if port and not _is_port(port[1]):
                raise wrong(
                    f"has port {port[1]}, which no browser sends; must be 1 to 65535, without a "
                    "zero in front",
                    "origins",
                    position,
                )
        return self


class GatewaySettings(Section):
    replicas: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="Number of gateway processes; fixed while the server runs.",
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
        description="Gateways that may be on one node, on a cluster of several nodes.",
    )
    labels: dict[NonEmptyText, NonEmptyText] = Field(
        default_factory=dict,
        examples=["{headrace.io/role: gateway}"],
        description="Labels of the nodes that gateways may run on, in the form of Ray's label "
        "selectors; on a cluster of several nodes.",
    )
    host: Annotated[str, StringConstraints(pattern=r"^[^\s/]+$")] = Field(
        default="127.0.0.1",
        examples=["127.0.0.1"],
        description="Address to listen on. 0.0.0.0: every interface, which is the default on a "
        "cluster of several nodes.",
    )
    port: Port = Field(default=8000, description="Port for callers' HTTP requests.")
    ingress: Literal["auto", "direct", "haproxy"] = Field(
        default="auto",
        description="What accepts callers' connections: the gateway itself (`direct`, one gateway "
        "on one machine), or HAProxy (`haproxy`), which repeats what a dying gateway had not "
        "answered. `auto`: `direct` where one gateway serves one machine without `compression` and "
        "`grpc`.",
    )
    metrics_port: Port = Field(
        default=9400,
        description="Port of `/metrics` of the first gateway on a node; each further gateway there "
        "takes the next port.",
    )
    metrics_host: Annotated[str, StringConstraints(pattern=r"^[^\s/]+$")] | None = Field(
        default=None,
        examples=["127.0.0.1"],
        description="Address of the gateways' `/metrics`, which needs no key. Unset: 127.0.0.1 "
        "under `headrace serve`, and `gateway.host` on a cluster of several nodes, where a network "
        "policy must say who may scrape it.",
    )
    tls: TlsSettings | None = Field(
        default=None,
        description="TLS between callers and this server. Unset: no TLS, which is right behind a "
        "load balancer that terminates TLS.",
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
        description="Time that running requests get to finish when the server stops.",
    )
    keep_alive_s: float = Field(
        default=90, gt=0, le=86_400, description="An idle connection is kept open this long."
    )
    priorities: Annotated[tuple[str, ...], BeforeValidator(_priorities)] = Field(
        default=PRIORITIES,
        description="Names of the priorities, the most urgent first.",
    )
    auth: Literal["required", "open"] | None = Field(
        default=None,
        description="Whether callers need a tenant's key (`required`), or not (`open`: the header "
        "`x-tenant` names the tenant, and no tenant may have keys). Unset: required with "
        "`tenants_path`; else required as soon as any tenant has a list of `keys`, even an empty "
        "one; running gateways refuse a change that removes all lists. Where keys are required, a "
        "caller without one is the tenant `default` if that is declared; else the request is "
        "refused.",
    )
    tenants_path: Annotated[str, StringConstraints(pattern=r"^/.+")] | None = Field(
        default=None,
        examples=["/etc/headrace/tenants"],
        description="File, or folder of *.yaml files, on the gateways' machines that has the "
        "tenants; gateways read it again when it changes. Unset: the tenants of this file.",
    )
    allowed_hosts: Annotated[tuple[HostName, ...], BeforeValidator(listed)] = Field(
        default=(),
        examples=[["llm.example.org", "*.example.org"]],
        description="For a server that needs no keys: host names by which callers may reach it, "
        "besides IP addresses, names without a dot, and names ending in .localhost, .svc, "
        ".cluster.local or .internal. A request for any other Host is refused, because a page in "
        "somebody's browser may have sent it. A request from a page of another origin is refused "
        "too if it would change something or run a model. `*` allows any host.",
    )
    trusted_proxies: Annotated[tuple[Network, ...], BeforeValidator(listed)] = Field(
        default=(),
        examples=[["10.0.0.0/8"]],
        description="Networks of the load balancers in front of this server. Their "
        "`X-Forwarded-For` is taken as the caller's address, and limits on one source do not "
        "apply to them. From any other address that header is replaced.",
    )
    replay: bool = Field(
        default=True,
        description="Whether HAProxy sends a request again, to another gateway, when the gateway "
        "that had it dies; never a request with `x-idempotent: false`.",
    )
    compression: bool = Field(
        default=False,
        description="Whether HAProxy compresses answers for clients that accept it "
        "(`Accept-Encoding: gzip`, which most HTTP libraries send by default): whole JSON answers "
        "from 4 KiB on, but no streams and no binary tensors. It takes about 6 us a KiB, and "
        "numbers shrink to 60 % of their length, so it pays over networks slower than 500 Mbit/s. "
        "HAProxy does not compress while it is busy for more than half of the time.",
    )
    path_prefix: Annotated[str, StringConstraints(pattern=_PATH_PREFIX, max_length=128)] | None = (
        Field(
            default=None,
            examples=["/inference"],
            description="Path below which callers reach this server, as well as without it. Unset: "
            "none.",
        )
    )
    cors: CorsSettings | None = Field(
        default=None, description="Calls from pages of other origins. Unset: refused."
    )
    grpc: GrpcSettings | None = Field(
        default=None,
        description="The Open Inference Protocol over gRPC, behind HAProxy. Unset: HTTP alone.",
    )
    shared_memory: SharedMemorySettings | None = Field(
        default=None,
        description="Tensors in shared memory, for callers on the gateways' machines. Unset: "
        "refused.",
    )
    references: ReferenceSettings | None = Field(
        default=None,
        description="Inputs that requests name by URL, fetched by the gateway. Unset: refused.",
    )
    limits: LimitSettings = Field(
        default_factory=LimitSettings,
        description="Limits on requests: their number, sizes, and time to arrive.",
    )
    channel: ChannelSettings = Field(
        default_factory=ChannelSettings,
        description="The data channel between gateways and replicas. A change restarts both.",
    )
    preprocess: PreprocessSettings = Field(
        default_factory=PreprocessSettings,
        description="The threads that prepare texts, images and large bodies.",
    )
    tracing: TracingSettings = Field(
        default_factory=TracingSettings, description="OpenTelemetry spans."
    )
    log: LogSettings = Field(default_factory=LogSettings, description="What is logged and how.")

    @model_validator(mode="after")
    def _prefix_is_no_path_of_ours(self) -> GatewaySettings:
        first, *more = (self.path_prefix or "/").split("/")[1:]
        if first in OWN_PATHS or first.startswith(_GRPC_SERVICES):
            raise wrong(
                f"begins with /{first}, which has this server's own paths; must begin otherwise",
                "path_prefix",
            )
        if len(more) >= _MAX_PREFIX_PARTS:
            raise wrong(
                f"has {1 + len(more)} parts; must have at most {_MAX_PREFIX_PARTS}", "path_prefix"
            )
        return self

    @model_validator(mode="after")
    def _proxies_are_bounded(self) -> GatewaySettings:
        if (found := len(self.trusted_proxies)) > _MAX_PROXIES:
            raise wrong(
                f"has {found} networks; must have at most {_MAX_PROXIES}: name larger networks",
                "trusted_proxies",
            )
        return self

    @model_validator(mode="after")
    def _grpc_lets_in_whom_tls_lets_in(self) -> GatewaySettings:
        tls, grpc = self.tls, self.grpc
        if tls and tls.client_ca and tls.client_ca_for == "everyone" and grpc and not grpc.tls:
            raise wrong(
                "is false, and gateway.tls.client_ca wants a certificate of every caller, which "
                "none can show without TLS; must be true, or gateway.tls.client_ca_for must be "
                "operators",
                "grpc",
                "tls",
            )
        return self

    @model_validator(mode="after")
    def _direct_is_one_gateway(self) -> GatewaySettings:
        if self.ingress == "direct" and (self.replicas > 1 or self.compression):
            what = "compresses nothing" if self.replicas == 1 else "takes one gateway (replicas: 1)"
            raise wrong(f"is direct, which {what}; must be haproxy, or auto", "ingress")
        if self.ingress == "direct" and self.grpc is not None:
            raise wrong("is direct, and gRPC needs HAProxy; must be haproxy, or auto", "ingress")
        return self

    @model_validator(mode="after")
    def _ports_differ(self) -> GatewaySettings:
        taken = {self.port: "port"}
        names = ["metrics_port"]
        if self.ingress != "direct":
            names += ["haproxy_stats_port", "haproxy_metrics_port"]
        ports = {name: getattr(self, name) for name in names}
        if self.grpc is not None:
            ports["grpc.port"] = self.grpc.port
        for name, port in ports.items():
            # Every gateway listens on a port of its own from metrics_port on.
            span = self.replicas if name == "metrics_port" else 1
            for each in range(port, port + span):
                if each in taken:
                    raise wrong(
                        f"uses port {each}, which {taken[each]} uses too; must be another port",
                        *name.split("."),
                    )
                taken[each] = name
        for each, name in taken.items():
            if each in channel_ports(self.channel) and each:
                raise wrong(
                    f"begins a range with port {each}, which {name} uses; must be another one",
                    "channel",
                    "first_port",
                )
        if self.metrics_port + self.replicas - 1 > 65_535:
            raise wrong(
                f"leaves too few ports for {self.replicas} gateways; must be at most "
                f"{65_536 - self.replicas}",
                "metrics_port",
            )
        return self


def one_machines_ingress(gateway: GatewaySettings) -> str:
    """What `ingress` means for a server of one machine."""
    if gateway.ingress != "auto":
        return gateway.ingress
    alone = gateway.replicas == 1 and not gateway.compression and gateway.grpc is None
    return "direct" if alone else "haproxy"
