"""What people ask of rollouts on a server of one machine: `headrace rollout status | promote |
abort`, through the host's control socket."""

from __future__ import annotations

from typing import Any, Protocol

from deployments.control.deployed import Canary, Deployed
from deployments.control.rollout_driver import Asked, Cluster, RolloutDriver
from deployments.control.rollout_reasons import BY_HAND
from deployments.control.rollout_records import RolloutRecords

Answer = dict[str, Any]


class Live(Protocol):
    """What runs (`Reconfiguration`)."""

    deployed: Deployed
    records: RolloutRecords


class RolloutCommands:
    """The handlers. The registry is told at once; what it does not know yet, because it has just
    started anew, the driver tells it later."""

    def __init__(self, live: Live, cluster: Cluster, driver: RolloutDriver) -> None:
        self._live = live
        self._cluster = cluster
        self._driver = driver

    def rollouts(self, request: Answer) -> Answer:
        """All that are under way, and the last one of each model that ended."""
        return {"rollouts": self._live.records.listing(self._live.deployed)}

    def promote(self, request: Answer) -> Answer:
        """At once, whatever is still to be seen of it."""
        return self._decide(request, Asked())

    def abort(self, request: Answer) -> Answer:
        return self._decide(request, Asked(str(request.get("reason") or "") or BY_HAND))

    def _decide(self, request: Answer, asked: Asked) -> Answer:
        name, deployed = str(request.get("model", "")), self._live.deployed
        if wrong := self._live.records.undecided(deployed, name):
            return {"error": wrong}
        canary = deployed.canaries[name]
        if self._decided(canary, asked) or not (
            self._driver.tell(name, asked) or self._is_unknown(canary.rollout)
        ):
            return {"error": f"the rollout of {name} is decided already"}
        self._driver.ask(canary, asked)
        return {"model": name}

    def _decided(self, canary: Canary, asked: Asked) -> bool:
        """By what the host knows; one that is being promoted may still be aborted."""
        before = self._driver.asked(canary)
        aborted = before is not None and before.aborts
        return aborted or (not asked.aborts and canary.stage != "judged")

    def _is_unknown(self, number: int | None) -> bool:
        return number not in [account["number"] for account in self._cluster.rollouts()]
