"""The versions of each model that ran before the present one, for `headrace rollback`.

Kept in the host's memory: a server that starts begins with its file, and nothing ran before it.
How many replicas there are, and how they are scaled, is no version's: that stays as it is.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from deployments.cluster.settings_changes import changes_between
from deployments.settings.model import ModelSettings
from deployments.settings.tree import Settings

MOST = 5
_NUMBERS = ("count", "min", "max", "spare", "survive", "priority")
_SECTIONS = ("scaling", "rollout")


class VersionHistory:
    """By model, at most `MOST` versions each, the last one last."""

    def __init__(self) -> None:
        self._past: dict[str, deque[ModelSettings]] = {}

    def changed(self, before: Settings, after: Settings, back: str = "") -> None:
        """Notes each version that gave way to another one that runs, and forgets models that went.
        `back`: the model that has its last version again."""
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
    """`old`, with as many replicas as there are now; of a model that has groups, wholly as it was:
    a group's number belongs to what it runs on."""
    if old.replicas.groups or present.replicas.groups:
        return old
    was, now = _written(old), _written(present)
    for section in _SECTIONS:
        was.pop(section, None)
    was |= {section: now[section] for section in _SECTIONS if section in now}
    kept = {n: v for n, v in was.get("replicas", {}).items() if n not in _NUMBERS}
    was["replicas"] = kept | {n: v for n, v in now.get("replicas", {}).items() if n in _NUMBERS}
    return ModelSettings.model_validate(was)


def _written(model: ModelSettings) -> dict[str, Any]:
    return model.model_dump(mode="json", exclude_unset=True)
