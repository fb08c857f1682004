"""A shedding policy has said no: does that hold, and how often has it?

One a policy. `OFF` never gets as far as asking, `OBSERVE` counts and lets pass, `ENFORCE` counts
and acts. What is only observed changes nothing, so a count of `would_shed` is of a system that
goes on filling its queue: under lasting overload it is larger than what `ENFORCE` would shed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from routers.api.settings import Mode


@dataclass(slots=True)
class Verdicts:
    """`off`: nobody is to ask; it follows the mode, which is set by `tune`."""

    mode: Mode
    shed: int = 0
    would_shed: int = 0
    off: bool = field(init=False)

    def __post_init__(self) -> None:
        self.tune(self.mode)

    def tune(self, mode: Mode) -> None:
        """Another mode; counts stay."""
        self.mode, self.off = mode, mode is Mode.OFF

    @property
    def acts(self) -> bool:
        """Whether a no holds."""
        return self.mode is Mode.ENFORCE

    def no(self) -> bool:
        """Count a no; whether it holds."""
        if self.mode is Mode.ENFORCE:
            self.shed += 1
            return True
        self.would_shed += 1
        return False
