"""What Serve's list of applications holds besides the applications: the control plane's state.

It is the `user_config` of the application `headrace-control`. Deployers, the Helm chart and the
process that drives rollouts write it; whoever reads the list can go on from there. It is the only
store of what runs and of rollouts. A writer of version N reads N and N-1, and changes nothing in a
list whose format is newer. Plain data, JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from deployments.contract.rollout.account import RolloutRecord

FORMAT = 1
MAX_HISTORY = 5  # versions of a model
MAX_CHANGES = 16
Stage = Literal["replacing", "starting", "judged", "promoting", "leaving", "over"]
Section = Mapping[str, Any]


class NewerFormat(ValueError):
    """The list was written by a newer version of Headrace."""


class ListLease(msgspec.Struct, frozen=True):
    """Who alone may change the list now."""

    holder: str  # id of the change that it is for
    who: str
    verb: str


class ListChange(msgspec.Struct, frozen=True):
    """One change of the list that was put."""

    id: str
    who: str
    verb: str
    revision: int


class Version(msgspec.Struct, frozen=True):
    """One version of a model, as the list has it."""

    application: Section  # the model's application
    scaling: Section  # the model's settings among those that the autoscaler is told


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last change of one model's version.

    Stages: `replacing`, a version without a rollout starts in the live one's place; `starting`, a
    canary starts beside it; `judged` by the registry; `promoting`, the canary's version starts in
    the live one's place; `leaving`, the canary gets no more requests and ends; `over`, of which
    only `id`, `record` and `why` count.
    """

    id: int  # grows with every change of the model's version
    stage: Stage
    record: RolloutRecord | None = None  # of the model's last rollout, for people
    why: str = ""  # the last version that started in place was taken back
    settings: Section = {}  # the new version's, as the file has them
    new: Version | None = None
    old: Version | None = None  # None: no version served before
    rollout: int | None = None  # the registry's number; None until it has given one
    asked: str | None = None  # by hand: "" the promotion, else an abort and why; None: nothing
    back: bool = False  # the new version is the last one of the model's history


class Control(msgspec.Struct, frozen=True, omit_defaults=True):
    """The block. Maps are by model unless they say otherwise."""

    format: int = FORMAT
    revision: int | None = None  # grows with every change; None: an operator's own list
    lease: ListLease | None = None
    changes: tuple[ListChange, ...] = ()  # the last ones, newest last
    entries: Mapping[str, Entry] = {}
    history: Mapping[str, tuple[Version, ...]] = {}  # that ran before, oldest first
    pins: Mapping[str, int] = {}  # numbers of replicas by hand, by "model/group"
    # Sources by name of adapters that were added by hand; None: of the settings, and taken out.
    adapters: Mapping[str, Mapping[str, str | None]] = {}
    revoked: tuple[str, ...] = ()  # hashes of keys
    tenants: Section | None = None  # a tenants file's content; None: a path names it
    turn: int = 0  # how often `freeze` has set the controllers' switch in `tenants`
    priorities: tuple[str, ...] = ()
    auth: str | None = None
    scaling: Section = {}  # the last file's models, pool and budget, as the autoscaler is told
    versions: Mapping[str, Section] = {}  # models of `scaling` that hold instead, or besides


def parse(config: Mapping[str, Any]) -> Control:
    """The block from JSON values. Raises NewerFormat; msgspec.ValidationError for what is none."""
    if int(config.get("format", 1)) > FORMAT:
        raise NewerFormat(
            "the list of applications there was written by a newer version of Headrace "
            f"(format {config['format']}, this one knows {FORMAT}): use that version"
        )
    return msgspec.convert(config, Control)


def plain(control: Control) -> dict[str, Any]:
    """The block as JSON values: the inverse of `parse`."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(control))
    return {"format": control.format, **found}
