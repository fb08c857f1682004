"""What may be told of keys: ids, owners, ends and states; no hash, and never a key."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, TypedDict

from deployments.settings.key import KeySettings, OperatorKeySettings
from deployments.settings.tree import TenantsSettings

State = Literal["good", "early", "expired", "revoked"]


class KeyRow(TypedDict):
    """`owner`: "tenant NAME" or "operators"; `expires`, `not_before`: as they were written;
    `models`: None: all that its owner may use."""

    id: str
    owner: str
    state: State
    expires: str | None
    not_before: str | None
    models: list[str] | None


def key_rows(tenants: TenantsSettings, revoked: Collection[str], wall_s: float) -> list[KeyRow]:
    """Of all keys, tenants' first. `revoked`: hashes; `wall_s`: seconds since the epoch."""
    return [
        {
            "id": key.kid,
            "owner": owner,
            "state": _state(key, revoked, wall_s),
            "expires": key.expires,
            "not_before": key.not_before,
            "models": _models(key),
        }
        for _, owner, key in tenants.all_keys()
    ]


def _models(key: OperatorKeySettings) -> list[str] | None:
    if not isinstance(key, KeySettings) or key.models is None:
        return None
    return list(key.models)


def _state(key: OperatorKeySettings, revoked: Collection[str], wall_s: float) -> State:
    if key.hash in revoked:
        return "revoked"
    if wall_s >= key.ends_s:
        return "expired"
    return "early" if wall_s < key.begins_s else "good"
