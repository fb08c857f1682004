"""One key: its hash, its id, when it is valid, and what it may be used for.

A key is written as its hash alone, or as a mapping with more fields. A key's limits can only narrow
those of its tenant. Settings contain hashes, never keys (`headrace key new` prints both). `expires`
and `not_before` use the wall clock. Nothing else in Headrace does, so a step of the clock changes
only when keys begin and end.
"""

from __future__ import annotations

import re
from datetime import datetime
from math import inf
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from yaml_document.section import Section, listed, name_check, wrong

ID = r"[A-Za-z0-9]([-A-Za-z0-9._]{0,61}[A-Za-z0-9])?"
HASH = re.compile(r"sha256:[0-9a-f]{64}")
_HEX_OF_ID = 12
_EXAMPLE = "2027-01-31T00:00:00Z"


def _key_hash(value: str) -> str:
    if HASH.fullmatch(value):
        return value
    if value.startswith("hr_"):
        # The value is not echoed: it may be a live key.
        raise wrong("is a key; write its hash, which `headrace key new` prints beside the key")
    raise wrong("must be sha256: followed by 64 digits of lower-case hex")


def moment_s(text: str) -> float:
    """Seconds since the epoch of an ISO 8601 date and time. Raises ValueError if it is none, or
    has no zone."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("has no zone")
    return moment.timestamp()


def _moment(text: str) -> str:
    try:
        moment_s(text)
    except (ValueError, OverflowError):
        raise wrong(
            f"is not valid; must be a date and time with its zone (ISO 8601), such as {_EXAMPLE}"
        ) from None
    return text


KeyHash = Annotated[str, AfterValidator(_key_hash)]
KeyId = Annotated[
    str,
    AfterValidator(
        name_check(
            ID,
            "is no key's id; must be 1 to 63 letters, digits, - . _, the first and last a letter "
            "or digit",
        )
    ),
]
Moment = Annotated[str, AfterValidator(_moment)]


class RateSettings(Section):
    requests_per_s: float | None = Field(
        default=None,
        gt=0,
        le=10_000_000,
        description="Requests a second, over all gateways. Unset: no bound.",
    )
    tokens_per_s: float | None = Field(
        default=None,
        gt=0,
        le=10_000_000_000,
        description="Tokens a second (lengths of rows), over all gateways. Unset: no bound.",
    )
    burst_s: float = Field(
        default=1,
        gt=0,
        le=3600,
        description="Size of the token bucket, in seconds at the full rate: what was unused for so "
        "long may be used at once, at every gateway.",
    )


def _or_its_hash(schema: dict[str, Any]) -> None:
    whole = dict(schema)
    schema.clear()
    schema["anyOf"] = [{"type": "string"}, whole]


class OperatorKeySettings(Section):
    """An operator's key. `kid`: its id; if none is given, the beginning of its hash."""

    model_config = ConfigDict(json_schema_extra=_or_its_hash)

    hash: KeyHash = Field(
        description="Hash of the key: `sha256:` and 64 hex digits. A key without other fields may "
        "be written as its hash alone."
    )
    id: KeyId | None = Field(
        default=None,
        examples=["laptop"],
        description="Name of the key in metrics, logs and `headrace key`. Unset: the first 12 "
        "digits of its hash.",
    )
    expires: Moment | None = Field(
        default=None,
        examples=[_EXAMPLE],
        description="The key is refused from this time on; a date and time with its zone. Unset: "
        "it never expires.",
    )
    not_before: Moment | None = Field(
        default=None,
        examples=[_EXAMPLE],
        description="The key is refused before this time. Unset: it is valid at once.",
    )

    @model_validator(mode="before")
    @classmethod
    def _a_hash_alone(cls, value: Any) -> Any:
        return {"hash": _key_hash(value)} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _lives(self) -> OperatorKeySettings:
        if self.begins_s >= self.ends_s:
            raise wrong(f"is {self.expires}; must be later than not_before", "expires")
        return self

    @model_serializer(mode="wrap")
    def _as_short_as_it_was(self, write: SerializerFunctionWrapHandler) -> Any:
        if self.model_fields_set <= {"hash"}:
            return self.hash
        return {name: v for name, v in write(self).items() if name in self.model_fields_set}

    @property
    def kid(self) -> str:
        return self.id or self.hash.removeprefix("sha256:")[:_HEX_OF_ID]

    @property
    def begins_s(self) -> float:
        """Seconds since the epoch."""
        return -inf if self.not_before is None else moment_s(self.not_before)

    @property
    def ends_s(self) -> float:
        return inf if self.expires is None else moment_s(self.expires)


class KeySettings(OperatorKeySettings):
    """A tenant's key."""

    models: Annotated[tuple[str, ...], BeforeValidator(listed)] | None = Field(
        default=None,
        description="Models that the key may use, among those of its tenant; adapters are named as "
        "in the tenant's list. Unset: all models of its tenant.",
    )
    rate: RateSettings | None = Field(
        default=None,
        description="Rate limit of requests with this key, within the limit of its tenant.",
    )
    max_length: int | None = Field(
        default=None,
        ge=1,
        le=1_048_576,
        description="Longest row that may be sent with the key, in tokens. Unset: as its tenant's.",
    )
