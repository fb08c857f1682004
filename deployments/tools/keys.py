"""`headrace key new | list | revoke`: keys of tenants and operators, in a file or a running server.

A key is printed once, when it is made, and stored nowhere; files hold only its hash. A key that is
revoked at a running server ends at once and for good. A key that is removed from a file ends when
the file is applied.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from deployments.control.supervisor.server_files import commands_audit_file, state_folder
from deployments.gateway.tenancy.tenants import new_key
from deployments.process import audit
from deployments.process.audit import AuditLine
from deployments.process.key_list import KeyRow, key_rows
from deployments.tools import operator
from deployments.tools.tenants_file import add_key, as_item, remove_key, tenants_of
from deployments.tools.where import Where


@dataclass(frozen=True, slots=True)
class NewKey:
    """The key that the command line asks for."""

    tenant: str | None = None  # None: an operator's key, or no tenant was named
    is_operators: bool = False
    id: str | None = None
    lives_s: int | None = None  # seconds from now until it expires; None: never
    models: tuple[str, ...] = ()  # empty: all models

    def settings(self, hashed: str, wall_s: float) -> dict[str, Any]:
        said: dict[str, Any] = {"id": self.id, "hash": hashed}
        if self.lives_s is not None:
            ends = datetime.fromtimestamp(wall_s + self.lives_s, UTC)
            said["expires"] = ends.isoformat(timespec="seconds").replace("+00:00", "Z")
        if self.models:
            said["models"] = list(self.models)
        return {name: value for name, value in said.items() if value is not None}


def new(wanted: NewKey, file: Path | None) -> int:
    """Make a key and print it; write its hash into `file`, or print what to write. Returns the exit
    code. Raises SettingsErrors and CannotEdit, both before anything is printed."""
    made, hashed = new_key()
    settings = wanted.settings(hashed, time.time())
    owner = "operators" if wanted.is_operators else f"tenant {wanted.tenant}"
    if file is not None:
        with _audited("key new", f"key {wanted.id or '?'} of {owner}", file):
            add_key(file, wanted.tenant, settings)
    who = "operator" if wanted.is_operators else "tenant"
    click.echo(f"key:  {made}   (give it to the {who}; it is not stored)")
    if file is not None:
        click.echo(f"file: {file}   (has its hash; `headrace apply` puts it into force)")
        return 0
    place = "operators.keys" if wanted.is_operators else f"tenants.{wanted.tenant or '<name>'}.keys"
    if set(settings) == {"hash"}:
        click.echo(f"hash: {hashed}   (put it under {place})")
    else:
        click.echo(f"yaml: - {as_item(settings)}   (put it under {place})")
    return 0


def show(file: Path | None, where: Where) -> int:
    """Print the keys of `file`, or else of a running server. Returns the exit code."""
    if file is not None:
        rows = key_rows(tenants_of(file).all_keys(), (), time.time())
    elif where.url is not None:
        rows = operator.keys(where.url)
    elif where.address is not None:
        rows = where.cluster().keys()
    else:
        rows = where.ask({"do": "keys"})["keys"]
    if not rows:
        click.echo("there are no keys")
    for line in _table(rows):
        click.echo(line)
    return 0


def revoke(name: str, file: Path | None, where: Where) -> int:
    """Revoke a key at a running server (if one is named, or no file is), and remove it from the
    file, if one is given. The file comes last: the server may read it to find the key by its id.
    """
    if where.url is not None:
        _say(operator.revoke(name, where.url), where.url)
        if file is None:
            click.echo("remove it from the server's settings file or tenants file too")
    elif where.address is not None:
        with where.audited("key revoke", f"key {audit.nameable(name)}"):
            _say(where.cluster().revoke(name), where.address)
        if file is None:
            click.echo("remove it from the settings file too")
    elif file is None or where.port is not None:
        state = where.server()
        here = Where(state.port)
        with here.audited("key revoke", f"key {audit.nameable(name)}"):
            _say(here.ask({"do": "revoke", "key": name}), f"port {state.port}")
        if file is None:
            click.echo(f"remove it from {state.settings_path} or the tenants file too")
    if file is not None:
        with _audited("key revoke", f"key {audit.nameable(name)}", file):
            owner = remove_key(file, name)
        click.echo(f"{file}: removed {name} of {owner}")
    return 0


def _audited(verb: str, what: str, file: Path) -> AbstractContextManager[object]:
    line = AuditLine(audit.user(), verb, what, str(file.absolute()))
    return audit.audited(line, commands_audit_file(state_folder()))


def _say(answer: dict[str, Any], where: str) -> None:
    click.echo(f"{where}: revoked {answer['revoked']} of {answer['owner']}")


def _table(rows: list[KeyRow]) -> list[str]:
    cells = [("ID", "OWNER", "STATE", "EXPIRES", "MODELS")] if rows else []
    for row in rows:
        models = "all" if row["models"] is None else ", ".join(row["models"]) or "none"
        shown = "-" if row["owner"] == "operators" else models
        cells.append((row["id"], row["owner"], row["state"], row["expires"] or "never", shown))
    widths = [max(len(each[column]) for each in cells) for column in range(5)] if cells else []
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
