"""What does each pool replica hold, and what was it ordered to hold?

A replica reports and waits for its order. An order's revision grows whenever the order changes.
Revisions begin above all that an earlier autoscaler gave, so that a replica never takes a new order
for one it knows. A replica that has not reported for `SILENT_S` is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from autoscaling.types import PoolReading, ResidentReading
from deployments.contract.scaling.messages import PoolModel, PoolOrder, PoolReport

SILENT_S = 10.0


@dataclass(slots=True)
class PoolOrderBook:
    """The reports and orders of all pool replicas. `revision`: of the latest order, to any of
    them."""

    revision: int
    _reports: dict[str, tuple[float, PoolReport]] = field(default_factory=dict)
    _orders: dict[str, PoolOrder] = field(default_factory=dict)

    def on_report(self, report: PoolReport, keys: Collection[str], now: float) -> PoolReading:
        """Take in a report. Returns it as a reading for the autoscaling core. `keys`: of the
        present settings; what is kept of others is of no use."""
        self._reports[report.replica] = (now, report)
        residents = tuple(
            ResidentReading(
                r.model, r.serves, r.size_bytes, r.load_s, now - r.age_s, r.busy, r.wake_s
            )
            for r in report.residents
        )
        kept = {each.model: each.wake_s for each in report.kept if each.key in keys}
        return PoolReading(report.replica, residents, report.free_bytes, kept)

    def order(self, replica: str) -> PoolOrder:
        """The replica's order. Before anything was decided for it, an order of revision 0: to go on
        with what it holds."""
        return self._orders.get(replica, PoolOrder(0))

    def sweep(self, now: float) -> set[str]:
        """Forget the replicas that are gone, and return their names."""
        gone = {name for name, (at, _) in self._reports.items() if now - at > SILENT_S}
        for name in gone:
            del self._reports[name]
            self._orders.pop(name, None)
        return gone

    def decide(
        self, residents: Mapping[str, tuple[str, ...]], models: Mapping[str, PoolModel]
    ) -> bool:
        """Order each replica to hold its models. Returns whether any order has changed.
        `residents`: the models that each replica is to hold; `models`: all that there are."""
        changed = False
        for replica in residents.keys() & self._reports.keys():
            wanted = tuple(models[name] for name in residents[replica] if name in models)
            known = self._orders.get(replica)
            if known is None or known.models != wanted:
                self.revision += 1
                self._orders[replica] = PoolOrder(self.revision, wanted)
                changed = True
        return changed

    def reports(self) -> list[PoolReport]:
        return [report for _, report in self._reports.values()]
