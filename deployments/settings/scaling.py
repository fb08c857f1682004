"""`models.<name>.scaling`: which policy scales a model, with which fields changed.

A policy is one of those that come with Headrace (`autoscaling/policies/`), or a user's file with
the same fields. The content of a user's file is copied into the settings when they are read, so
nothing opens the file later. Three fields may stand beside `policy` and replace the policy's
values; a policy's file alone sets the others. What the fields do is described in
`autoscaling/settings.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from deployments.settings.gone import GONE
from yaml_document.document import read_document
from yaml_document.section import Section, off_is_a_word, wrong

POLICY_ENDINGS = (".yaml", ".yml")


class PolicyTuning(Section):
    """The fields that a policy may set, and a model may set beside its policy. None: not set."""

    mode: Annotated[Literal["off", "observe", "enforce"] | None, BeforeValidator(off_is_a_word)] = (
        Field(
            default=None,
            description="`off`: the model has `replicas.min` replicas and nothing is decided; "
            "`observe`: decisions are shown, not carried out; `enforce`: they are carried out.",
        )
    )
    knee: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Largest share of its time that a replica is planned to be busy.",
    )
    idle_s: float | None = Field(
        default=None,
        ge=1,
        le=31_622_400,
        description="With `replicas.min` 0: time in which no request comes or runs, after which "
        "the last replica is removed.",
    )


class PolicyFile(PolicyTuning):
    """The fields of a policy's file."""

    gone = GONE["policy"]

    spare: int | None = Field(
        default=None, ge=0, le=10_000, description="Hot replicas beyond the wanted number."
    )
    survive: int | None = Field(
        default=None,
        ge=0,
        le=1000,
        description="Number of replicas that may be lost while the rest still keeps the SLO.",
    )
    forecast: bool | None = Field(
        default=None,
        description="Whether demand is forecast; if not, the plan follows current demand.",
    )
    season_s: float | None = Field(
        default=None,
        ge=0,
        le=31_622_400,
        description="Period in which demand is expected to repeat. 0: it is not.",
    )
    quantile: float | None = Field(
        default=None,
        ge=0.5,
        lt=1,
        description="Quantile of the forecast's measured error that the plan covers.",
    )
    spike_sigmas: float | None = Field(
        default=None,
        gt=0,
        le=100,
        description="Demand in a window is a spike if it is above the plan by this many standard "
        "deviations.",
    )
    hold_s: float | None = Field(
        default=None,
        ge=0,
        le=86_400,
        description="Time after a spike in which no replica is removed.",
    )
    down_window_s: float | None = Field(
        default=None,
        gt=0,
        le=604_800,
        description="Replicas are removed down to the largest number that was wanted within this "
        "time. Set nowhere: 600, or 4 × the measured time to capacity if that is longer.",
    )
    down_step: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Largest share of the replicas that is removed at once.",
    )


@cache
def named_policies() -> Mapping[str, Mapping[str, Any]]:
    """The policies that come with Headrace: name to the fields that its file sets."""
    folder = files("autoscaling").joinpath("policies")
    found = [each for each in folder.iterdir() if each.name.endswith(POLICY_ENDINGS)]
    return {
        Path(each.name).stem: read_document(each.read_text(), each.name).data or {}
        for each in sorted(found, key=lambda each: each.name)
    }


def _policy(value: Any) -> Any:
    """A name, or the content of a file."""
    if isinstance(value, str) and value not in named_policies():
        names = ", ".join(named_policies())
        raise wrong(
            f"is {value!r}, which is no policy; must be one of {names}, or a file that ends in "
            ".yaml"
        )
    if isinstance(value, dict):
        PolicyFile.model_validate(value)
    return value


def _name_or_fields(value: Any) -> Any:
    if value is None or isinstance(value, str | dict):
        return value
    raise wrong("must be a policy's name, a file that ends in .yaml, or a policy's fields")


class ModelScalingSettings(PolicyTuning):
    gone = GONE["scaling"]
    policy: Annotated[
        str | dict[str, Any] | None, BeforeValidator(_name_or_fields), AfterValidator(_policy)
    ] = Field(
        default=None,
        examples=["latency-first, or policies/mine.yaml"],
        description="Name of a policy that comes with Headrace, or a file of the same form, "
        "relative to this file. Unset: the defaults in docs/autoscaling.md.",
    )

    @model_validator(mode="before")
    @classmethod
    def _numbers_stand_with_the_replicas(cls, value: Any) -> Any:
        for name in ("spare", "survive"):
            if isinstance(value, dict) and value.get(name) is not None:
                raise wrong(f"is not a field of scaling; must be given as replicas.{name}", name)
        return value

    def resolved_policy(self) -> dict[str, Any]:
        """The policy's fields, replaced by those beside `policy`. Fields that neither sets are
        absent."""
        policy = named_policies()[self.policy] if isinstance(self.policy, str) else self.policy
        whole = PolicyFile.model_validate(dict(policy or {}))
        own = self.model_dump(exclude_none=True, exclude={"policy"})
        return whole.model_dump(exclude_none=True) | own
