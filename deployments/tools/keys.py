"""`headrace key new | list | revoke | carry`: tenants' and operators' keys, in a file or a server.

A key is printed once, when it is made, and stored nowhere; files hold only its hash. A key that is
revoked at a running server ends at once, for as long as its cluster lives; for a RayService on
Kubernetes, in all clusters whose gateways read the ConfigMap of revoked keys. A key that is removed
from a file ends when the file is applied.

A file that a person wrote is edited as text: it is parsed to YAML nodes, which know their places,
and only the characters or lines of the key are inserted or cut, so comments and layout survive. The
result is parsed before it replaces the file, and must differ by that key alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click
import yaml

from deployments.control.dashboard import ClusterError
from deployments.control.supervisor.server_files import NoServer, commands_audit_file, state_folder
from deployments.gateway.tenancy.tenants import new_key
from deployments.process import audit
from deployments.process.audit import AuditLine
from deployments.process.key_list import KeyRow, key_rows
from deployments.settings.gateway import PRIORITIES
from deployments.settings.key import HASH
from deployments.settings.plain import SettingsErrors
from deployments.settings.tree import TenantsSettings
from deployments.settings_files.load import parse_tenants
from deployments.tools import operator
from deployments.tools.where import ServerRefused, Where

T = TypeVar("T")
_KUBECTL_S = 60.0
_LASTS = "remove it from {} too: another cluster accepts it as long as it is listed"


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
    else:
        rows = _rows(where)
    if not rows:
        click.echo("there are no keys")
    for line in _table(rows):
        click.echo(line)
    return 0


def _rows(where: Where) -> list[KeyRow]:
    if where.url is not None:
        return operator.keys(where.url)
    if where.address is not None:
        click.echo("keys revoked at a gateway or by a folder look good here; --url shows", err=True)
        return where.cluster().keys()
    rows: list[KeyRow] = where.ask({"do": "keys"})["keys"]
    return rows


def revoke(name: str, file: Path | None, where: Where, release: str | None) -> int:
    """Revoke a key at a running server (if one is named, or neither file nor release is), for the
    RayService `release`, and remove it from the file. Each is tried, whatever the others say; but
    the file, from which the server or a second try may learn the hash, comes last, and only then.
    Returns the exit code.
    """
    service = RayService.called(release) if release is not None else None
    at_server = where != Where() or (file is None and service is None)
    if service is None:
        told = _at_server(name, where, file) if at_server else {}
        other = _other_key(name, file, told)
        if other is not None:
            click.echo(other, err=True)
        done = other is None
    else:
        done = _in_both(name, file, where if at_server else None, service)
    if not done:
        if file is not None:
            click.echo(f"{file}: is left as it is", err=True)
        return 1
    if file is not None:
        with _audited("key revoke", f"key {audit.nameable(name)}", file):
            owner = remove_key(file, name)
        click.echo(f"{file}: removed {name} of {owner}")
    return 0


def _in_both(name: str, file: Path | None, where: Where | None, service: RayService) -> bool:
    """Whether the key was revoked at the server (unless None) and for the RayService. A hash goes
    there first; of an id the server is asked first, since the file may list a newer key of that id.
    Raises CannotRevoke before anything is done, if the hash cannot be known at all."""
    faults: list[str] = []
    known, note = _known_hash(name, file)
    if known is None and where is None:
        raise CannotRevoke(f"{name!r} is no hash; must be one, or --url or FILE say which")
    if known is not None and (where is None or known == name):
        _tried(faults, lambda: service.revoke({known: note}))
    if where is not None:
        answer = _tried(faults, lambda: _at_server(name, where, file, asks_release=False)) or {}
        old = bool(answer) and "hash" not in answer
        why = "is of an earlier version and tells no hash" if old else "did not tell its hash"
        if known == name:
            pass
        elif "hash" in answer:
            said = f"{answer['revoked']} {answer['owner']}"
            _tried(faults, lambda: service.revoke({answer["hash"]: said}))
            faults += filter(None, [_other_key(name, file, answer)])
        elif known is not None:
            _tried(faults, lambda: service.revoke({known: note}))
            faults.append(
                f"{service}: the hash of {name} is the one that {file} lists, since the server "
                f"{why}; if {file} is not what is in force there, give the key's hash (sha256:…)"
            )
        else:
            faults.append(
                f"{service}: {name} is not revoked there: the server {why}; give the key's hash "
                "(sha256:…) in place of its id, or FILE, which lists it"
            )
        if answer and where.url is not None and not answer.get("folder"):
            faults.append(
                f"{where.url}: its gateways read no ConfigMap of revoked keys (an earlier image or "
                "chart); another cluster like it accepts the key"
            )
    for each in faults:
        click.echo(each, err=True)
    return not faults


def _other_key(name: str, file: Path | None, answer: Mapping[str, Any]) -> str | None:
    """What is wrong where the file's key of this name is another than the one that the server has
    revoked, as after a rotation under one id."""
    listed, _ = _known_hash(name, file)
    if listed is None or answer.get("hash", listed) == listed:
        return None
    return (
        f"{file}: its {name} is another key, {listed}, which is not revoked; revoked is the "
        f"server's {name}, {answer['hash']}; name the other by its hash if it must end too"
    )


def _tried(faults: list[str], do: Callable[[], T]) -> T | None:
    try:
        return do()
    except (CannotRevoke, operator.OperatorRefused, ServerRefused, NoServer, ClusterError) as fault:
        faults.append(str(fault))
        return None


def _known_hash(name: str, file: Path | None) -> tuple[str | None, str]:
    """The key's hash, as far as `name` or the file tells; and what to note beside it."""
    try:
        owner, key = (TenantsSettings() if file is None else tenants_of(file)).key_called(name)
    except ValueError:
        return (name, "") if HASH.fullmatch(name) else (None, "")
    return key.hash, f"{key.kid} {owner}"


def _at_server(
    name: str, where: Where, file: Path | None, *, asks_release: bool = True
) -> Mapping[str, Any]:
    """Revoke the key at the server. `asks_release`: say so if that is not enough."""
    what = f"key {audit.nameable(name)}"
    if where.url is not None:
        told = operator.revoke(name, where.url)
        source = "the server's settings file or tenants file"
        _say_revoked(told, where.url)
        if asks_release and told.get("folder"):
            click.echo("other clusters of its RayService accept it; revoke it with --release too")
    elif where.address is not None:
        with where.audited("key revoke", what):
            told, source = dict(where.cluster().revoke(name)), "the settings file"
        _say_revoked(told, where.address)
    else:
        state = where.server()
        here = Where(state.port)
        with here.audited("key revoke", what):
            told = here.ask({"do": "revoke", "key": name})
        _say_revoked(told, f"port {state.port}")
        source = f"{state.settings_path} or the tenants file"
    if file is None:
        click.echo(_LASTS.format(source))
    return told


def carry(file: Path | None, where: Where, release: str) -> int:
    """Revoke for a RayService all keys that are revoked at a server: its next cluster would not
    know them. `file`: the tenants in force there, for hashes that gateways of earlier versions do
    not tell. Returns the exit code."""
    service = RayService.called(release)
    gone = [row for row in _rows(where) if row["state"] == "revoked"]
    known = {} if file is None else {key.kid: key.hash for _, _, key in tenants_of(file).all_keys()}
    hashes = {row["id"]: row.get("hash") or known.get(row["id"]) for row in gone}
    if missing := [name for name, key_hash in hashes.items() if key_hash is None]:
        raise CannotRevoke(
            f"nothing was done: hashes of {', '.join(missing)} are not known; the gateways are of "
            "an earlier version: FILE must be the tenants in force there, with these keys"
        )
    if guessed := [row["id"] for row in gone if not row.get("hash")]:
        click.echo(
            f"hashes of {', '.join(guessed)} are those that {file} lists; it must be the tenants "
            "in force there: a newer key under the same id is another one",
            err=True,
        )
    notes = {hashes[row["id"]] or "": f"{row['id']} {row['owner']}" for row in gone}
    if notes:
        service.revoke(notes)
    else:
        click.echo("no key is revoked there")
    return 0


def _audited(verb: str, what: str, where: Path | str) -> AbstractContextManager[object]:
    at = str(where.absolute()) if isinstance(where, Path) else where
    line = AuditLine(audit.user(), verb, what, at)
    return audit.audited(line, commands_audit_file(state_folder()))


def _say_revoked(answer: Mapping[str, Any], where: str) -> None:
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


# ---- keys of a RayService on Kubernetes ----------------------------------------------------------


class CannotRevoke(Exception):
    """The key was not revoked for all clusters of a RayService; the message says why."""


class RayService(NamedTuple):
    """Gateways of its clusters mount the ConfigMap NAME-revoked-keys where it is there; no chart
    makes it, so that no upgrade or rollback takes a key out. All is done with `kubectl` and the
    rights of whoever runs this."""

    namespace: str
    name: str

    @classmethod
    def called(cls, name: str) -> RayService:
        parts = name.split("/")
        if len(parts) != 2 or not all(parts):
            raise CannotRevoke(f"{name!r} is no RayService; must be NAMESPACE/RAYSERVICE")
        return cls(*parts)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def _config_map(self) -> str:
        return f"{self.name}-revoked-keys"

    def revoke(self, notes: Mapping[str, str]) -> None:
        """Note hashes, each with a few words for people, and say where. Raises CannotRevoke, also
        if a cluster is there that does not read them."""
        keys = ", ".join(note.partition(" ")[0] or each for each, note in notes.items())
        with _audited("key revoke", f"key {keys}", str(self)):
            self._check()
            self._write({each.removeprefix("sha256:"): note for each, note in notes.items()})
        context = self._ask("config", "current-context")[0].strip() or "none"
        click.echo(f"{self}: noted {keys} in ConfigMap {self._config_map} (context {context})")
        readers, others = self._clusters()
        there = ", ".join(readers) or "none is there yet"
        click.echo(f"clusters that read it refuse it within two minutes: {there}")
        if others:
            raise CannotRevoke(
                f"{self}: {', '.join(others)} of an earlier version of the chart: does not read "
                "the ConfigMap; revoke there with --url, and again after a rollback to it"
            )

    def _check(self) -> None:
        _, said = self._ask("get", "rayservices.ray.io", self.name, "-o", "name")
        if "(NotFound)" in said:
            listed = self._kubectl("get", "rayservices.ray.io", "-o", "name").split()
            there = ", ".join(each.partition("/")[2] for each in listed) or "none"
            said = f"there is no such RayService; there are: {there}"
        if said:
            raise CannotRevoke(f"{self}: not revoked there: {said}")

    def _write(self, data: Mapping[str, str]) -> None:
        name = self._config_map
        made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
        patch = ("patch", "configmap", name, "--type=merge", "-p", json.dumps({"data": data}))
        _, said = self._ask(*patch)
        if "(NotFound)" in said:
            _, said = self._ask("create", "-f", "-", given=json.dumps(made))
        if "(AlreadyExists)" in said:  # somebody else has made it meanwhile
            _, said = self._ask(*patch)
        if said:
            edit = f"kubectl -n {self.namespace} edit configmap {name}"
            full = f"it is full: with `{edit}`, delete keys that no list of tenants has any more"
            raise CannotRevoke(
                f"{self}: not revoked in ConfigMap {name}: {said}; other clusters accept the key; "
                f"{full if 'Too long' in said else 'run this again'}"
            )

    def _clusters(self) -> tuple[list[str], list[str]]:
        """The names of those whose pods mount the ConfigMap, and of the others."""
        listed = json.loads(self._kubectl("get", "rayclusters.ray.io", "-o", "json"))["items"]
        readers: list[str] = []
        others: list[str] = []
        for each in listed:
            owners = each["metadata"].get("ownerReferences", ())
            if any((of["kind"], of["name"]) == ("RayService", self.name) for of in owners):
                reads = f'"name": "{self._config_map}"' in json.dumps(each["spec"])
                (readers if reads else others).append(each["metadata"]["name"])
        return readers, others

    def _kubectl(self, *arguments: str) -> str:
        printed, said = self._ask(*arguments)
        if said:
            raise CannotRevoke(f"{self}: {said}")
        return printed

    def _ask(self, *arguments: str, given: str = "") -> tuple[str, str]:
        """What `kubectl` prints, and what it complains of; "" if it has done it."""
        command = ["kubectl", "-n", self.namespace, *arguments]
        try:
            done = subprocess.run(
                command,
                input=given,
                capture_output=True,
                text=True,
                check=False,
                timeout=_KUBECTL_S,
            )
        except (OSError, subprocess.TimeoutExpired) as fault:
            return "", f"kubectl cannot be run: {fault}"
        return done.stdout, (done.stderr.strip() or "kubectl failed") if done.returncode else ""


# ---- one key in a file ---------------------------------------------------------------------------

OPERATORS = "operators"


class CannotEdit(Exception):
    """The file was not changed; the message says why, and what to do by hand."""


class _Flow(yaml.SafeDumper):
    """A YAML dumper that does not change `yaml.SafeDumper`."""


def as_item(key: Mapping[str, Any]) -> str:
    """A key as one line of YAML, to be an item of a list; its hash alone if it has nothing else."""
    value: Any = key["hash"] if set(key) == {"hash"} else dict(key)
    text = yaml.dump(value, Dumper=_Flow, default_flow_style=True, sort_keys=False, width=10_000)
    return text.removesuffix("\n").removesuffix("...").strip()


def add_key(path: Path, tenant: str | None, key: Mapping[str, Any]) -> None:
    """Add a key to the tenant, or to the operators (None). Raises SettingsErrors for a file with
    mistakes; CannotEdit."""
    text, before = _read(path)
    if tenant is not None and tenant not in before.tenants:
        there = ", ".join(before.tenants) or "none"
        raise CannotEdit(f"{path} has no tenant {tenant}; there are: {there}; add it first")
    at = ("tenants", tenant) if tenant is not None else (OPERATORS,)
    changed = _with_item(text, at, as_item(key))
    _replace(path, changed, _hashes(before) | {key["hash"]})


def remove_key(path: Path, name: str) -> str:
    """Remove the key with this id or hash. Returns its owner. Raises as `add_key`."""
    text, before = _read(path)
    try:
        owner, key = before.key_called(name)
    except ValueError as unknown:
        raise CannotEdit(f"{path}: {unknown}") from None
    at = next(at for at, _, each in before.all_keys() if each.hash == key.hash)
    *section, _, position = at
    assert isinstance(position, int)
    changed = _without_item(text, tuple(str(step) for step in section), position)
    _replace(path, changed, _hashes(before) - {key.hash})
    return owner


def tenants_of(path: Path) -> TenantsSettings:
    """The tenants, controllers and operators of a file. Raises SettingsErrors, CannotEdit."""
    return _read(path)[1]


def _read(path: Path) -> tuple[str, TenantsSettings]:
    try:
        with path.open(encoding="utf-8", newline="") as stream:  # its line ends are its own
            text = stream.read()
    except (OSError, UnicodeDecodeError) as fault:
        raise CannotEdit(f"{path} cannot be read: {fault}") from None
    return text, _parsed(text, path)


def _parsed(text: str, path: Path) -> TenantsSettings:
    return parse_tenants(text, str(path), _priorities(text))


def _priorities(text: str) -> tuple[str, ...]:
    """The priorities that the file sets, if it is a whole settings file; else the defaults."""
    try:
        named = (yaml.safe_load(text) or {}).get("gateway", {})["priorities"]
        return tuple(str(each) for each in named)
    except (yaml.YAMLError, AttributeError, KeyError, TypeError):
        return PRIORITIES


def _hashes(settings: TenantsSettings) -> set[str]:
    return {key.hash for _, _, key in settings.all_keys()}


def _replace(path: Path, text: str, hashes: set[str]) -> None:
    """Replace the file's text atomically (the target, if it is a link), provided that its keys are
    then those with these hashes."""
    try:
        became = _hashes(_parsed(text, path))
    except SettingsErrors as wrong:
        raise CannotEdit(f"{path} cannot be changed so: {wrong}") from None
    if became != hashes:
        raise CannotEdit(f"{path} is written in a way that cannot be changed here; edit it by hand")
    whole = path.resolve()
    try:
        handle, temporary = tempfile.mkstemp(dir=whole.parent, prefix=f".{whole.name}.")
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
        shutil.copymode(whole, temporary)
        os.replace(temporary, whole)
    except OSError as fault:
        raise CannotEdit(f"{path} cannot be written: {fault.strerror or fault}") from None


# ---- places in the text -------------------------------------------------------------------------


def _with_item(text: str, section: tuple[str, ...], item: str) -> str:
    found = _find(text, (*section, "keys"))
    if isinstance(found, yaml.SequenceNode):
        return _appended(text, found, item)
    owner = _find(text, section)
    if isinstance(owner, yaml.MappingNode) and found is None:
        return _entered(text, owner, f"keys: [{item}]")
    if isinstance(owner, yaml.ScalarNode) and owner.value == "":  # `acme:` and nothing below
        at = owner.start_mark.index
        return f"{text[:at]} {{keys: [{item}]}}{text[at:]}"
    root = _root(text)
    if owner is None and isinstance(root, yaml.MappingNode):
        return _entered(text, root, f"{section[0]}: {{keys: [{item}]}}")
    raise CannotEdit("the file is written in a way that cannot be changed here; edit it by hand")


def _appended(text: str, keys: yaml.SequenceNode, item: str) -> str:
    if keys.flow_style:
        at = keys.end_mark.index - 1
        return f"{text[:at]}{', ' if keys.value else ''}{item}{text[at:]}"
    indent = " " * keys.start_mark.column
    return _line_after(text, _last_line(keys), f"{indent}- {item}")


def _entered(text: str, mapping: yaml.MappingNode, entry: str) -> str:
    """With another name in a mapping."""
    if mapping.flow_style:
        at = mapping.end_mark.index - 1
        return f"{text[:at]}{', ' if mapping.value else ''}{entry}{text[at:]}"
    indent = " " * mapping.start_mark.column
    return _line_after(text, _last_line(mapping), indent + entry)


def _without_item(text: str, section: tuple[str, ...], position: int) -> str:
    keys = _find(text, (*section, "keys"))
    if not isinstance(keys, yaml.SequenceNode):
        raise CannotEdit("the file is written in a way that cannot be changed here")
    items = keys.value
    if len(items) == 1:
        last = items[0].end_mark.index if keys.flow_style else _end_of_line(text, _last_line(keys))
        end = keys.end_mark.index if keys.flow_style else last
        return f"{text[: keys.start_mark.index]}[]{text[end:]}"
    if keys.flow_style:
        if position + 1 < len(items):
            begin, end = items[position].start_mark.index, items[position + 1].start_mark.index
        else:
            begin, end = items[position - 1].end_mark.index, items[position].end_mark.index
        return text[:begin] + text[end:]
    lines = text.splitlines(keepends=True)  # YAML allows no character that Python alone ends at
    del lines[items[position].start_mark.line : _last_line(items[position]) + 1]
    return "".join(lines)


def _root(text: str) -> yaml.Node | None:
    node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    return node


def _find(text: str, path: tuple[str, ...]) -> yaml.Node | None:
    node = _root(text)
    for step in path:
        if not isinstance(node, yaml.MappingNode):
            return None
        node = next((value for name, value in node.value if name.value == step), None)
    return node


def _last_line(node: yaml.Node) -> int:
    """Counted from 0; a block's own end mark is behind the comments that follow it."""
    if isinstance(node, yaml.ScalarNode):
        return node.end_mark.line - (node.style in ("|", ">"))
    assert isinstance(node, yaml.CollectionNode)
    if node.flow_style or not node.value:
        return int(node.end_mark.line)
    last = node.value[-1]
    return _last_line(last[1] if isinstance(last, tuple) else last)


def _end_of_line(text: str, line: int) -> int:
    before = text.splitlines(keepends=True)[:line]
    return sum(map(len, before)) + len(text.splitlines()[line])


def _line_after(text: str, line: int, added: str) -> str:
    at = _end_of_line(text, line)
    return f"{text[:at]}\n{added}{text[at:]}"
