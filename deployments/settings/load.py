"""Settings from a file or from plain data, and back.

`load` reads, validates and looks for the models' files, and reports every mistake at once. `dump`
and `parse` carry settings between processes as plain data. `digest` is a model's default version:
it changes when answers may change, not when batches or replicas do.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from deployments.settings import sources
from deployments.settings.accept import PATHS
from deployments.settings.gateway import PRIORITIES, GatewaySettings
from deployments.settings.model import ModelSettings
from deployments.settings.model_checks import model_mistakes
from deployments.settings.record import shared
from deployments.settings.reuse import astray
from deployments.settings.scaling import take_in_policies
from deployments.settings.tree import Settings, TenantsSettings, dangling, unranked
from yaml_document.document import Document, read_document, read_file
from yaml_document.mistakes import DocumentErrors, Mistake, explain

_SHAPE_ANSWERS = {"runtime", "task", "precision", "lengths", "options"}
_SHAPE_NO_ANSWERS = {"lengths": {"buckets", "adapt", "switch_ms"}, "image": {"max_pixels"}}
# Sections that few models have: the others' versions do not depend on there being such a section.
_SHAPE_SOME = ("image", "classify")


class SettingsErrors(DocumentErrors):
    """What is wrong with the settings."""


def load(path: Path | str, *, here: bool = True, absolute: bool = True) -> Settings:
    """Raises SettingsErrors. `here`: the models' files and packages must be on this machine.
    `absolute`: relative paths are made absolute against the file's folder; else they stay as the
    user wrote them, for the machines that will resolve them."""
    document = _read(path)
    folder = Path(path).absolute().parent
    wrong_policies = take_in_policies(document.data.get("models"), document, folder)
    written = copy.deepcopy(document.data)
    make_paths_absolute(document.data.get("models"), folder)
    mistakes = document.mistakes + wrong_policies
    settings: Settings | None = None
    try:
        settings = Settings.model_validate(document.data)
    except ValidationError as error:
        mistakes += explain(error, Settings, document.mistake)
        mistakes += _mistakes_between_sections(document)
    mistakes += model_mistakes(document, here=here)
    if mistakes or settings is None:
        raise SettingsErrors(mistakes)
    return settings if absolute else Settings.model_validate(written)


def load_tenants(path: Path | str, priorities: Collection[str] = PRIORITIES) -> TenantsSettings:
    """What gateways take up while they run: of a whole settings file, of one that has only
    `tenants:` and perhaps `controllers:`, or of a folder whose *.yaml files say it together.

    Models are not looked at; `priorities` are those of the gateway that runs. What mentions neither
    tenants nor models is refused: a truncated file must not open the door. Raises SettingsErrors.
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
    """As `load_tenants`, of a file's text; `name` stands for the file in what is wrong with it."""
    return _tenants_of(_mapping(read_document(text, name)), priorities)


def tenants_text(settings: TenantsSettings) -> str:
    """The inverse of `parse_tenants`: what gateways take up while they run."""
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
    document.mistakes += [document.mistake(*each) for each in unranked(ranks, priorities)]
    if document.mistakes:
        raise SettingsErrors(document.mistakes)
    return tenants


def _joined(parts: list[Document], folder: str) -> Document:
    """One document of several: mappings are joined, what two of them say is a mistake."""
    whole = Document(folder, {})
    for part in parts:
        whole.mistakes += part.mistakes
        for path in _join(whole.data, part.data):
            whole.mistakes.append(part.mistake(path, "stands in another file of the folder too"))
    return whole


def _join(into: dict[str, Any], data: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, value in data.items():
        if name not in into:
            into[name] = value
        elif isinstance(into[name], dict) and isinstance(value, dict):
            yield from ((name, *path) for path in _join(into[name], value))
        else:
            yield (name,)


def parse(data: Mapping[str, Any]) -> Settings:
    """The inverse of `dump`. Raises SettingsErrors."""
    try:
        return Settings.model_validate(data)
    except ValidationError as error:
        raise SettingsErrors(explain(error, Settings, Document("").mistake)) from None


def dump(settings: Settings) -> dict[str, Any]:
    """Plain data that JSON can carry."""
    return settings.model_dump(mode="json")


def with_address(settings: Settings, *, host: str | None, port: int | None) -> Settings:
    """The settings with the command line's address. Raises SettingsErrors, as for a file."""
    data = settings.model_dump(mode="json", exclude_unset=True)
    given = {"host": host, "port": port}
    data["gateway"] = data.get("gateway", {}) | {n: v for n, v in given.items() if v is not None}
    return parse(data)


def settings_digest(written: Mapping[str, Any]) -> str:
    """Of settings as they were written: a model's, by which its replicas are told apart, or
    another application's arguments."""
    return hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()


def digest(model: ModelSettings, artifact_digest: str) -> str:
    """12 hex digits over the artifact and the settings that shape answers."""
    given = {name for name in _SHAPE_SOME if getattr(model, name) != _default_of(name)}
    shaping = model.model_dump(
        mode="json", include=_SHAPE_ANSWERS | given, exclude=_SHAPE_NO_ANSWERS
    )
    text = json.dumps([artifact_digest, shaping], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _default_of(name: str) -> Any:
    return ModelSettings.model_fields[name].get_default(call_default_factory=True)


def _read(path: Path | str) -> Document:
    return _mapping(read_file(path))


def _mapping(document: Document) -> Document:
    """A document whose data is a mapping. Raises SettingsErrors where it holds none."""
    if document.data is None and not document.mistakes:
        raise SettingsErrors([Mistake(document.file, 0, "", "is empty; must have models:")])
    if not isinstance(document.data, dict):
        top = document.mistake((), "must be a mapping that has models:")
        raise SettingsErrors(document.mistakes or [top])
    return document


def make_paths_absolute(models: Any, folder: Path) -> None:
    """Changes plain data of models, by name, in place: relative paths are relative to `folder`."""
    for model in models.values() if isinstance(models, dict) else ():
        for section, name in paths_of(model):
            section[name] = sources.absolute(section[name], folder)


def paths_of(model: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Where a model's plain data names files: the mapping, and the name in it."""
    if not isinstance(model, dict):
        return
    inner = {"accept": PATHS, "record": ("folder",), "options": ("calibration",)}
    places = [(model, ("source",)), *((model.get(at), names) for at, names in inner.items())]
    places += [(group.get("options"), ("calibration",)) for group in _groups_of(model)]
    for section, names in places:
        if isinstance(section, dict):
            given = (name for name in names if isinstance(section.get(name), str) and section[name])
            yield from ((section, name) for name in given)


def _groups_of(model: dict[str, Any]) -> list[dict[str, Any]]:
    replicas = model.get("replicas")
    groups = replicas.get("groups") if isinstance(replicas, dict) else None
    return [group for group in _listed(groups) if isinstance(group, dict)]


def _explained(document: Document, root: Any, data: Any, only: str) -> list[Mistake]:
    try:
        root.model_validate(data)
    except ValidationError as error:
        return [each for each in explain(error, root, document.mistake) if each.path == only]
    return []


def _mistakes_between_sections(document: Document) -> list[Mistake]:
    """What a mistake elsewhere keeps pydantic from looking at."""
    tenants, models = document.data.get("tenants"), document.data.get("models")
    mistakes: list[Mistake] = []
    if isinstance(models, dict):
        mistakes += [
            document.mistake(*each) for each in itertools.chain(astray(models), shared(models))
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
        mistakes += [document.mistake(*each) for each in dangling(wanted, models)]
    if (priorities := _priorities(document.data.get("gateway"))) is not None:
        ranks = {name: tenant.get("priority") for name, tenant in given.items()}
        mistakes += [document.mistake(*each) for each in unranked(ranks, priorities)]
    return mistakes


def _priorities(gateway: Any) -> tuple[str, ...] | None:
    """Those of a gateway that may be wrong elsewhere; None where they are wrong themselves."""
    given = gateway if isinstance(gateway, dict) else {}
    try:
        return GatewaySettings.model_validate(
            {name: given[name] for name in ("priorities",) if name in given}
        ).priorities
    except ValidationError:
        return None


def _listed(names: Any) -> list[Any]:
    return names if isinstance(names, list) else []
