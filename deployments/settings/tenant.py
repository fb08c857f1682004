"""One tenant's settings: its share, its priority, its limits and its keys.

A weight is relative to the other tenants' in the same priority. What a key
is, `key` says. Who a caller is, is decided in `gateway/tenancy/tenants.py`.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from deployments.settings.key import KeySettings, RateSettings
from yaml_document.section import Section, listed, wrong

NAME = r"[A-Za-z0-9]([-A-Za-z0-9._]{0,61}[A-Za-z0-9])?"
DEFAULT_TENANT = "default"


def _said(keys: object) -> object:
    """A list whose lines were taken away lets nobody in; whoever means no list writes no `keys`."""
    if keys is None:
        raise wrong("is empty; must be a list of hashes, [] if nobody may be this tenant")
    return keys


class TenantSettings(Section):
    weight: float = Field(
        default=1,
        ge=0.01,
        le=10_000,
        description="Share of a model's device time relative to other tenants of the same "
        "priority that have work waiting.",
    )
    priority: str | None = Field(
        default=None,
        examples=["interactive"],
        description="Highest priority its requests may have, one of `gateway.priorities`; "
        "`x-priority` may lower one's own; unset, the middle one of them (`standard`).",
    )
    rate: RateSettings = Field(
        default_factory=RateSettings, description="What it may ask for in a second; more is 429."
    )
    max_queue_rows: int | None = Field(
        default=None,
        ge=1,
        le=10_000_000,
        description="Rows it may have waiting for one model at one gateway, more is 429; unset, "
        "`queue.max_rows` of the model.",
    )
    max_length: int | None = Field(
        default=None,
        ge=1,
        le=1_048_576,
        description="Longest row it may send, in tokens; unset, what the model accepts.",
    )
    models: Annotated[tuple[str, ...], BeforeValidator(listed)] | None = Field(
        default=None,
        description="Models it may use; unset, all of them. An adapter is named by itself, "
        "`model:adapter`, or `model:*` for all that a model has.",
    )
    record: bool = Field(
        default=True,
        description="Whether models that record (`models.<name>.record`) may keep its requests.",
    )
    keys: Annotated[
        Annotated[tuple[KeySettings, ...], BeforeValidator(listed)] | None, BeforeValidator(_said)
    ] = Field(
        default=None,
        description="Its keys, several of which are good at once: hashes (`sha256:` and 64 hex "
        "digits), or mappings that say more of a key. With an empty list nobody can be this "
        "tenant; unset, see `gateway.auth`.",
    )

    @model_serializer(mode="wrap")
    def _unset_keys_are_left_out(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = write(self)
        if self.keys is None:
            written.pop("keys", None)
        return written
