"""Which addresses do HAProxy and the gateways listen on, on one machine and on many nodes?

Serve has one setting of address for two listeners: HAProxy's frontend, and every gateway's own HTTP
server. HAProxy reaches a gateway on its own node by the loopback address, a gateway on another node
by that node's address. So the frontend's address is set by the program in HAProxy's place
(HEADRACE_HAPROXY_HOST), and Serve's setting counts for the gateways only: loopback where all are on
one machine, every interface otherwise.
"""

from __future__ import annotations

from deployments.settings.gateway import GatewaySettings

LOOPBACK = "127.0.0.1"
EVERY_INTERFACE = "0.0.0.0"


def in_cluster(gateway: GatewaySettings) -> GatewaySettings:
    """The settings for a cluster of many nodes: reachable from everywhere, unless the file sets a
    host."""
    if "host" in gateway.model_fields_set:
        return gateway
    return gateway.model_copy(update={"host": EVERY_INTERFACE})


def serve_host(gateway: GatewaySettings, *, one_machine: bool) -> str:
    """`http_options.host` of a Serve config. `one_machine`: the cluster has this machine only."""
    if one_machine:
        return LOOPBACK
    return "::" if ":" in gateway.host else EVERY_INTERFACE
