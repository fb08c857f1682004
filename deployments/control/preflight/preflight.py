"""Will this cluster serve these settings? What is wrong on each node, and how is it mended?

Pure: facts of nodes in, findings out. An `error` would break something: requests would not arrive,
processes would not find each other, or a bound would not hold. A `warning` costs speed, or is wrong
only under some circumstances; a variable that a Serve config can still set is a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from deployments.control.ingress import haproxy_wrapper
from deployments.control.ingress.haproxy_options import HAProxyOptions
from deployments.control.preflight.node_facts import UNLIMITED, NodeFacts, NodeQuery
from deployments.control.ray_env import EnvLayer, EnvVariable
from deployments.control.supervisor import ports
from deployments.settings.gateway import GatewaySettings

Topic = Literal[
    "node", "versions", "environment", "wrapper", "caches", "clock", "open files", "ports", "token"
]
FROM_CONFIG = "controller_options"
GATEWAYS_OWN_PORTS = range(30_000, 31_001)  # Serve's direct ingress
_CLOCK_S = 1.0
_GIB = 1024**3
_MIN_FREE_BYTES = 2 * _GIB
_MEND_ENV = 'start the node anew after: eval "$(headrace cluster env FILE)"'


@dataclass(frozen=True, slots=True)
class NodeFinding:
    """One thing that is wrong. `node`: its address, "" for the cluster; `mend`: what to do."""

    level: Literal["error", "warning"]
    topic: Topic
    node: str
    message: str
    mend: str


def node_query(gateway: GatewaySettings, variables: Sequence[EnvVariable]) -> NodeQuery:
    """What every node is to be asked."""
    wanted = {
        what: (ports.host_of(what, gateway), port) for what, port in ports.of(gateway).items()
    }
    wanted["metrics"] = (gateway.host, gateway.metrics_port)
    return NodeQuery(tuple(each.name for each in variables), wanted)


def findings(
    nodes: Sequence[NodeFacts],
    gateway: GatewaySettings,
    variables: Sequence[EnvVariable],
    own_versions: dict[str, str],
) -> list[NodeFinding]:
    """All findings, errors first. `own_versions`: of the machine that asks."""
    found = list(_of_versions(nodes, own_versions))
    for node in nodes:
        if node.error:
            found.append(_unasked(node, own_versions))
            continue
        found += _of_environment(node, variables)
        found += _of_node(node, gateway)
        found += _of_ports(node, gateway)
    if not any(node.head for node in nodes):
        found.append(
            NodeFinding(
                "error", "node", "", "the head node was not among those asked", "is it alive?"
            )
        )
    return sorted(found, key=lambda each: each.level != "error")


def _unasked(node: NodeFacts, own: dict[str, str]) -> NodeFinding:
    mend = "look at the node's raylet logs"
    if "ModuleNotFoundError" in node.error or "No module named" in node.error:
        mend = f"install headrace {own['headrace']} in the Python that Ray runs on there"
    return NodeFinding("error", "node", node.address, f"cannot be asked: {node.error}", mend)


def _of_versions(nodes: Sequence[NodeFacts], own: dict[str, str]) -> Iterator[NodeFinding]:
    asked = [node for node in nodes if node.versions]
    head = next((node for node in asked if node.head), asked[0] if asked else None)
    for node in asked:
        assert head is not None
        for name in ("headrace", "ray", "python"):
            there, wanted = node.versions[name], head.versions[name]
            if there == wanted:
                continue
            # Ray itself accepts Pythons that differ in the patch version only.
            patch = name == "python" and there.split(".")[:2] == wanted.split(".")[:2]
            yield NodeFinding(
                "warning" if patch else "error", "versions", node.address,
                f"{name} {there}; the head has {wanted}", "run one image on all nodes",
            )  # fmt: skip
    if head is not None and head.versions["headrace"] != own["headrace"]:
        yield NodeFinding(
            "warning", "versions", head.address,
            f"headrace {head.versions['headrace']}; here it is {own['headrace']}",
            "check with the version that serves",
        )  # fmt: skip


def _of_environment(node: NodeFacts, variables: Iterable[EnvVariable]) -> Iterator[NodeFinding]:
    unset: list[str] = []
    for each in variables:
        there = node.environment.get(each.name)
        if there == each.value or (there and each.layer is EnvLayer.NODE) or each.is_dynamic:
            continue
        if there is None and each.in_config:
            unset.append(each.name)
            continue
        says = "is not set" if there is None else f"is {there}, not {each.value}"
        level: Literal["error", "warning"] = "warning"
        if each.breaks and not each.in_config:
            level = "error"
        mend = _MEND_ENV
        if each.in_config:
            mend = f"{_MEND_ENV}; or leave it to the Serve config's {FROM_CONFIG}"
        yield NodeFinding(
            level, "environment", node.address, f"{each.name} {says} ({each.why})", mend
        )
    if unset:
        yield NodeFinding(
            "warning", "environment", node.address,
            f"{len(unset)} variables are left to the Serve config ({', '.join(unset)})",
            f"its {FROM_CONFIG} must carry them; or {_MEND_ENV}",
        )  # fmt: skip


def _of_node(node: NodeFacts, gateway: GatewaySettings) -> Iterator[NodeFinding]:
    at = node.address
    if node.wrapper is not None:
        yield NodeFinding(
            "error", "wrapper", at, node.wrapper,
            "mend what it names, or let RAY_SERVE_HAPROXY_BINARY_PATH be the program of a headrace "
            "that suits this Ray",
        )  # fmt: skip
    for folder in node.folders:
        if not folder.writable:
            yield NodeFinding(
                "error", "caches", at, f"{folder.path} cannot be written",
                "give it to the user that Ray runs as, or name another (XDG_CACHE_HOME, "
                "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC)",
            )  # fmt: skip
        elif folder.free_bytes < _MIN_FREE_BYTES:
            free = f"{folder.path} has {folder.free_bytes / _GIB:.1f} GiB left"
            mend = "models are staged there: make room"
            yield NodeFinding("warning", "caches", at, free, mend)
    if abs(node.clock_ahead_s) - node.clock_error_s > _CLOCK_S:
        mend = "keep it by NTP: keys expire by it, and traces are joined"
        ahead = f"{node.clock_ahead_s:+.1f} s from the head's"
        yield NodeFinding("warning", "clock", at, ahead, mend)
    yield from _of_files(node, gateway)


def _of_files(node: NodeFacts, gateway: GatewaySettings) -> Iterator[NodeFinding]:
    if node.open_files == UNLIMITED:
        return
    if why := haproxy_wrapper.too_few_files(node.open_files):
        yield NodeFinding("error", "open files", node.address, why, "then `ray start`")
        return
    most = haproxy_wrapper.connections(HAProxyOptions().max_connections, node.open_files)
    wanted = HAProxyOptions(max_requests=gateway.limits.max_requests).places
    if most < wanted:
        yield NodeFinding(
            "warning", "open files", node.address,
            f"{node.open_files} open files leave HAProxy {most} connections; "
            f"a gateway may have {wanted} requests under way",
            "raise the hard limit (ulimit -Hn 65536, or the container's) before `ray start`",
        )  # fmt: skip


def _of_ports(node: NodeFacts, gateway: GatewaySettings) -> Iterator[NodeFinding]:
    for busy in node.busy:
        if busy.serves:
            continue
        yield NodeFinding(
            "warning" if busy.what == "metrics" else "error", "ports", node.address,
            f"port {busy.port} ({ports.setting_of(busy.what)}) is taken by {busy.who}",
            "end it, or choose another port",
        )  # fmt: skip
    local, own = node.local_ports, GATEWAYS_OWN_PORTS
    if local is not None and local[0] <= own[-1] and own[0] <= local[1]:
        yield NodeFinding(
            "warning", "ports", node.address,
            f"outgoing connections may take ports {local[0]} to {local[1]}; "
            f"gateways listen on {own[0]} to {own[-1]}",
            "sysctl net.ipv4.ip_local_port_range='32768 60999'",
        )  # fmt: skip


def of_token(is_open: bool) -> list[NodeFinding]:
    """`is_open`: the dashboard accepts requests without a token."""
    finding = NodeFinding(
        "warning", "token", "", "anybody who reaches the dashboard may run code here",
        "make a token (ray get-auth-token --generate), give it to every node "
        "(RAY_AUTH_TOKEN_PATH) and start with RAY_AUTH_MODE=token",
    )  # fmt: skip
    return [finding] if is_open else []
