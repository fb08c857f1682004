"""Settings from a file or from plain data, and back.

`load` reads, validates and looks for the models' files, and reports every mistake at once. `dump`
and `parse` carry settings between processes as plain data. `digest` is a model's default version:
it changes when answers may change, not when batches or replicas do.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from deployments.settings import sources
from deployments.settings.accept import PATHS
from deployments.settings.gateway import PRIORITIES, GatewaySettings
from deployments.settings.model import ModelSettings
from deployments.settings.model_checks import model_mistakes
from deployments.settings.record import shared
from deployments.settings.reuse import astray
from deployments.settings.tree import Settings, TenantsSettings, dangling, unranked
from yaml_document.document import Document, read_file
from yaml_document.mistakes import DocumentErrors, Mistake, explain

_SHAPE_ANSWERS = {"runtime", "task", "precision", "lengths", "options"}
_SHAPE_NO_ANSWERS = {"lengths": {"buckets", "adapt", "switch_ms"}, "image": {"max_pixels"}}
# Sections that few models have: the others' versions do not depend on there being such a section.
_SHAPE_SOME = ("image", "classify")


class SettingsErrors(DocumentErrors):
    """What is wrong with the settings."""


def load(path: Path | str, *, here: bool = True) -> Settings:
    """Raises SettingsErrors. `here`: the models' files and packages must be on this machine."""
    document = _read(path)
    _make_sources_absolute(document.data, Path(path).absolute().parent)
    mistakes = list(document.mistakes)
    settings: Settings | None = None
    try:
        settings = Settings.model_validate(document.data)
    except ValidationError as error:
        mistakes += explain(error, Settings, document.mistake)
        mistakes += _mistakes_between_sections(document)
    mistakes += model_mistakes(document, here=here)
    if mistakes or settings is None:
        raise SettingsErrors(mistakes)
    return settings


def load_tenants(path: Path | str, priorities: Collection[str] = PRIORITIES) -> TenantsSettings:
    """What gateways take up while they run: of a whole settings file, or of one that has only
    `tenants:` and perhaps `controllers:`.

    Models are not looked at; `priorities` are those of the gateway that runs. A file that mentions
    neither tenants nor models is refused: a truncated file must not open the door. Raises
    SettingsErrors.
    """
    document = _read(path)
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
    data = dump(settings)
    given = {"host": host, "port": port}
    data["gateway"] |= {name: value for name, value in given.items() if value is not None}
    return parse(data)


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
    """A document whose data is a mapping. Raises SettingsErrors where the file holds none."""
    document = read_file(path)
    if document.data is None and not document.mistakes:
        raise SettingsErrors([Mistake(str(path), 0, "", "is empty; must have models:")])
    if not isinstance(document.data, dict):
        top = document.mistake((), "must be a mapping that has models:")
        raise SettingsErrors(document.mistakes or [top])
    return document


def _make_sources_absolute(data: Any, folder: Path) -> None:
    models = data.get("models")
    for model in models.values() if isinstance(models, dict) else ():
        if isinstance(model, dict):
            accept = model.get("accept")
            _make_absolute(model, ("source",), folder)
            _make_absolute(accept if isinstance(accept, dict) else {}, PATHS, folder)
            record, options = model.get("record"), model.get("options")
            _make_absolute(record if isinstance(record, dict) else {}, ("folder",), folder)
            _make_absolute(options if isinstance(options, dict) else {}, ("calibration",), folder)


def _make_absolute(section: dict[str, Any], names: Collection[str], folder: Path) -> None:
    for name in names:
        if isinstance(section.get(name), str) and section[name]:
            section[name] = sources.absolute(section[name], folder)


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
        wanted = {name: _listed(tenant.get("models")) for name, tenant in given.items()}
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
