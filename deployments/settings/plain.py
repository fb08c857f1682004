"""Settings as plain data, which JSON can carry between processes, and digests of them.

`digest` is a model's default version: it changes when the model's answers may change, and not when
only batching or replicas change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from deployments.settings.model import ModelSettings
from deployments.settings.tree import Settings
from yaml_document.document import Document
from yaml_document.mistakes import DocumentErrors, explain

_SHAPE_ANSWERS = {"runtime", "task", "precision", "lengths", "options"}
_SHAPE_NO_ANSWERS = {"lengths": {"buckets"}, "image": {"max_pixels"}}
# Optional sections that shape answers. They enter the digest only where they differ from their
# defaults, so that the version of a model without them does not depend on them.
_SHAPE_SOME = ("image", "classify", "dependencies", "adapters")


class SettingsErrors(DocumentErrors):
    """Every mistake in the settings, each with file, line and path."""


def parse(data: Mapping[str, Any]) -> Settings:
    """The inverse of `dump`. Raises SettingsErrors."""
    try:
        return Settings.model_validate(data)
    except ValidationError as error:
        raise SettingsErrors(explain(error, Settings, Document("").mistake)) from None


def dump(settings: Settings) -> dict[str, Any]:
    """Plain data that JSON can carry."""
    return settings.model_dump(mode="json")


def with_address(settings: Settings, address: Mapping[str, Any]) -> Settings:
    """The settings with the command line's `host` and `port`, as far as it gave them. Raises
    SettingsErrors, as for a file."""
    data = settings.model_dump(mode="json", exclude_unset=True)
    data["gateway"] = data.get("gateway", {}) | address
    return parse(data)


def settings_digest(written: Mapping[str, Any]) -> str:
    """SHA-256 of settings as they were written: of a model, to tell its replicas' settings apart,
    or of another application's arguments. 64 hex digits."""
    return hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()


def digest(model: ModelSettings, artifact_digest: str) -> str:
    """A model's default version: 12 hex digits of a hash of the artifact's digest and of the
    settings that shape answers."""
    given = {name for name in _SHAPE_SOME if getattr(model, name) != _default_of(name)}
    shaping = model.model_dump(
        mode="json", include=_SHAPE_ANSWERS | given, exclude=_SHAPE_NO_ANSWERS
    )
    text = json.dumps([artifact_digest, shaping], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _default_of(name: str) -> Any:
    return ModelSettings.model_fields[name].get_default(call_default_factory=True)
