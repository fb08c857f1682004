"""What a gateway tells `headrace-haproxy`: those of its settings that HAProxy takes up as it runs.

Serve starts that program at every change of the gateways, but with an environment as old as Serve's
controller. A change of these settings replaces the gateways. So the program asks one of them, and
the last start of HAProxy, when all gateways are new, has all that is new. What is not here, HAProxy
must know before there is a gateway (addresses, ports), or is files of the pod (`gateway.tls`), or
must never differ between HAProxy and gateways (`gateway.replay`).
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
MAX_BYTES = 65_536  # of an answer


TOLD: dict[str, tuple[str, Callable[[GatewaySettings], object]]] = {
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
}  # fmt: skip
"""Variables of `headrace-haproxy`, by name: what each is for, and its value."""


def told(gateway: GatewaySettings) -> dict[str, str]:
    """The values of all that is told."""
    return {name: str(value(gateway)) for name, (_, value) in TOLD.items()}


def page(gateway: GatewaySettings) -> tuple[bytes, bytes]:
    """The path, and what a gateway answers there."""
    return PATH.encode(), written(told(gateway))


def written(variables: Mapping[str, str]) -> bytes:
    """The body of an answer: a line for each variable."""
    return "".join(f"{name}={value}\n" for name, value in variables.items()).encode()


def read(body: bytes) -> dict[str, str]:
    """The variables of an answer. Raises ValueError for what is none."""
    return dict(line.split("=", 1) for line in body.decode("ascii").splitlines())
