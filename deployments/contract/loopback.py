"""Keeps Serve's listeners that would face the network on this machine.

Ray's own gRPC servers follow their node's address; on a local cluster that is the loopback one
(`ray_env`). Every Serve replica besides opens a gRPC server for calls between deployments, on every
interface and without asking (`[::]:0` stands in its source): the replicas' constructors call
`keep_replica_calls_local`, which runs before that server is opened. On a cluster of several nodes
nothing changes. Held in place by tests/integration/test_ray_contract.py.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any

EVERY_INTERFACE = "[::]:0"
AddPort = Callable[[Any, str], int]


def keep_replica_calls_local() -> None:
    """Makes this process's replica listen on the node's address where that is a loopback one."""
    import ray
    from ray.serve._private import replica as serve_replica

    replica: Any = serve_replica
    node: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    if ipaddress.ip_address(node).is_loopback:
        replica.add_port_to_grpc_server = _on(node, replica.add_port_to_grpc_server)


def _on(node: str, add_port: AddPort) -> AddPort:
    def add(server: Any, address: str) -> int:
        return add_port(server, f"{node}:0" if address == EVERY_INTERFACE else address)

    return add
