"""Sends the malformed requests that a scenario asks for among its good ones.

Each is made of one good request: broken JSON, wrong types, half a body.
"""

from __future__ import annotations

import random
from dataclasses import replace

from loadtests.client.client_faults import malformed_requests
from loadtests.client.http1 import HEAD_END
from loadtests.client.protocols.types import Endpoint, ResponseListener, Wire
from loadtests.traffic.plan import Planned


def with_malformed(wire: Wire) -> Wire:
    return _WithMalformed(wire)


class _WithMalformed:
    def __init__(self, wire: Wire) -> None:
        self.place: Endpoint = wire.place
        self._wire = wire
        self._rng = random.Random(1)
        self.prepare, self.reseed = wire.prepare, wire.reseed
        self._made: tuple[bytes, ...] = ()

    def request(self, planned: Planned) -> bytes:
        good = self._wire.request(planned)
        if not planned.malformed:
            return good
        if not self._made:
            head, _, body = good.partition(HEAD_END)
            path = head.split(b" ", 2)[1].decode("latin-1")
            self._made = malformed_requests(replace(self.place.target, path=path), body)
        return self._rng.choice(self._made)

    def listener(self, planned: Planned) -> ResponseListener | None:
        return None if planned.malformed else self._wire.listener(planned)
