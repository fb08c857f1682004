"""A cluster that is known by Serve's list of applications alone, on virtual time, for rollouts."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from math import ceil
from typing import Any

from rolled_out import RegistryCalls

from deployments.contract.app_names import is_model_app, model_app, model_name
from deployments.control.application_list import AppList, by_name
from deployments.control.dashboard import ClusterError
from deployments.control.driver import Driver
from deployments.control.plan import Deployment
from deployments.control.registry.registry import Registry
from deployments.control.remote_cluster import RemoteCluster
from deployments.settings.tree import Settings

THEIRS = {
    "name": "theirs", "route_prefix": "/theirs", "import_path": "their.app:build",
    "args": {"n": 1}, "deployments": [{"name": "d", "num_replicas": 2}],
}  # fmt: skip
_DELETES_S = 2.0


class Serve(RegistryCalls):
    """Serve and the registry. broken: (model, milliseconds) that cannot start. starting: models
    that do not run yet. rows: that gateways hold of a model. deleting: removed applications that
    Serve still lists, and until when. calls_left: that are answered before Serve falls silent.
    slow_s: that each answer takes. before_rollouts: runs once, before the registry answers.
    holds: the next list that is put arrives only when it is released; until then whoever put it is
    stuck. loses_answers: lists are taken, and whoever put them never hears so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.registry = Registry(born_s=self.now)
        self.listed: dict[str, Mapping[str, Any]] = {}
        self.deleting: dict[str, tuple[Mapping[str, Any], float]] = {}
        self.broken: set[tuple[str, float]] = set()
        self.starting: set[str] = set()
        self.rows: dict[str, int] = {}
        self.puts = 0
        self.silent = False
        self.slow_s = 0.0
        self.calls_left: int | None = None
        self.holds = self.loses_answers = False
        self.late: Mapping[str, Any] | None = None
        self.before_rollouts: Callable[[], None] | None = None

    # ---- Serve ---------------------------------------------------------------------------------

    def put(self, config: Mapping[str, Any]) -> None:
        self._answer()
        assert json.loads(json.dumps(config)) == config  # Serve's interface and its store take JSON
        if self.holds and self.late is not None:
            raise ClusterError("Serve's controller does not answer")
        if self.holds:
            self.late = config
        else:
            self._take(config)
        if self.loses_answers:
            raise ClusterError("Serve's controller does not answer")

    def release(self) -> None:
        self.holds = False
        late, self.late = self.late, None
        if late is not None:
            self._take(late)

    def _take(self, config: Mapping[str, Any]) -> None:
        before, self.listed = self.listed, by_name(config)
        gone = {n: (app, self.now + _DELETES_S) for n, app in before.items()}
        still = {**self.deleting, **gone}
        self.deleting = {n: each for n, each in still.items() if n not in self.listed}
        self.puts += 1
        self.registry.declare([model_name(n) for n in self.listed if is_model_app(n)], self.now)

    def details(self) -> dict[str, Any]:
        self._answer()
        self.deleting = {n: each for n, each in self.deleting.items() if each[1] > self.now}
        apps = {name: self._detail(app, self._state(app)) for name, app in self.listed.items()}
        apps |= {name: self._detail(app, "DELETING") for name, (app, _) in self.deleting.items()}
        return {"applications": apps, "http_options": {}}

    def _detail(self, app: Mapping[str, Any], state: str) -> dict[str, Any]:
        return {
            "status": state, "message": "", "route_prefix": app["route_prefix"],
            "deployed_app_config": app, "deployments": {},
        }  # fmt: skip

    def _state(self, app: Mapping[str, Any]) -> str:
        if not is_model_app(app["name"]):
            return "RUNNING"
        name = model_name(app["name"])
        if (name, milliseconds(app)) in self.broken:
            return "DEPLOY_FAILED"
        return "DEPLOYING" if name in self.starting else "RUNNING"

    @property
    def running(self) -> dict[str, float]:
        """The milliseconds of each model that is listed."""
        apps = {n: app for n, app in self.listed.items() if is_model_app(n)}
        return {model_name(name): milliseconds(app) for name, app in apps.items()}

    # ---- the rest of what drives rollouts needs ------------------------------------------------

    def follow(self, applications: Mapping[str, Any]) -> None: ...

    def cannot_start(self, names: Collection[str]) -> dict[str, str]:
        states = {n: self._state_of(n) for n in names}
        return {n: "no such file" for n, state in states.items() if state == "DEPLOY_FAILED"}

    def runs(self, name: str) -> bool:
        return self._state_of(name) == "RUNNING"

    def _state_of(self, name: str) -> str:
        self._answer()
        app = self.listed.get(model_app(name))
        return "" if app is None else self._state(app)

    def held(self, name: str) -> int:
        return self.rows.get(name, 0)

    def forget(self, name: str) -> None: ...

    def rollouts(self) -> list[Any]:
        now_due, self.before_rollouts = self.before_rollouts, None
        if now_due is not None:
            now_due()
        self._answer()
        return self.registry.rollout_accounts(self.now)

    def restart_registry(self) -> None:
        self.registry = Registry(born_s=self.now)
        names = [model_name(n) for n in self.listed if is_model_app(n)]
        self.registry.declare(names, self.now)

    def _answer(self) -> None:
        if self.calls_left is not None:
            self.silent |= self.calls_left == 0
            self.calls_left -= 1
        if self.silent:
            raise ClusterError("Serve's controller does not answer")
        self.now += self.slow_s


def milliseconds(app: Mapping[str, Any]) -> float:
    found: float = app["args"]["settings"]["options"]["base_ms"]
    return found


class Stand:
    """A cluster to which `models` are deployed, and the process that drives its rollouts."""

    def __init__(self, models: dict[str, Any]) -> None:
        self.serve = Serve()
        self._looks = False
        self.meanwhile: Callable[[], None] | None = None  # at each pause of a command
        self.remote = RemoteCluster(
            self.serve,
            self._pause,
            lambda: self.serve.now,
            "user x (1000)",  # type: ignore[arg-type]
        )
        self.restart_driver()
        self.deploy(models)

    def deploy(self, models: dict[str, Any], **sections: Any) -> Deployment:
        return self.remote.deploy(Settings.model_validate({"models": models, **sections}))

    def _pause(self, seconds: float) -> None:
        """The driver goes on while a command waits, if the command did not come amid its look."""
        if self.meanwhile is not None:
            self.meanwhile()
        self.serve.release()
        if self._looks:
            self.serve.now += seconds
        else:
            self.tick(ceil(seconds))

    @contextmanager
    def driver_away(self) -> Iterator[None]:
        """Nobody drives rollouts meanwhile."""
        self._looks = True
        yield
        self._looks = False

    def restart_driver(self) -> None:
        self.driver = Driver(self.serve, lambda: self.serve.now)

    def tick(self, seconds: int = 1) -> None:
        for _ in range(seconds):
            self.serve.now += 1
            self._looks = True
            try:
                self.driver.tick()
            finally:
                self._looks = False

    @property
    def running(self) -> dict[str, float]:
        return self.serve.running

    @property
    def listed(self) -> AppList:
        return AppList.of({n: app for n, app in self.serve.listed.items() if n != "theirs"})

    def record(self, name: str) -> dict[str, Any]:
        return dict(next(each for each in self.remote.rollouts() if each["model"] == name))
