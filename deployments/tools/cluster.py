"""`headrace cluster env | check` and `build`: what nodes need, and what Serve is to run there.

No command imports Ray: `env` and `build` print data; `check` sends a job to the cluster and judges
its findings.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from deployments.control import ray_env
from deployments.control.dashboard import JobFailed, RayDashboard, RayJobs, address_of, token_of
from deployments.control.ingress import haproxy
from deployments.control.preflight import node_facts, node_survey, preflight
from deployments.control.preflight.node_facts import UNLIMITED, NodeFacts
from deployments.control.preflight.preflight import NodeFinding
from deployments.control.ray_env import EnvLayer, EnvVariable
from deployments.control.serve_config import in_cluster, serve_config
from deployments.control.supervisor import server_files
from deployments.settings.gateway import GatewaySettings
from deployments.settings.plain import SettingsErrors
from deployments.settings.tree import Settings
from deployments.settings_files.load import load
from yaml_document.mistakes import Mistake

_CHECK_S = 180.0
# The interpreter of the process that starts the command: jobs do not always have it on their PATH.
_PYTHON = "python"
_SAYS = {
    EnvLayer.IMAGE: "the same for every settings file: an image may bake them",
    EnvLayer.NODE: "of this node: must stand before `ray start`",
    EnvLayer.CONFIG: "of the settings: the Serve config's controller_options may set them instead",
}


def portable(path: Path) -> Settings:
    """The settings for other machines: the models' files are not looked for on this one. Raises
    SettingsErrors."""
    settings = load(path, here=False, absolute=False)
    _check_ingress(path, settings.gateway)
    return settings


def _check_ingress(path: Path, gateway: GatewaySettings) -> None:
    if gateway.ingress == "direct":
        said = "is direct, which one machine alone has; must be haproxy, or auto, on a cluster"
        raise SettingsErrors([Mistake(str(path), 0, "gateway.ingress", said)])


def build(path: Path) -> int:
    """Print the Serve applications of a settings file as YAML. Raises SettingsErrors."""
    click.echo(yaml.safe_dump(serve_config(portable(path)), sort_keys=False), nl=False)
    return 0


def gateway_of(file: Path | None) -> GatewaySettings:
    """The gateway's settings for a cluster of several nodes; the defaults without a file. Raises
    SettingsErrors."""
    if file is None:
        return in_cluster(GatewaySettings())
    settings = load(file, here=False).gateway
    _check_ingress(file, settings)
    return in_cluster(settings)


def env(file: Path | None, layers: Sequence[str], as_json: bool) -> int:
    """Print the variables. Returns the exit code."""
    gateway = gateway_of(file)
    try:
        program = haproxy.program(server_files.state_folder() / "bin")
    except FileNotFoundError as error:
        click.echo(str(error), err=True)
        return 1
    wanted = [v for v in ray_env.variables(gateway, program) if not layers or v.layer in layers]
    click.echo(_as_json(wanted) if as_json else exports(wanted))
    if token_of() is None and not layers:
        click.echo(
            "no token is found: the cluster will let anybody in who reaches it "
            "(ray get-auth-token --generate, then RAY_AUTH_TOKEN_PATH on every node)",
            err=True,
        )
    return 0


def _as_json(wanted: Sequence[EnvVariable]) -> str:
    return json.dumps([asdict(v) | {"in_config": v.in_config} for v in wanted], indent=2)


def exports(wanted: Sequence[EnvVariable]) -> str:
    """For a shell's `eval`, layer by layer; in_config is what a comment says of each layer."""
    lines = []
    for layer in EnvLayer:
        of_layer = [each for each in wanted if each.layer is layer]
        if of_layer:
            lines.append(f"# {_SAYS[layer]}")
        for each in of_layer:
            late = "" if each.in_config or layer is EnvLayer.NODE else "  # before `ray start` only"
            lines.append(f"export {each.name}={shlex.quote(each.value)}{late}")
    return "\n".join(lines)


def check(file: Path | None, address: str | None, as_json: bool) -> int:
    """Ask every node and print what is wrong. Returns the exit code.

    Raises SettingsErrors, and ClusterError where the cluster does not answer.
    """
    gateway = gateway_of(file)
    wanted = ray_env.variables(gateway, Path(haproxy.NAME))
    own = node_facts.versions()
    try:
        with jobs_of(address) as jobs:
            found = preflight.of_token(jobs.lets_anybody_in())
            nodes = asked(jobs, preflight.node_query(gateway, wanted))
    except JobFailed as error:
        click.echo(_explained(error), err=True)
        return 1
    found = [*preflight.findings(nodes, gateway, wanted, own), *found]
    if as_json:
        click.echo(findings_json(nodes, found))
    else:
        show(nodes, found)
    return int(any(each.level == "error" for each in found))


def jobs_of(address: str | None) -> RayJobs:
    return RayJobs(RayDashboard(address_of(address), token_of()))


def asked(jobs: RayJobs, question: node_facts.NodeQuery) -> list[node_facts.NodeFacts]:
    """The findings of every node. Raises JobFailed, ClusterError."""
    told = shlex.quote(json.dumps(asdict(question)))
    output = jobs.run(f"{_PYTHON} -m {node_survey.__name__} {told}", _CHECK_S)
    nodes = node_survey.read(output)
    if nodes is None:
        raise JobFailed("the nodes said nothing", output)
    return nodes


def _explained(error: JobFailed) -> str:
    output = error.output
    if "No module named 'deployments" in output or "No module named deployments" in output:
        return "headrace is not installed on the head node, in the Python that its jobs run"
    last = "\n".join(output.strip().splitlines()[-5:])
    return f"{error}\n{last}" if last else str(error)


_TOPICS = {"ENV": "environment", "WRAPPER": "wrapper", "CACHES": "caches", "PORTS": "ports"}
_STYLE = {"error": "red", "warning": "yellow"}


def findings_json(nodes: Sequence[NodeFacts], found: Sequence[NodeFinding]) -> str:
    """JSON; `ok` says that no finding is an error."""
    return json.dumps(
        {
            "ok": all(each.level != "error" for each in found),
            "nodes": [asdict(each) for each in nodes],
            "findings": [asdict(each) for each in found],
        },
        indent=2,
    )


def table(nodes: Sequence[NodeFacts], found: Sequence[NodeFinding]) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("NODE", "HEADRACE", "RAY", "PYTHON", *_TOPICS):
        made.add_column(heading, overflow="fold")
    for heading in ("CLOCK", "FILES"):
        made.add_column(heading, justify="right", no_wrap=True)
    for node in nodes:
        made.add_row(*_cells(node, [each for each in found if each.node == node.address]))
    return made


def show(
    nodes: Sequence[NodeFacts], found: Sequence[NodeFinding], console: Console | None = None
) -> None:
    target = console or Console(soft_wrap=True)
    target.print(table(nodes, found))
    for each in found:
        where = f"{each.node}: " if each.node else ""
        target.print(
            Text.assemble(
                (each.level, _STYLE[each.level]), f": {where}{each.message}\n  {each.mend}"
            )
        )
    if not found:
        target.print("nothing is wrong")


def _cells(node: NodeFacts, found: Sequence[NodeFinding]) -> list[str]:
    name = f"{node.address} (head)" if node.head else node.address
    if node.error:
        return [name, "cannot be asked"]
    versions = [node.versions[each] for each in ("headrace", "ray", "python")]
    clock = f"{node.clock_ahead_s * 1e3:+.0f}±{node.clock_error_s * 1e3:.0f} ms"
    files = "unlimited" if node.open_files == UNLIMITED else str(node.open_files)
    return [name, *versions, *(_worst(topic, found) for topic in _TOPICS.values()), clock, files]


def _worst(topic: str, found: Sequence[NodeFinding]) -> str:
    levels = {each.level for each in found if each.topic == topic}
    return "error" if "error" in levels else "warning" if levels else "ok"
