"""A steady load whose every request is remembered: when it left, when it came back, and how.

Callers wait for their answer and a pause before they ask again, each on a kept connection of its
own to one node's ingress. What a fault cost is read from the record afterwards.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

ANSWER_S = 60.0
_LEAVES_S = 10.0


def _body(ids: Sequence[int]) -> dict[str, Any]:
    shape = [1, len(ids)]
    return {"inputs": [{"name": "ids", "datatype": "INT64", "shape": shape, "data": list(ids)}]}


def infer(url: str, model: str, ids: Sequence[int], **headers: str) -> httpx.Response:
    """One request to a synthetic model."""
    path = f"{url}/v2/models/{model}/infer"
    return httpx.post(path, json=_body(ids), headers=headers, timeout=ANSWER_S)


@dataclass(frozen=True, slots=True)
class Outcome:
    """`reason`: empty for a right answer. Times are of `time.monotonic`."""

    url: str
    sent_s: float
    ended_s: float
    reason: str

    @property
    def took_s(self) -> float:
        return self.ended_s - self.sent_s


class SteadyLoad:
    """`urls`: ingresses, callers spread over them in turn. A context manager, which returns when
    every request has its outcome."""

    def __init__(
        self, urls: Sequence[str], model: str, *, callers: int = 6, pause_s: float = 0.05,
        headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._urls = [f"{url}/v2/models/{model}/infer" for url in urls]
        self._callers, self._pause_s = callers, pause_s
        self._headers = dict(headers or {})
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()), daemon=True)
        self.outcomes: list[Outcome] = []

    def __enter__(self) -> SteadyLoad:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join(ANSWER_S + _LEAVES_S)
        assert not self._thread.is_alive(), "a caller has neither an answer nor an error"

    def settle(self, seconds: float) -> None:
        """Let it run for so long, and until each caller has had answers: on a busy machine their
        clients alone take seconds to make, and what they send is held up until all are made."""
        end = time.monotonic() + ANSWER_S
        time.sleep(seconds)
        while self.answered < 2 * self._callers:
            assert time.monotonic() < end, f"{self.answered} answers: {self.reasons()}"
            time.sleep(0.05)

    async def _all(self) -> None:
        callers = [self._ask(n, self._urls[n % len(self._urls)]) for n in range(self._callers)]
        await asyncio.gather(*callers)

    async def _ask(self, caller: int, url: str) -> None:
        ids = [caller + 1, 2, 3]
        async with httpx.AsyncClient(timeout=ANSWER_S, headers=self._headers) as client:
            while not self._over.is_set():
                sent_s = time.monotonic()
                reason = await _outcome(client, url, ids)
                self.outcomes.append(Outcome(url, sent_s, time.monotonic(), reason))
                await asyncio.sleep(self._pause_s)

    # ---- the record -----------------------------------------------------------------------------

    @property
    def answered(self) -> int:
        return sum(not o.reason for o in self.outcomes)

    @property
    def failures(self) -> list[Outcome]:
        return [o for o in self.outcomes if o.reason]

    def reasons(self) -> Counter[str]:
        return Counter(o.reason for o in self.failures)


async def _outcome(client: httpx.AsyncClient, url: str, ids: Sequence[int]) -> str:
    try:
        answer = await client.post(url, json=_body(ids))
    except httpx.HTTPError as error:
        return type(error).__name__
    if answer.status_code != 200:
        return f"{answer.status_code} {answer.text[:120]}"
    got = answer.json()["outputs"][0]["data"][0]
    return "" if got == sum(ids) else f"{got} instead of {sum(ids)}"
