"""Adds or removes one key in a settings or tenants file that a person wrote, and keeps the rest.

The file is parsed to YAML nodes, which know their positions in the text. Only the characters or
lines of the key are inserted or cut, so comments and layout survive. The result is parsed before it
replaces the file, and must differ by that key alone. A file whose layout is not understood is left
unchanged (CannotEdit).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from deployments.settings.gateway import PRIORITIES
from deployments.settings.plain import SettingsErrors
from deployments.settings.tree import TenantsSettings
from deployments.settings_files.load import parse_tenants

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
