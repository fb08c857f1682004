"""What `on_death` of a `StreamCore` does in tests, where no process may end."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn


class ProcessEnds(BaseException):
    """Nothing of what follows would be."""


class Deaths(list[str]):
    """Why the process would have ended. Make it on the loop, whose tasks then end unmourned."""

    def __init__(self) -> None:
        super().__init__()
        asyncio.get_running_loop().set_exception_handler(_said)

    def end(self, reason: str) -> NoReturn:
        self.append(reason)
        raise ProcessEnds


def _said(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not isinstance(context.get("exception"), ProcessEnds):
        loop.default_exception_handler(context)
