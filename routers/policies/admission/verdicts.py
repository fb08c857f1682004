"""Is a shedding policy's no enforced, and how often has it said no?

One record a policy. With mode `OFF` the policy is not asked; `OBSERVE` counts a no and lets the
request pass; `ENFORCE` counts and sheds. A no that is only observed changes nothing, so
`would_shed` counts in a system whose queue goes on filling: under lasting overload it is larger
than what `ENFORCE` would shed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from routers.api.settings import Mode


@dataclass(slots=True)
class Verdicts:
    """A policy's mode and its counts. Two fields follow the mode: `off`, the policy is not to be
    asked, and `acts`, a no is enforced."""

    mode: Mode
    shed: int = 0
    would_shed: int = 0
    off: bool = field(init=False)
    acts: bool = field(init=False)

    def __post_init__(self) -> None:
        self.tune(self.mode)

    def tune(self, mode: Mode) -> None:
        """Set the mode; counts stay."""
        self.mode, self.off, self.acts = mode, mode is Mode.OFF, mode is Mode.ENFORCE

    def no(self) -> bool:
        """Count a no. Returns whether it is enforced."""
        if self.acts:
            self.shed += 1
            return True
        self.would_shed += 1
        return False
