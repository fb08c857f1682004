"""What gateways say of each model's groups, made one reading of what runs.

Every gateway predicts for itself; the one that reaches most replicas of a group is believed, since
it has seen most of them work. A gateway that is silent is not believed after `SILENT_S`, and is
gone once Serve does not list it among those that run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from deployments.contract.scaling.messages import GatewayReport, GroupLoad

SILENT_S = 5.0


@dataclass(slots=True)
class GatewayReports:
    """The latest of each gateway, by its name, and when it came."""

    _latest: dict[str, tuple[float, GatewayReport]] = field(default_factory=dict)

    def hear(self, report: GatewayReport, now: float) -> None:
        self._latest[report.gateway] = (now, report)

    def silent(self, now: float) -> set[str]:
        return {name for name, (at, _) in self._latest.items() if now - at > SILENT_S}

    def keep(self, running: Collection[str], now: float) -> set[str]:
        """Forgets the silent ones that are not `running`; their names."""
        gone = self.silent(now) - set(running)
        for name in gone:
            del self._latest[name]
        return gone

    def frozen(self, now: float) -> bool:
        """Whether any gateway says so; the operator's switch takes a moment to reach all."""
        return any(report.frozen for report in self._fresh(now))

    def loads(self, model: str, now: float) -> dict[str, GroupLoad]:
        """By group, of whoever reaches most of its replicas."""
        best: dict[str, GroupLoad] = {}
        for report in self._fresh(now):
            said = report.models.get(model)
            for group, load in said.groups.items() if said else ():
                if group not in best or load.hot > best[group].hot:
                    best[group] = load
        return best

    def _fresh(self, now: float) -> Iterator[GatewayReport]:
        return (report for at, report in self._latest.values() if now - at <= SILENT_S)
