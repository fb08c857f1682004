"""A cluster whose registry and Serve behave as the real ones do, on virtual time, for rollouts."""

from __future__ import annotations

import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from deployments.contract.app_names import is_model_app, model_name
from deployments.control.dashboard import ClusterError
from deployments.control.reconfiguration import Origin, Reconfiguration
from deployments.control.registry.registry import Registry
from deployments.control.rollout_commands import RolloutCommands
from deployments.control.rollout_driver import RolloutDriver
from deployments.control.rollout_records import RolloutRecords
from deployments.settings.tree import Settings

ROLLOUT = {"steps_percent": [50], "hold_s": 1, "least_requests": 1}


def model(base_ms: float, **fields: Any) -> dict[str, Any]:
    return {
        "runtime": "synthetic", "options": {"base_ms": base_ms}, "rollout": ROLLOUT, **fields,
    }  # fmt: skip


class RegistryCalls:
    """What rollouts ask of the registry. `_answer` raises ClusterError while nothing answers."""

    registry: Registry
    now: float

    def _answer(self) -> None:
        raise NotImplementedError

    def begin_rollout(self, model: str, terms: Any) -> int:
        self._answer()
        return self.registry.begin_rollout(model, terms, self.now, self.now)

    def promote(self, model: str) -> bool:
        self._answer()
        return self.registry.promote(model, self.now)

    def finish_rollout(self, model: str) -> bool:
        self._answer()
        return self.registry.finish_rollout(model)

    def abort_rollout(self, model: str, why: str) -> bool:
        self._answer()
        return self.registry.abort_rollout(model, why)


class Cluster(RegistryCalls):
    """broken: names that cannot start with these milliseconds. starting: names that are not yet
    running. puts: the milliseconds of every model, put by put. rows: that gateways hold of a
    model. silent: nothing answers. published: the tenants, each time. switch: of the controllers,
    as an operator has set it since."""

    def __init__(self) -> None:
        self.now = 100.0
        self.registry = Registry(born_s=self.now)
        self.broken: set[tuple[str, float]] = set()
        self.starting: set[str] = set()
        self.rows: dict[str, int] = {}
        self.puts: list[dict[str, float]] = []
        self.forgotten: list[str] = []
        self.silent = False
        self.published: list[str] = []
        self.switch: bool | None = None

    @property
    def running(self) -> dict[str, float]:
        return self.puts[-1]

    def publish_tenants(self, text: str) -> None:
        self.published.append(text)
        self.switch = None

    def freeze(self, frozen: bool) -> None:
        self.switch = frozen

    def frozen(self) -> bool | None:
        return self.switch

    def publish_scaling(self, text: str) -> None: ...

    def put(self, config: dict[str, Any]) -> None:
        self._answer()
        apps = {a["name"]: a["args"]["settings"] for a in config["applications"]
                if is_model_app(a["name"])}  # fmt: skip
        self.puts.append({model_name(n): s["options"]["base_ms"] for n, s in apps.items()})
        self.registry.declare(self.running.keys(), self.now)

    def settle(
        self, settings: Settings, changed: Collection[str], stop: threading.Event
    ) -> dict[str, str]:
        return self.cannot_start(list(changed))

    def cannot_start(self, names: Collection[str]) -> dict[str, str]:
        self._answer()
        return {n: "no such file" for n in names if (n, self.running[n]) in self.broken}

    def runs(self, name: str) -> bool:
        self._answer()
        return name not in self.starting and (name, self.running[name]) not in self.broken

    def held(self, name: str) -> int:
        return self.rows.get(name, 0)

    def forget(self, name: str) -> None:
        self.forgotten.append(name)

    def rollouts(self) -> list[Any]:
        self._answer()
        return self.registry.rollout_accounts(self.now)

    def restart_registry(self) -> None:
        self.registry = Registry(born_s=self.now)
        self.registry.declare(self.running.keys(), self.now)

    def _answer(self) -> None:
        if self.silent:
            raise ClusterError("the registry does not answer within 5 s")


class Stand:
    """A server that runs `models`; `told`: what it said of ends."""

    def __init__(self, folder: Path, models: dict[str, Any]) -> None:
        self.cluster = Cluster()
        self.told: list[tuple[str, str, str]] = []
        self._folder = folder
        settings = Settings.model_validate({"models": models})
        records = RolloutRecords(lambda name, how, why, *_: self.told.append((name, how, why)))
        stop = threading.Event()
        self.live = Reconfiguration(
            settings, self.cluster, Origin(folder), stop, records, self._clock
        )
        self.driver = RolloutDriver(self.live, self.cluster, self._clock)
        self.commands = RolloutCommands(self.live, self.cluster, self.driver)
        self.live.start()

    def _clock(self) -> float:
        return self.cluster.now

    @property
    def running(self) -> dict[str, float]:
        return self.cluster.running

    def apply(self, models: dict[str, Any]) -> dict[str, Any]:
        return self.live.apply({"path": self._written(models)})

    def diff(self, models: dict[str, Any]) -> dict[str, Any]:
        return self.live.diff({"path": self._written(models)})

    def _written(self, models: dict[str, Any]) -> str:
        file = self._folder / "new.yaml"
        file.write_text(yaml.safe_dump({"models": models}))
        return str(file)

    def rollback(self, name: str) -> dict[str, Any]:
        return self.live.rollback({"model": name})

    def tick(self, seconds: int = 1) -> None:
        for _ in range(seconds):
            self.cluster.now += 1
            self.driver.tick()

    def record(self, name: str) -> dict[str, Any]:
        found = self.commands.rollouts({})["rollouts"]
        return next(each for each in found if each["model"] == name)
