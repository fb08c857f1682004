"""Is what vLLM's layer streams an answer, a refusal or a failure?

The layer writes any error as an event after a status of 200, and `[DONE]` after it, whether the
request is wrong or the engine has failed. Here an answer begins with its first output token. An
error before that is the same refusal that the request gets if it does not stream; one of the engine
itself, or a later one, is raised. So no stream ends as if it were whole when it is not.
Source: `create_streaming_error_response` of vLLM 0.32.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from http import HTTPStatus

from runtimes.errors import RunError

_ERROR = 'data: {"error":'  # an event of an answer begins with its id


async def answer(
    events: AsyncIterator[str], begun: Callable[[], bool]
) -> AsyncGenerator[tuple[bytes, int], None]:
    """Data and HTTP's status, as it comes. `begun`: whether there is an output token; events before
    that are joined to the first one behind. Raises `RunError`."""
    held: list[str] = []
    sent = False
    async for event in events:
        if event.startswith(_ERROR):
            status, error = _error(event)
            if sent or is_failure(status):
                raise RunError(f"vLLM failed: {error['message']}")
            yield json.dumps({"error": error}).encode(), status
            return
        held.append(event)
        if begun():
            yield "".join(held).encode(), HTTPStatus.OK
            held.clear()
            sent = True
    if held:
        yield "".join(held).encode(), HTTPStatus.OK


def is_failure(status: int) -> bool:
    """Whether an error is the engine's own: another replica might answer. What it has not
    implemented it refuses, whoever asks."""
    return status >= HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.NOT_IMPLEMENTED


def _error(event: str) -> tuple[int, dict[str, object]]:
    error = json.loads(event.removeprefix("data: "))["error"]
    return int(error["code"]), error
