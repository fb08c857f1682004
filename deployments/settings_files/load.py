"""Reads settings from a file, and says everything that is wrong with it at once.

`load` reads a file, validates it, and checks that the models' files are there.
"""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from deployments.settings import model_paths
from deployments.settings.gateway import PRIORITIES, GatewaySettings
from deployments.settings.plain import SettingsErrors
from deployments.settings.record import shared_folders
from deployments.settings.reuse import fallback_mistakes
from deployments.settings.tree import (
    Settings,
    TenantsSettings,
    alias_mistakes,
    unknown_models,
    unknown_priorities,
)
from deployments.settings_files import sources
from deployments.settings_files.model_checks import misplaced_option, model_mistakes
from deployments.settings_files.policy_files import inline_policy_files
from yaml_document.document import Document, read_document, read_file
from yaml_document.mistakes import UNKNOWN, Mistake, explain

TLS_FILES = ("certificate", "key", "authority", "client_ca")


def load(path: Path | str, *, here: bool = True, absolute: bool = True) -> Settings:
    """The settings of a file. Raises SettingsErrors, which has all mistakes.

    `here`: the models will run on this machine, so their files and packages must be on it.
    `absolute`: make relative paths absolute against the file's folder; else they stay as written,
    for other machines to resolve.
    """
    document = _read(path)
    folder = Path(path).absolute().parent
    wrong_policies = inline_policy_files(document.data.get("models"), document, folder)
    if here:
        _make_tls_absolute(document.data, folder)
    written = copy.deepcopy(document.data)
    make_paths_absolute(document.data.get("models"), folder)
    mistakes = document.mistakes + wrong_policies + ([] if here else _relative_tls(document))
    settings: Settings | None = None
    try:
        settings = Settings.model_validate(document.data)
    except ValidationError as error:
        mistakes += explain(error, Settings, partial(_mistake, document))
        mistakes += _mistakes_between_sections(document)
    mistakes += model_mistakes(document, here=here)
    if mistakes or settings is None:
        raise SettingsErrors(mistakes)
    return settings if absolute else Settings.model_validate(written)


def _mistake(document: Document, at: tuple[str | int, ...], message: str) -> Mistake:
    unknown = message.startswith(UNKNOWN)
    return document.mistake(at, (misplaced_option(document, at) if unknown else None) or message)


def load_tenants(path: Path | str, priorities: Collection[str] = PRIORITIES) -> TenantsSettings:
    """The part of the settings that gateways read again while they run.

    `path`: a whole settings file; a file with only `tenants:` and perhaps `controllers:` and
    `operators:`; or a folder whose *.yaml files have these sections between them. `priorities`:
    those of the running gateway. Models are not checked. Raises SettingsErrors, also for a file
    that has neither tenants nor models: a truncated file must not let callers in without keys.
    """
    if not os.path.isdir(path):
        return _tenants_of(_read(path), priorities)
    parts = [_read(each) for each in sorted(Path(path).glob("*.yaml"))]
    if not parts:
        raise SettingsErrors([Mistake(str(path), 0, "", "has no *.yaml file")])
    return _tenants_of(_joined(parts, str(path)), priorities)


def parse_tenants(
    text: str, name: str, priorities: Collection[str] = PRIORITIES
) -> TenantsSettings:
    """`load_tenants` for the text of a file. `name`: what errors call the file."""
    return _tenants_of(_mapping(read_document(text, name)), priorities)


def tenants_text(settings: TenantsSettings) -> str:
    """The inverse of `parse_tenants`: YAML of tenants, controllers and operators."""
    taken_up = settings.model_dump(mode="json", include=set(TenantsSettings.model_fields))
    return str(yaml.safe_dump(taken_up))


def _tenants_of(document: Document, priorities: Collection[str]) -> TenantsSettings:
    data: Mapping[str, Any] = document.data
    if not document.mistakes and "tenants" not in data and "models" not in data:
        document.mistakes.append(document.mistake(("tenants",), "is missing; must be a mapping"))
    for name in data.keys() - Settings.model_fields.keys():
        document.mistakes += _explained(document, Settings, {"models": {}, name: None}, name)
    try:
        tenants = TenantsSettings.model_validate(
            {k: v for k, v in data.items() if k in TenantsSettings.model_fields}
        )
    except ValidationError as error:
        raise SettingsErrors(
            [*document.mistakes, *explain(error, TenantsSettings, document.mistake)]
        ) from None
    ranks = {name: tenant.priority for name, tenant in tenants.tenants.items()}
    document.mistakes += [document.mistake(*each) for each in unknown_priorities(ranks, priorities)]
    if document.mistakes:
        raise SettingsErrors(document.mistakes)
    return tenants


def _joined(parts: list[Document], folder: str) -> Document:
    """One document made of several. Mappings are merged; a value that two files give is a
    mistake."""
    whole = Document(folder, {})
    for part in parts:
        whole.mistakes += part.mistakes
        for path in _join(whole.data, part.data):
            whole.mistakes.append(
                part.mistake(path, "is also in another file of the folder; must be in one")
            )
    return whole


def _join(into: dict[str, Any], data: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Merge `data` into `into`; yields the path of each value that both have."""
    for name, value in data.items():
        if name not in into:
            into[name] = value
        elif isinstance(into[name], dict) and isinstance(value, dict):
            yield from ((name, *path) for path in _join(into[name], value))
        else:
            yield (name,)


def _read(path: Path | str) -> Document:
    return _mapping(read_file(path))


def _mapping(document: Document) -> Document:
    """The document, whose data is a mapping. Raises SettingsErrors if it is not."""
    if document.data is None and not document.mistakes:
        raise SettingsErrors([Mistake(document.file, 0, "", "is empty; must have models:")])
    if not isinstance(document.data, dict):
        top = document.mistake((), "must be a mapping that has models:")
        raise SettingsErrors(document.mistakes or [top])
    return document


def make_paths_absolute(models: Any, folder: Path) -> None:
    """Make the relative paths in plain data of models (by name) absolute against `folder`, in
    place."""
    for model in models.values() if isinstance(models, dict) else ():
        model_paths.change(model, lambda path: sources.absolute(path, folder))


def _tls_sections(data: Any) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """(path in the document, section) of each that names TLS files."""
    gateway = data.get("gateway") if isinstance(data, dict) else None
    channel = gateway.get("channel") if isinstance(gateway, dict) else None
    for at, holder in ((("gateway",), gateway), (("gateway", "channel"), channel)):
        if isinstance(holder, dict) and isinstance(holder.get("tls"), dict):
            yield (*at, "tls"), holder["tls"]


def _relative_tls(document: Document) -> list[Mistake]:
    """Of settings for other machines, which have these files at places of their own."""
    return [
        document.mistake((*at, name), f"is {section[name]!r}; must be an absolute path, which each "
                         "node has for itself")
        for at, section in _tls_sections(document.data)
        for name in TLS_FILES
        if isinstance(section.get(name), str) and not os.path.isabs(section[name])
    ]  # fmt: skip


def _make_tls_absolute(data: Any, folder: Path) -> None:
    for _, section in _tls_sections(data):
        for name in TLS_FILES:
            if isinstance(section.get(name), str) and section[name]:
                section[name] = sources.absolute(section[name], folder)


def _explained(document: Document, root: Any, data: Any, only: str) -> list[Mistake]:
    try:
        root.model_validate(data)
    except ValidationError as error:
        return [each for each in explain(error, root, document.mistake) if each.path == only]
    return []


def _mistakes_between_sections(document: Document) -> list[Mistake]:
    """Mistakes between sections. Pydantic checks these rules only where each section is right by
    itself; here they are checked on plain data, so that all mistakes are reported at once."""
    tenants, models = document.data.get("tenants"), document.data.get("models")
    mistakes: list[Mistake] = []
    if isinstance(models, dict):
        mistakes += [
            document.mistake(*each)
            for each in itertools.chain(
                fallback_mistakes(models), shared_folders(models), alias_mistakes(models)
            )
        ]
    if not isinstance(tenants, dict):
        return mistakes
    try:
        TenantsSettings.model_validate({"tenants": tenants})
    except ValidationError as error:
        mistakes += explain(error, TenantsSettings, document.mistake)
    given = {name: tenant for name, tenant in tenants.items() if isinstance(tenant, dict)}
    if isinstance(models, dict) and models:
        wanted: dict[tuple[str | int, ...], list[Any]] = {
            ("tenants", name, "models"): _listed(tenant.get("models"))
            for name, tenant in given.items()
        }
        mistakes += [document.mistake(*each) for each in unknown_models(wanted, models)]
    if (priorities := _priorities(document.data.get("gateway"))) is not None:
        ranks = {name: tenant.get("priority") for name, tenant in given.items()}
        mistakes += [document.mistake(*each) for each in unknown_priorities(ranks, priorities)]
    return mistakes


def _priorities(gateway: Any) -> tuple[str, ...] | None:
    """The priorities of a gateway section, whose other fields may be wrong; None if the priorities
    are wrong."""
    given = gateway if isinstance(gateway, dict) else {}
    try:
        return GatewaySettings.model_validate(
            {name: given[name] for name in ("priorities",) if name in given}
        ).priorities
    except ValidationError:
        return None


def _listed(names: Any) -> list[Any]:
    return names if isinstance(names, list) else []
