"""What does another settings file change about a running server, and what of it is taken back?

A model that cannot start is taken back alone: it goes on as it was, or stays away, and everything
else is as the new file says. Pure; the host acts on the answers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from deployments.settings import Settings


def changes_between(old: Settings, new: Settings) -> dict[str, list[str]]:
    """Names of models by what happens to them, of tenants that differ, and what becomes of the
    controllers where that changes."""
    before, after = dict(old.models), dict(new.models)
    return {
        "added": sorted(after.keys() - before.keys()),
        "removed": sorted(before.keys() - after.keys()),
        "changed": sorted(n for n in before.keys() & after.keys() if before[n] != after[n]),
        "tenants": sorted(_different(old.tenants, new.tenants)),
        "controllers": _switched(old.controllers.frozen, new.controllers.frozen),
    }


def _switched(was: bool, frozen: bool) -> list[str]:
    if was == frozen:
        return []
    return ["frozen" if frozen else "no longer frozen"]


def _different(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Names of what was added, removed or changed."""
    return (n for n in old.keys() | new.keys() if old.get(n) != new.get(n))


def without(old: Settings, new: Settings, failed: Collection[str]) -> Settings:
    """`new`, but a failed model is what it was before, or not there."""
    was = {name: old.models[name] for name in failed if name in old.models}
    models = {n: m for n, m in new.models.items() if n not in failed}
    return new.model_copy(update={"models": models | was})


def taken_back(kept: Settings, failed: Mapping[str, str]) -> Iterator[str]:
    """What to say of models that failed, by name and reason; `kept` is what runs now."""
    for name, reason in failed.items():
        left = "goes on as it was" if name in kept.models else "was left out"
        yield f"model {name} cannot start and {left}: {reason}"
    yield "everything else is as the file says"
