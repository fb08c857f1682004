"""Keeps Serve's listeners off the network on a local cluster.

Ray's own gRPC servers bind to their node's address, which on a local cluster is a loopback address
(`ray_env`). Every Serve replica also opens a gRPC server for calls between deployments. Serve's
source binds that one to every interface (`[::]:0`), with no setting for it. The constructors of
replicas therefore call `keep_replica_calls_local`, which runs before that server is opened. On a
cluster of several nodes nothing changes. The private API of Ray that this uses is tested by
tests/integration/test_ray_contract.py.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any

EVERY_INTERFACE = "[::]:0"
AddPort = Callable[[Any, str], int]


def keep_replica_calls_local() -> None:
    """Make this process's replica listen on its node's address, if that is a loopback address."""
    import ray
    from ray.serve._private import replica as serve_replica

    replica: Any = serve_replica
    node: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    if ipaddress.ip_address(node).is_loopback:
        replica.add_port_to_grpc_server = _bound_to(node, replica.add_port_to_grpc_server)


def _bound_to(node: str, add_port: AddPort) -> AddPort:
    def add(server: Any, address: str) -> int:
        return add_port(server, f"{node}:0" if address == EVERY_INTERFACE else address)

    return add
