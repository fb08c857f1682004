"""Which server a command is about, and how it is reached: `Where`, and the options that make one.

- Here (`--port`, or nothing): the server of this machine, by its control socket in its run folder,
  one JSON line each way. Its owner alone can open it. It also tells the address and the token of
  the dashboard of the server's own Ray, through which models change as on any cluster.
- A Ray cluster (`--address`): by Serve's REST interface at the cluster's dashboard.
- Gateways (`--url`): by their pages for operators (`operator.py`). They bring in no files
  (docs/decisions/0041-a-key-applies-no-file.md).

Every command that talks to a server has all three options. Where one of them cannot do what the
command does, the command says which can. Nothing here imports Ray; what is slow to import is
imported when it is needed, so that `--help` is instant.
"""

from __future__ import annotations

import functools
import json
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pathlib import Path

    from deployments.control.dashboard import RayDashboard
    from deployments.control.remote_cluster import RemoteCluster
    from deployments.control.supervisor.server_files import ServerState
    from deployments.settings.tree import Settings

_DASHBOARD_S = 90.0  # that the host of this machine needs at most to start another dashboard
_ANSWER_S = 15.0
PORT = click.IntRange(1, 65_535)
_HUNG_S = 900.0  # that a change waits for a host that hangs
_OPTIONS = {
    "port": click.option(
        "--port", type=PORT, help="The server's port; needed only when several run here."
    ),
    "address": click.option(
        "--address",
        metavar="URL",
        help="Dashboard of a Ray cluster (http://HEAD:8265): acts on that cluster, not on a server "
        "started here. The dashboard's token is read from $RAY_AUTH_TOKEN.",
    ),
    "url": click.option(
        "--url",
        metavar="URL",
        help="A server's gateways, with an operator's key in $HEADRACE_OPERATOR_KEY.",
    ),
}


class ServerRefused(Exception):
    """The server refused; the message says why."""


@dataclass(frozen=True, slots=True)
class Where:
    """At most one is set. None is: the only server of this machine."""

    port: int | None = None
    address: str | None = None
    url: str | None = None

    def server(self) -> ServerState:
        """The running server of this machine. Raises NoServer."""
        from deployments.control.supervisor import server_files

        return server_files.find(self.port, server_files.state_folder())

    def ask(self, request: dict[str, Any], timeout_s: float = _ANSWER_S) -> dict[str, Any]:
        """The answer of the server of this machine. Raises NoServer and ServerRefused."""
        return ask(self.server().port, request, timeout_s)

    def _server_told(self) -> dict[str, Any]:
        """Where the server of this machine is reached; waits for a host that hangs."""
        return self.ask({"do": "where"}, _HUNG_S)

    def dashboard(self) -> RayDashboard:
        """The dashboard of the cluster, or of the server of this machine. Raises ClusterError if
        the address cannot be one, NoServer and ServerRefused."""
        from deployments.control.dashboard import SERVE_ANSWER_S, RayDashboard, address_of, token_of

        if self.address is None:
            told = self._server_told()
            return RayDashboard(told["dashboard"], told["token"], answer_s=SERVE_ANSWER_S)
        return RayDashboard(address_of(self.address), token_of(), answer_s=SERVE_ANSWER_S)

    def cluster(self) -> RemoteCluster:
        """What changes the cluster, or the server of this machine. Raises as `dashboard`."""
        from deployments.control.dashboard import ServeRest
        from deployments.control.remote_cluster import RemoteCluster

        here = self.address is None
        rest = ServeRest(self.dashboard(), _DASHBOARD_S if here else 0.0)
        return RemoteCluster(rest, one_machine=here)

    def settings(self, path: Path) -> Settings:
        """Those of a file, as the cluster or the server would run them. Raises SettingsErrors, and
        as `dashboard`."""
        from deployments.control.origin import Origin
        from deployments.settings_files.load import load
        from deployments.tools.cluster import portable

        if self.address is not None:
            return portable(path)
        written = load(path, absolute=False)  # what is wrong with it is said without a server, too
        origin = Origin.from_plain(self._server_told()["origin"])
        return origin.settings(written, path.absolute().parent)

    def audited(self, verb: str, what: str, after: str = "") -> AbstractContextManager[object]:
        """Write a change of the server into its audit log; of a cluster, into this machine's: the
        cluster's is its own."""
        from deployments.control.dashboard import address_of
        from deployments.control.supervisor import server_files
        from deployments.process import audit

        folder = server_files.state_folder()
        if self.address is None:
            port = self.server().port
            file, at = server_files.audit_file(port, folder), f"port {port}"
        else:
            file, at = server_files.commands_audit_file(folder), address_of(self.address)
        return audit.audited(audit.AuditLine(audit.user(), verb, what, at, after=after), file)


def reaches(**cannot: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a command `--port`, `--address` and `--url`, which it gets as one argument `where`.

    `cannot`: by option, why the command cannot be done that way and what can. Such an option is
    not on the help page.
    """

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def run(**arguments: Any) -> Any:
            given = {n: arguments.pop(n) for n in _OPTIONS}
            named = [f"--{name}" for name, value in given.items() if value is not None]
            if len(named) > 1:
                raise click.UsageError(
                    f"{' and '.join(named)} name a server each; must be one of them"
                )
            for name, why in cannot.items():
                if given[name] is not None:
                    raise click.UsageError(f"--{name} cannot do this: {why}")
            return command(where=Where(**given), **arguments)

        for name, option in reversed(_OPTIONS.items()):
            option(run)
            if name in cannot:
                run.__click_params__[-1].hidden = True  # type: ignore[attr-defined]
        return run

    return decorated


def ask(port: int, request: dict[str, Any], timeout_s: float = _ANSWER_S) -> dict[str, Any]:
    """The answer of the host on `port` to one request. Raises NoServer or ServerRefused."""
    from deployments.control.supervisor import server_files

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as conn:
        conn.settimeout(timeout_s)
        try:
            conn.connect(str(server_files.control_socket(port)))
        except OSError as error:
            raise server_files.NoServer(
                f"the server on port {port} is starting or stopping"
            ) from error
        try:
            conn.sendall(json.dumps(request).encode() + b"\n")
            with conn.makefile("rb") as lines:
                line = lines.readline()
        except TimeoutError as late:
            raise ServerRefused(
                f"the server did not answer within {timeout_s:g} s; it may still do what was asked"
            ) from late
        except OSError:
            line = b""
    answer: dict[str, Any] = (
        json.loads(line) if line else {"error": "the server ended before it answered"}
    )
    if "error" in answer:
        raise ServerRefused(answer["error"])
    return answer
