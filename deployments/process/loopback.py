"""Keeps this machine's traffic on it: Serve's listeners on a local cluster, and loopback requests.

HTTP and gRPC clients ask the proxy that the environment names (`http_proxy` and its kin), for
loopback addresses too, unless `no_proxy` lists them. A proxy elsewhere would reach its own machine.
`keep_loopback_direct` lists them, for this process and for those that it starts.

Ray's gRPC servers bind to their node's address, a loopback address on a local cluster (`ray_env`).
Every Serve replica also opens a gRPC server for calls between deployments. Serve binds that one to
every interface (`[::]:0`) and has no setting for it. So replicas' constructors call
`keep_replica_calls_local`, before that server opens. On a cluster of several nodes nothing changes.
tests/integration/test_ray_contract.py tests the private API of Ray that this uses.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, MutableMapping
from typing import Any

LOOPBACK = "127.0.0.1"
EVERY_INTERFACE = "[::]:0"
AddPort = Callable[[Any, str], int]
_HOSTS = ("localhost", LOOPBACK, "::1")
_LISTS = ("no_proxy", "NO_PROXY")  # some programs read only one of them
_GRPC_LIST = "no_grpc_proxy"  # gRPC reads this one instead, if it is set


def keep_loopback_direct(environ: MutableMapping[str, str] | None = None) -> None:
    """Add the loopback addresses to the environment's lists of hosts that no proxy is asked for."""
    environ = os.environ if environ is None else environ
    wanted = ",".join(environ.get(name, "") for name in _LISTS)
    environ.update(dict.fromkeys(_LISTS, _with_loopback(wanted)))
    if _GRPC_LIST in environ:
        environ[_GRPC_LIST] = _with_loopback(environ[_GRPC_LIST])


def _with_loopback(listed: str) -> str:
    hosts = [host for each in listed.split(",") if (host := each.strip())]
    if "*" in hosts:
        return "*"
    return ",".join(dict.fromkeys([*hosts, *_HOSTS]))


def reached_at(host: str) -> str:
    """The address at which this machine reaches what listens on `host`."""
    return {"0.0.0.0": LOOPBACK, "::": "::1"}.get(host, host)


def authority(host: str, port: int) -> str:
    """As a URL has them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


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
