"""What may be shown of keys: ids, owners, validity and states; never a key.

Of hashes only that of a key that was revoked."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal, NotRequired, TypedDict

from deployments.settings.key import KeySettings, OperatorKeySettings

KeyState = Literal["good", "early", "expired", "revoked"]


class KeyRow(TypedDict):
    """One key, as it is listed."""

    id: str
    owner: str  # "tenant NAME" or "operators"
    state: KeyState  # early: not valid yet
    expires: str | None  # as the tenants file has it
    not_before: str | None  # as the tenants file has it
    models: list[str] | None  # None: all that its owner may use
    hash: NotRequired[str]  # of a revoked key


class RevokedKey(TypedDict):
    """The answer to who has revoked a key. Its hash opens nothing any more, and is what other
    clusters must know."""

    revoked: str  # its id
    owner: str  # as in `KeyRow`
    hash: str
    folder: NotRequired[bool]  # whether gateways read a folder of revoked keys, too; they answer


def revoked_key(owner: str, key: OperatorKeySettings) -> RevokedKey:
    return {"revoked": key.kid, "owner": owner, "hash": key.hash}


def key_rows(
    keys: Iterable[tuple[object, str, OperatorKeySettings]],
    revoked: Collection[str],
    wall_s: float,
) -> list[KeyRow]:
    """A row for each of `TenantsSettings.all_keys`. `revoked`: hashes of revoked keys; `wall_s`:
    seconds since the epoch."""
    return [_row(owner, key, _state(key, revoked, wall_s)) for _, owner, key in keys]


def _row(owner: str, key: OperatorKeySettings, state: KeyState) -> KeyRow:
    row: KeyRow = {
        "id": key.kid,
        "owner": owner,
        "state": state,
        "expires": key.expires,
        "not_before": key.not_before,
        "models": list(key.models)
        if isinstance(key, KeySettings) and key.models is not None
        else None,
    }
    return {**row, "hash": key.hash} if state == "revoked" else row


def _state(key: OperatorKeySettings, revoked: Collection[str], wall_s: float) -> KeyState:
    if key.hash in revoked:
        return "revoked"
    if wall_s >= key.ends_s:
        return "expired"
    return "early" if wall_s < key.begins_s else "good"
