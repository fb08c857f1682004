"""One tenant's settings: its weight, its priority, its limits and its keys.

A weight is relative to the weights of other tenants at the same priority. The fields of a key are
in `key.py`. `gateway/tenancy/tenants.py` decides which tenant a caller is.
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
    """The list as it is. Raises an error for `keys:` with nothing below it: it could mean no list,
    which lets callers in without a key, or an empty list, which lets nobody in."""
    if keys is None:
        raise wrong("is empty; must be a list of hashes, or [] if nobody may be this tenant")
    return keys


class TenantSettings(Section):
    weight: float = Field(
        default=1,
        ge=0.01,
        le=10_000,
        description="Share of a model's device time, relative to the other tenants of the same "
        "priority that have requests waiting.",
    )
    priority: str | None = Field(
        default=None,
        examples=["interactive"],
        description="Highest priority of the tenant's requests, one of `gateway.priorities`; a "
        "request may lower its own with `x-priority`. Unset: the middle one of the list "
        "(`standard`).",
    )
    rate: RateSettings = Field(
        default_factory=RateSettings,
        description="Rate limit; a request above it gets 429.",
    )
    max_queue_rows: int | None = Field(
        default=None,
        ge=1,
        le=10_000_000,
        description="Most rows of the tenant that may wait for one model at one gateway; a request "
        "above it gets 429. Unset: `queue.max_rows` of the model.",
    )
    max_length: int | None = Field(
        default=None,
        ge=1,
        le=1_048_576,
        description="Longest row that the tenant may send, in tokens. Unset: as the model accepts.",
    )
    models: Annotated[tuple[str, ...], BeforeValidator(listed)] | None = Field(
        default=None,
        description="Models that the tenant may use. Unset: all. Adapters are listed besides their "
        "model: `model:adapter` is one, `model:*` all adapters of a model.",
    )
    record: bool = Field(
        default=True,
        description="Whether the tenant's requests may be recorded (`models.<name>.record`).",
    )
    keys: Annotated[
        Annotated[tuple[KeySettings, ...], BeforeValidator(listed)] | None, BeforeValidator(_said)
    ] = Field(
        default=None,
        description="The tenant's keys, all valid at the same time. Each is a hash (`sha256:` and "
        "64 hex digits), or a mapping with more fields. With an empty list nobody can be this "
        "tenant. Unset: see `gateway.auth`.",
    )

    @model_serializer(mode="wrap")
    def _unset_keys_are_left_out(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = write(self)
        if self.keys is None:
            written.pop("keys", None)
        return written
