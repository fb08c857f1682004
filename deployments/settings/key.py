"""One key: its hash, and what of a life it has.

A key is written as its bare hash, or as a mapping that also says how it is called, from when until
when it is good, and what it may be used for: always within what its tenant may, never beyond. Only
hashes stand here, never keys (`headrace key new` makes both). Moments are of the wall clock; no
other rule of Headrace goes by it, so a step of the clock moves keys' ends and no more.
"""

from __future__ import annotations

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
_HEX_OF_ID = 12
_EXAMPLE = "2027-01-31T00:00:00Z"


def _key_hash(value: str) -> str:
    digest = value.removeprefix("sha256:")
    if value.startswith("sha256:") and len(digest) == 64 and set(digest) <= set("0123456789abcdef"):
        return value
    if value.startswith("hr_"):
        # The value is not echoed: it may be a live key.
        raise wrong("is a key; write its hash, which `headrace key new` prints beside the key")
    raise wrong("must be sha256: followed by 64 digits of lower-case hex")


def moment_s(text: str) -> float:
    """Seconds since the epoch. Raises ValueError for what is no date and time, or has no zone."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("has no zone")
    return moment.timestamp()


def _moment(text: str) -> str:
    try:
        moment_s(text)
    except (ValueError, OverflowError):
        raise wrong(
            f"is no moment; must be a date and time with its zone (ISO 8601), such as {_EXAMPLE}"
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


def _or_its_hash(schema: dict[str, Any]) -> None:
    whole = dict(schema)
    schema.clear()
    schema["anyOf"] = [{"type": "string"}, whole]


class OperatorKeySettings(Section):
    """An operator's key. `kid`: its id, made of the hash where none is given."""

    model_config = ConfigDict(json_schema_extra=_or_its_hash)

    hash: KeyHash = Field(
        description="`sha256:` and 64 hex digits; a key of which there is nothing else to say may "
        "be written as this alone."
    )
    id: KeyId | None = Field(
        default=None,
        examples=["laptop"],
        description="How the key is called in metrics, logs and `headrace key`; unset, the first "
        "12 digits of its hash.",
    )
    expires: Moment | None = Field(
        default=None,
        examples=[_EXAMPLE],
        description="From then on it is refused; a date and time with its zone. Unset, never.",
    )
    not_before: Moment | None = Field(
        default=None,
        examples=[_EXAMPLE],
        description="Until then it is refused; unset, it is good at once.",
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
        description="Models it may use, of those that its tenant may, adapters as there; unset, "
        "all of these.",
    )
    rate: RateSettings | None = Field(
        default=None, description="What may be asked for with it in a second, within its tenant's."
    )
    max_length: int | None = Field(
        default=None,
        ge=1,
        le=1_048_576,
        description="Longest row that may be sent with it, in tokens; unset, its tenant's.",
    )
