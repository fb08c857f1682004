"""`models.<name>.scaling`: which policy scales a model, and what it does another way.

A policy is a named one that comes with Headrace (`autoscaling/policies/`), or a file of the user's
with the same fields; its content is taken into the settings when they are read, so that nothing
looks for it later. What stands beside `policy` replaces what the policy says. How the fields act is
described where they are acted on: `autoscaling/settings.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from yaml_document.document import Document, read_document, read_file
from yaml_document.mistakes import Mistake, explain
from yaml_document.section import Section, listed, off_is_a_word, wrong

_ENDINGS = (".yaml", ".yml")
_LONGEST_WINDOW_S = 3600.0


def _windows(value: Any) -> Any:
    windows = listed(value)
    if not isinstance(windows, tuple) or not windows:
        raise wrong("must be a list of seconds, the shortest first")
    for position, seconds in enumerate(windows):
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not number or not 1 <= seconds <= _LONGEST_WINDOW_S:
            raise wrong(f"is {seconds!r}; must be 1 to {_LONGEST_WINDOW_S:g}", position)
        if position and seconds <= windows[position - 1]:
            raise wrong(f"is {seconds:g}; must be longer than the one before it", position)
    return tuple(float(seconds) for seconds in windows)


class PolicyTuning(Section):
    """What a policy may say, and what a model may say instead of its policy."""

    mode: Annotated[Literal["off", "observe", "enforce"] | None, BeforeValidator(off_is_a_word)] = (
        Field(
            default=None,
            description="`off`: replicas stay as many as `replicas.min`; `observe`: what would be "
            "done is shown and not done; `enforce`: done.",
        )
    )
    knee: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Busiest share of its time that a replica is planned for.",
    )
    forecast: bool | None = Field(
        default=None, description="Whether demand is forecast; else it is only followed."
    )
    season_s: float | None = Field(
        default=None,
        ge=0,
        le=31_622_400,
        description="Period in which demand is expected to repeat; 0: in none.",
    )
    quantile: float | None = Field(
        default=None,
        ge=0.5,
        lt=1,
        description="Quantile of the forecast's own error that is planned for.",
    )
    instant: bool | None = Field(
        default=None, description="Whether spikes and backlogs are answered at once."
    )
    windows_s: Annotated[tuple[float, ...], BeforeValidator(_windows)] | None = Field(
        default=None,
        examples=["[8, 16, 32, 64]"],
        description="Windows over which a spike is looked for, the shortest first.",
    )
    spike_sigmas: float | None = Field(
        default=None,
        gt=0,
        le=100,
        description="How far above the plan, in standard deviations of it, a window must be to "
        "count as a spike.",
    )
    hold_s: float | None = Field(
        default=None, ge=0, le=86_400, description="After a spike nothing goes down for so long."
    )
    down_window_s: float | None = Field(
        default=None,
        gt=0,
        le=604_800,
        description="Time over which the largest want holds before replicas go; nowhere said, "
        "600 or 4 × the measured time to capacity, whichever is longer.",
    )
    down_step: float | None = Field(
        default=None, gt=0, le=1, description="Largest share of the replicas that goes at once."
    )
    idle_s: float | None = Field(
        default=None,
        ge=1,
        le=31_622_400,
        description="Time without a request before the last replica goes, where `replicas.min` "
        "is 0.",
    )
    pending_limit_s: float | None = Field(
        default=None,
        gt=0,
        le=86_400,
        description="How long a replica may wait for a place before no further one is asked for.",
    )


class PolicyFile(PolicyTuning):
    """A policy by itself: a file with these fields."""

    spare: int | None = Field(
        default=None, ge=0, le=10_000, description="Hot replicas beyond what is wanted."
    )
    survive: int | None = Field(
        default=None,
        ge=0,
        le=1000,
        description="Replicas that may be lost while the others still hold the SLO.",
    )


@cache
def named_policies() -> Mapping[str, Mapping[str, Any]]:
    """Those that come with Headrace: by name, what their files say."""
    folder = files("autoscaling").joinpath("policies")
    found = [each for each in folder.iterdir() if each.name.endswith(_ENDINGS)]
    return {
        Path(each.name).stem: read_document(each.read_text(), each.name).data or {}
        for each in sorted(found, key=lambda each: each.name)
    }


def _policy(value: Any) -> Any:
    """A name, or the content of a file."""
    if isinstance(value, str) and value not in named_policies():
        names = ", ".join(named_policies())
        raise wrong(f"is {value!r}; must be one of {names}, or a file that ends in .yaml")
    if isinstance(value, dict):
        PolicyFile.model_validate(value)
    return value


class ModelScalingSettings(PolicyTuning):
    policy: Annotated[str | dict[str, Any] | None, AfterValidator(_policy)] = Field(
        default=None,
        examples=["latency-first, or policies/mine.yaml"],
        description="A policy that comes with Headrace, or a file of the same form relative to "
        "this file; unset, what `docs/autoscaling.md` names as defaults.",
    )

    @model_validator(mode="before")
    @classmethod
    def _numbers_stand_with_the_replicas(cls, value: Any) -> Any:
        for name in ("spare", "survive"):
            if isinstance(value, dict) and value.get(name) is not None:
                raise wrong(f"stands with the replicas; must be written as replicas.{name}", name)
        return value

    def tuned(self) -> dict[str, Any]:
        """The fields of the policy, those beside it in their place; what nobody says is not in."""
        policy = named_policies()[self.policy] if isinstance(self.policy, str) else self.policy
        whole = PolicyFile.model_validate(dict(policy or {}))
        own = self.model_dump(exclude_none=True, exclude={"policy"})
        return whole.model_dump(exclude_none=True) | own


def take_in_policies(models: Any, document: Document, folder: Path) -> list[Mistake]:
    """Puts the content of policies' files where plain data of models names them; what is wrong with
    those files, or with a name that is no file."""
    mistakes: list[Mistake] = []
    for name, scaling in _sections(models):
        policy = scaling.get("policy")
        if isinstance(policy, str) and policy.endswith(_ENDINGS):
            file = folder / policy
            if not file.is_file():
                at = ("models", name, "scaling", "policy")
                mistakes.append(document.mistake(at, f"no file {str(file)!r}"))
                del scaling["policy"]
                continue
            scaling["policy"], wrongs = _content(file)
            mistakes += wrongs
    return mistakes


def _sections(models: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, model in models.items() if isinstance(models, dict) else ():
        scaling = model.get("scaling") if isinstance(model, dict) else None
        if isinstance(scaling, dict):
            yield name, scaling


def _content(file: Path) -> tuple[dict[str, Any], list[Mistake]]:
    """Empty where something is wrong with it."""
    read = read_file(file)
    if read.mistakes:
        return {}, read.mistakes
    if not isinstance(read.data, dict):
        return {}, [read.mistake((), "must be a mapping, such as knee: 0.8")]
    try:
        PolicyFile.model_validate(read.data)
    except ValidationError as error:
        return {}, explain(error, PolicyFile, read.mistake)
    return read.data, []
