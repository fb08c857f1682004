"""A gateway's answer to `headrace-haproxy`: the settings that HAProxy takes up while it runs.

Serve starts that program at every change of the gateways, but with an environment as old as Serve's
controller. A change of these settings replaces the gateways. So the program asks one of them, and
the last start of HAProxy, when all gateways are new, has all that is new. Not in the answer: what
HAProxy must know before there is a gateway (addresses, ports), files of the pod (`gateway.tls`),
and what must never differ between HAProxy and gateways (`gateway.replay`).
Standard library only: the program imports it at each start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deployments.settings.gateway import GatewaySettings

PATH = "/-/haproxy"
"""At a gateway's own server. HAProxy lets no caller ask for it (`haproxy_rules`)."""
MAX_BYTES = 131_072  # of an answer; that of the longest lists has some 100,000
_END = "end"  # the last line: an answer that was cut off has none


DYNAMIC: dict[str, tuple[str, Callable[[GatewaySettings], object]]] = {
    "HEADRACE_HAPROXY_HEADERS_S": (
        "gateway.limits.headers_timeout_s", lambda g: math.ceil(g.limits.headers_timeout_s)
    ),
    "HEADRACE_HAPROXY_BODY_S": (
        "gateway.limits.body_timeout_s, for bodies that fit HAProxy's buffer",
        lambda g: math.ceil(g.limits.body_timeout_s),
    ),
    "HEADRACE_HAPROXY_MAX_BODY_BYTES": (
        "gateway.limits.max_body_bytes: HAProxy does not wait for longer ones",
        lambda g: g.limits.max_body_bytes,
    ),
    "HEADRACE_HAPROXY_SOURCE_CONNECTIONS": (
        "gateway.limits.connections_per_source", lambda g: g.limits.connections_per_source
    ),
    "HEADRACE_HAPROXY_TRUSTED_PROXIES": (
        "gateway.trusted_proxies", lambda g: " ".join(g.trusted_proxies)
    ),
    "HEADRACE_HAPROXY_MAX_REQUESTS": (
        "gateway.limits.max_requests", lambda g: g.limits.max_requests
    ),
    "HEADRACE_HAPROXY_THREADS": ("gateway.haproxy_threads", lambda g: g.haproxy_threads),
    "HEADRACE_HAPROXY_COMPRESSION": ("gateway.compression", lambda g: int(g.compression)),
    "HEADRACE_HAPROXY_GRPC_IDLE_S": (
        "gateway.grpc.idle_s", lambda g: math.ceil(g.grpc.idle_s) if g.grpc else ""
    ),
    "HEADRACE_HAPROXY_PATH_PREFIX": ("gateway.path_prefix", lambda g: g.path_prefix or ""),
    "HEADRACE_HAPROXY_CORS_ORIGINS": (
        "gateway.cors.origins: whose pages may read HAProxy's own refusals",
        lambda g: " ".join(g.cors.origins) if g.cors else "",
    ),
    "HEADRACE_HAPROXY_CORS_CREDENTIALS": (
        "gateway.cors.credentials", lambda g: int(g.cors is not None and g.cors.credentials)
    ),
}  # fmt: skip
"""Variables of `headrace-haproxy`, by name: what each is for, and its value."""


def page(gateway: GatewaySettings) -> tuple[bytes, bytes]:
    """The path, and what a gateway answers there."""
    values = {name: str(value(gateway)) for name, (_, value) in DYNAMIC.items()}
    return PATH.encode(), written(values)


def written(variables: Mapping[str, str]) -> bytes:
    """The body of an answer: a line for each variable, and one that ends it."""
    lines = [f"{name}={value}" for name, value in variables.items()]
    return "".join(f"{line}\n" for line in [*lines, _END]).encode()


def read(body: bytes) -> dict[str, str]:
    """The known variables of an answer. Raises ValueError for what is no whole answer."""
    *lines, end, rest = body.decode("ascii").split("\n")
    if (end, rest) != (_END, ""):
        raise ValueError("the answer has no end")
    found = dict(line.split("=", 1) for line in lines)
    return {name: value for name, value in found.items() if name in DYNAMIC}
