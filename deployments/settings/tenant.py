"""One tenant's settings: its share, its priority, its limits and the hashes of its keys.

A weight is relative to the other tenants' in the same priority. Only hashes stand here, never keys
(`headrace key new` makes both). Who a caller is, is decided in `gateway/tenancy/tenants.py`.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from yaml_document.section import Section, listed, wrong

NAME = r"[A-Za-z0-9]([-A-Za-z0-9._]{0,61}[A-Za-z0-9])?"
DEFAULT_TENANT = "default"


def _key_hash(value: str) -> str:
    digest = value.removeprefix("sha256:")
    if value.startswith("sha256:") and len(digest) == 64 and set(digest) <= set("0123456789abcdef"):
        return value
    if value.startswith("hr_"):
        # The value is not echoed: it may be a live key.
        raise wrong("is a key; write its hash, which `headrace key new` prints beside the key")
    raise wrong("must be sha256: followed by 64 digits of lower-case hex")


KeyHash = Annotated[str, AfterValidator(_key_hash)]


class RateSettings(Section):
    requests_per_s: float | None = Field(
        default=None,
        gt=0,
        le=10_000_000,
        description="Requests a second, over all gateways; unset, no bound.",
    )
    tokens_per_s: float | None = Field(
        default=None,
        gt=0,
        le=10_000_000_000,
        description="Tokens a second (lengths of rows), over all gateways; unset, no bound.",
    )
    burst_s: float = Field(
        default=1,
        gt=0,
        le=3600,
        description="What was left unused for so many seconds may be used at once, at every "
        "gateway.",
    )


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
        default=None, description="Models it may use; unset, all of them."
    )
    record: bool = Field(
        default=True,
        description="Whether models that record (`models.<name>.record`) may keep its requests.",
    )
    keys: Annotated[
        Annotated[tuple[KeyHash, ...], BeforeValidator(listed)] | None, BeforeValidator(_said)
    ] = Field(
        default=None,
        description="Hashes of its keys, `sha256:` and 64 hex digits each. With an empty list "
        "nobody can be this tenant; unset, see `gateway.auth`.",
    )

    @model_serializer(mode="wrap")
    def _unset_keys_are_left_out(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = write(self)
        if self.keys is None:
            written.pop("keys", None)
        return written
