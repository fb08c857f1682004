"""Combines gateways' reports of each model's groups into one load a group.

Every gateway predicts for itself. The gateway that reaches most replicas of a group is believed,
since it has seen most of them work. A silent gateway is not believed after `SILENT_S`, and is gone
once Serve does not list it as running.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from deployments.contract.scaling.messages import GatewayReport, GroupLoad

SILENT_S = 5.0
_MOST = 1e9  # a larger number is not believed: work a second, seconds, replicas


@dataclass(slots=True)
class GatewayReports:
    """The latest report of each gateway."""

    _latest: dict[str, tuple[float, GatewayReport]] = field(default_factory=dict)  # (when, what)

    def on_report(self, report: GatewayReport, now: float) -> None:
        self._latest[report.gateway] = (now, report)

    def silent(self, now: float) -> set[str]:
        """The gateways whose latest report is older than `SILENT_S`."""
        return {name for name, (at, _) in self._latest.items() if now - at > SILENT_S}

    def keep(self, running: Collection[str], now: float) -> set[str]:
        """Forget silent gateways that are not in `running`, and return their names."""
        gone = self.silent(now) - set(running)
        for name in gone:
            del self._latest[name]
        return gone

    def frozen(self, now: float) -> bool:
        """Whether any gateway reports the operator's switch as on: it takes a moment to reach
        all."""
        return any(report.frozen for report in self._fresh(now))

    def loads(self, model: str, now: float) -> dict[str, GroupLoad]:
        """The load of each group, from the gateway that reaches most of its replicas. Loads with
        impossible numbers are left out."""
        best: dict[str, GroupLoad] = {}
        for report in self._fresh(now):
            said = report.models.get(model)
            for group, load in said.groups.items() if said else ():
                if _is_sound(load) and (group not in best or load.hot > best[group].hot):
                    best[group] = load
        return best

    def _fresh(self, now: float) -> Iterator[GatewayReport]:
        return (report for at, report in self._latest.values() if now - at <= SILENT_S)


def _is_sound(load: GroupLoad) -> bool:
    seconds = (load.batch_s, load.batch_p99_s, load.batch_scv)
    return 0.0 < load.speed < _MOST and all(0.0 <= each < _MOST for each in (load.hot, *seconds))
