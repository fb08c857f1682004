"""The versions of each model that ran before the present one, for `headrace rollout back`.

The host keeps them in memory: a server that starts begins with its file, and nothing ran before.
The number of replicas and their scaling belong to no version: a rollback leaves them as they are.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from deployments.control.settings_changes import changes_between
from deployments.settings.model import ModelSettings
from deployments.settings.tree import Settings

MOST = 5
NUMBERS = ("count", "min", "max", "spare", "survive", "priority")
_SECTIONS = ("scaling", "rollout")


class VersionHistory:
    """At most `MOST` versions a model, oldest first."""

    def __init__(self) -> None:
        self._past: dict[str, deque[ModelSettings]] = {}

    def changed(self, before: Settings, after: Settings, back: str = "") -> None:
        """Note each version that another one replaced, and forget models that are gone. `back`: the
        model that was rolled back to its last version."""
        changes = changes_between(before, after)
        for name in changes["restarted"]:
            past = self._past.setdefault(name, deque(maxlen=MOST))
            if name == back:
                past.pop()
            else:
                past.append(before.models[name])
        for name in changes["removed"]:
            self._past.pop(name, None)

    def last(self, model: str) -> ModelSettings | None:
        past = self._past.get(model)
        return past[-1] if past else None

    def left(self, model: str) -> int:
        return len(self._past.get(model, ()))


def with_numbers_of(old: ModelSettings, present: ModelSettings) -> ModelSettings:
    """`old` with the present numbers of replicas. A model with groups is returned wholly as it was,
    because a group's number belongs to what the group runs on."""
    if old.replicas.groups or present.replicas.groups:
        return old
    was, now = _written(old), _written(present)
    for section in _SECTIONS:
        was.pop(section, None)
    was |= {section: now[section] for section in _SECTIONS if section in now}
    kept = {n: v for n, v in was.get("replicas", {}).items() if n not in NUMBERS}
    was["replicas"] = kept | {n: v for n, v in now.get("replicas", {}).items() if n in NUMBERS}
    return ModelSettings.model_validate(was)


def _written(model: ModelSettings) -> dict[str, Any]:
    return model.model_dump(mode="json", exclude_unset=True)
