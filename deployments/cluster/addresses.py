"""Who listens where, on one machine and on many nodes.

Serve has one address for two things: HAProxy's frontend, and every gateway's own HTTP server, which
HAProxy reaches on its node's loopback address or, from another node, on that node's address. So the
frontend's is set by the program in HAProxy's place (HEADRACE_HAPROXY_HOST), and Serve's is only the
gateways': loopback where all are on one machine, every interface where they are not.
"""

from __future__ import annotations

from deployments.cluster.ray_env import resolved_ingress
from deployments.settings.gateway import GatewaySettings

LOOPBACK = "127.0.0.1"
EVERY_INTERFACE = "0.0.0.0"


def in_cluster(gateway: GatewaySettings) -> GatewaySettings:
    """The settings as many nodes take them: reached from everywhere, unless the file says where."""
    if "host" in gateway.model_fields_set:
        return gateway
    return gateway.model_copy(update={"host": EVERY_INTERFACE})


def serve_host(gateway: GatewaySettings, *, one_machine: bool) -> str:
    """`http_options.host` of a Serve config. `one_machine`: this cluster has no other."""
    if resolved_ingress(gateway.ingress) != "haproxy":
        return gateway.host
    if one_machine:
        return LOOPBACK
    return "::" if ":" in gateway.host else EVERY_INTERFACE
