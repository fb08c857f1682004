"""Which places in a model's settings name files?

One rule for all of them: a path is relative to the settings file (on a cluster, to a node's own
$HEADRACE_SOURCES), or it is one of the other sources of `sources.py`. Which of a backend's options
are paths is known here, because files are had before the backend starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from deployments.settings.accept import PATHS

Change = Callable[[str], str]
OPTIONS = ("calibration", "chat_template", "plans")
DRAFT = "speculative"  # a mapping; its `model` is a folder
ADAPTERS = "adapters"  # a mapping of names to sources
_SECTIONS: Mapping[str, tuple[str, ...]] = {"accept": PATHS, "record": ("folder",)}


def change(model: Any, how: Change) -> None:
    """Changes each path in a model's plain data, in place. What is no valid data stays."""
    if not isinstance(model, dict):
        return
    for at, fields in {"": ("source",), **_SECTIONS}.items():
        section = model.get(at) if at else model
        if isinstance(section, dict):
            for name in fields:
                if isinstance(section.get(name), str) and section[name]:
                    section[name] = how(section[name])
    if isinstance(adapters := model.get(ADAPTERS), dict):
        for name, source in adapters.items():
            if isinstance(source, str) and source:
                adapters[name] = how(source)
    for holder in (model, *_groups_of(model)):
        if isinstance(holder.get("options"), dict):
            holder["options"] = changed_options(holder["options"], how)


def changed_options(options: Mapping[str, Any], how: Change) -> dict[str, Any]:
    """The options with each path changed."""
    made = dict(options)
    for name in OPTIONS:
        if isinstance(made.get(name), str) and made[name]:
            made[name] = how(made[name])
    draft = made.get(DRAFT)
    if isinstance(draft, Mapping) and isinstance(draft.get("model"), str) and draft["model"]:
        made[DRAFT] = {**draft, "model": how(draft["model"])}
    return made


def in_options(options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(option, path) of each."""
    found: list[tuple[str, str]] = []
    for name in (*OPTIONS, DRAFT):

        def note(path: str, name: str = name) -> str:
            found.append((name, path))
            return path

        changed_options({name: options.get(name)}, note)
    return found


def _groups_of(model: dict[str, Any]) -> list[dict[str, Any]]:
    replicas = model.get("replicas")
    groups = replicas.get("groups") if isinstance(replicas, dict) else None
    listed = groups if isinstance(groups, list | tuple) else ()
    return [group for group in listed if isinstance(group, dict)]
