"""How does a simulated stream replica treat the requests that it is sent?

As an engine that batches by itself: it works on all that it holds at once, each as long as a batch
of what it then holds would take, so that each is slower the more there are. A stream that nobody
waits for is stopped at once. Half-way each reports progress: from then on it occupies half as much.
Its memory is not modelled beyond `capacity`, which the dispatcher keeps.
"""

from __future__ import annotations

from routers.simulation.devices import Device, Environment
from routers.simulation.traffic import SimLease
from routers.types import LeaseEnd, Report, Tokens


class StreamReplica:
    """One that is sent single rows. Answers go to the scene half of the transport time later."""

    def __init__(self, device: Device, scene: Environment) -> None:
        self.device = device
        self._scene = scene
        self._held: dict[tuple[str, int], SimLease] = {}
        self._seen: dict[str, int] = {}
        self._dead = False
        self._buried = False

    def receive(self, parcel: SimLease) -> None:
        scene, device = self._scene, self.device
        if self._buried:
            scene.closed((parcel, LeaseEnd.LOST, Report()))
            return
        now = scene.now
        self._held[parcel.gateway, parcel.lease.lease_id] = parcel
        self._seen[parcel.gateway] = parcel.lease.lease_id
        for fate, _ in parcel.members:
            fate.started_at = now
        service_s = device.time_s(len(self._held), parcel.width, now)
        parcel.started = True
        scene.at(now + device.transport_s / 2, scene.opened, parcel)
        if now + service_s <= device.hangs_at:
            scene.at(now + service_s / 2, self._half_way, parcel)
            scene.at(now + service_s, self._finish, (parcel, service_s))
        else:
            scene.at(max(now, device.hangs_at) + device.hang_limit_s, self.die, None)

    def abort(self, parcel: SimLease) -> None:
        if not self._dead and self._take(parcel):
            self._answer(parcel, LeaseEnd.ABORTED, 0.0)

    def die(self, _: None = None) -> None:
        if not self._dead:
            self._dead = True
            self._scene.died(self.device)

    def lose_all(self) -> None:
        self._buried = True
        held, self._held = list(self._held.values()), {}
        for parcel in held:
            self._scene.closed((parcel, LeaseEnd.LOST, Report()))

    def _half_way(self, parcel: SimLease) -> None:
        if not self._dead and (parcel.gateway, parcel.lease.lease_id) in self._held:
            scene = self._scene
            moved = (parcel, parcel.padded_tokens / 2, Tokens())
            scene.at(scene.now + self.device.transport_s / 2, scene.progressed, moved)

    def _finish(self, run: tuple[SimLease, float]) -> None:
        parcel, service_s = run
        if not self._dead and self._take(parcel):
            self._scene.served(parcel, service_s)
            self._answer(parcel, LeaseEnd.DONE, service_s)

    def _take(self, parcel: SimLease) -> bool:
        return self._held.pop((parcel.gateway, parcel.lease.lease_id), None) is not None

    def _answer(self, parcel: SimLease, end: LeaseEnd, service_s: float) -> None:
        scene, half_s = self._scene, self.device.transport_s / 2
        report = Report(
            service_s=service_s,
            padded_tokens=parcel.padded_tokens if service_s else 0,
            inflight=len(self._held),
            held=sum(gateway == parcel.gateway for gateway, _ in self._held),
            seen=self._seen[parcel.gateway],
            transport_s=self.device.transport_s,
        )
        scene.at(scene.now + half_s, scene.closed, (parcel, end, report))
