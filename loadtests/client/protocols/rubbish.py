"""How does a wire send the rubbish that a scenario asks for among its requests?

Each is made of one good request: broken JSON, wrong types, half a body.
"""

from __future__ import annotations

import random
from dataclasses import replace

from loadtests.client.http1 import HEAD_END
from loadtests.client.mischief import rubbish_requests
from loadtests.client.protocols.types import Listener, Place, Wire
from loadtests.traffic.plan import Planned


def with_rubbish(wire: Wire) -> Wire:
    return _WithRubbish(wire)


class _WithRubbish:
    def __init__(self, wire: Wire) -> None:
        self.place: Place = wire.place
        self._wire = wire
        self._rng = random.Random(1)
        self.prepare, self.reseed = wire.prepare, wire.reseed
        self._made: tuple[bytes, ...] = ()

    def request(self, planned: Planned) -> bytes:
        good = self._wire.request(planned)
        if not planned.rubbish:
            return good
        if not self._made:
            head, _, body = good.partition(HEAD_END)
            path = head.split(b" ", 2)[1].decode("latin-1")
            self._made = rubbish_requests(replace(self.place.target, path=path), body)
        return self._rng.choice(self._made)

    def listener(self, planned: Planned) -> Listener | None:
        return None if planned.rubbish else self._wire.listener(planned)
