"""Our applications beside others', on a cluster that only Serve's REST interface knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from deployments.control.application_list import merged
from deployments.control.dashboard import ClusterError
from deployments.control.plan import Deployment
from deployments.control.remote_cluster import RemoteCluster
from deployments.control.serve_config import serve_config
from deployments.settings.tree import Settings

FOREIGN = {
    "name": "theirs",
    "route_prefix": "/theirs",
    "import_path": "their.app:build",
    "args": {},
}


class Serve:
    """Serve's list of applications: what a list lacks and an earlier one had is deleted; code that
    failed is not tried again by the same list."""

    def __init__(self, *configs: dict[str, Any]) -> None:
        self.apps: dict[str, dict[str, Any]] = {}
        self.http_options: dict[str, Any] = {"host": "0.0.0.0", "port": 8000}
        self.failing: set[str] = set()
        self.puts: list[list[str]] = []
        self.put({"applications": list(configs)})
        self.puts.clear()

    def put(self, config: Any) -> None:
        listed = {app["name"]: app for app in config["applications"]}
        self.puts.append(sorted(listed))
        imperative = {n: a for n, a in self.apps.items() if a["deployed_app_config"] is None}
        before = self.apps
        self.apps = imperative | {
            name: self._deployed(app, before.get(name)) for name, app in listed.items()
        }

    def _deployed(self, app: dict[str, Any], before: dict[str, Any] | None) -> dict[str, Any]:
        same = before is not None and before["deployed_app_config"].get("args") == app.get("args")
        failed = app["name"] in self.failing
        status = before["status"] if same and before else "DEPLOY_FAILED" if failed else "RUNNING"
        answering = before["deployments"]["model"]["replicas"] if before else []
        replicas = [{"state": "RUNNING"}] if status == "RUNNING" else answering
        deployments = {"model": {"target_num_replicas": 1, "replicas": replicas}}
        return {
            "status": status,
            "message": "no memory" if status == "DEPLOY_FAILED" else "",
            "route_prefix": app["route_prefix"],
            "deployed_app_config": app,
            "deployments": deployments,
        }

    def details(self) -> dict[str, Any]:
        return {"applications": self.apps, "http_options": self.http_options}


def settings(**more: Any) -> Settings:
    models = {"device": {"runtime": "synthetic"}}
    return Settings.model_validate({"models": models, **more})


def config(**more: Any) -> dict[str, Any]:
    return serve_config(settings(**more))


def cluster(serve: Serve) -> RemoteCluster:
    now = [0.0]

    def pause(seconds: float) -> None:
        now[0] += seconds

    return RemoteCluster(serve, pause, lambda: now[0])  # type: ignore[arg-type]


def watched(
    serve: Serve,
    limit_s: float,
    say: Callable[[str], None] = lambda line: None,
    done: Deployment | None = None,
) -> dict[str, str]:
    """As `watch`, where nobody drives changes: Serve's states alone count."""
    change = block(serve)["changes"][-1]["id"]
    done = done or Deployment(tuple(OURS), [], {}, {}, {}, {}, change)
    return cluster(serve).watch(replace(done, replaced={}), limit_s, say)


def block(serve: Serve) -> dict[str, Any]:
    (deployment,) = serve.apps["headrace-control"]["deployed_app_config"]["deployments"]
    found: dict[str, Any] = deployment["user_config"]
    return found


OURS = ["gateway", "headrace-control", "model-device"]


def test_others_applications_are_put_again_word_for_word() -> None:
    serve = Serve(FOREIGN)
    added = cluster(serve).deploy(settings()).differences
    assert [d.kind for d in added] == ["added"] * 3
    assert sorted(serve.apps) == sorted([*OURS, "theirs"])
    assert serve.apps["theirs"]["deployed_app_config"] == FOREIGN
    assert cluster(serve).deploy(settings()).differences == []


def test_what_was_deployed_from_code_is_left_alone() -> None:
    serve = Serve()
    serve.apps["code"] = {"deployed_app_config": None, "route_prefix": "/code", "status": "RUNNING"}
    cluster(serve).deploy(settings())
    assert "code" in serve.apps
    assert "code" not in serve.puts[-1]


@pytest.mark.parametrize(
    ("foreign", "said"),
    [
        ({**FOREIGN, "name": "gateway"}, "an application named gateway that is not Headrace's"),
        ({**FOREIGN, "route_prefix": "/"}, "application theirs has the route / already"),
    ],
)
def test_what_cannot_stand_beside_it_is_refused_and_nothing_is_put(foreign, said) -> None:
    serve = Serve(foreign)
    with pytest.raises(ClusterError, match=said):
        cluster(serve).deploy(settings())
    assert serve.puts == []


def test_a_model_that_is_still_being_deleted_may_come_again() -> None:
    leaving = {"status": "DELETING", "deployed_app_config": None, "route_prefix": None}
    merged(config(), {"applications": {"model-device": leaving}})
    with pytest.raises(ClusterError, match="that is not Headrace's"):
        merged(config(), {"applications": {"model-device": {**leaving, "status": "RUNNING"}}})


def test_a_serve_that_listens_elsewhere_is_refused() -> None:
    serve = Serve(FOREIGN)
    with pytest.raises(ClusterError, match=r"listens with port 8000 there, and"):
        cluster(serve).deploy(settings(gateway={"port": 9000}))
    merged(config(gateway={"port": 9000}), {"applications": {}, "http_options": {"port": 8000}})


def test_a_failed_application_is_deleted_before_it_is_tried_again() -> None:
    serve = Serve()
    serve.failing = {"model-device"}
    cluster(serve).deploy(settings())
    assert watched(serve, 10) == {"model-device": "no memory"}
    serve.failing = set()
    cluster(serve).deploy(settings())
    assert serve.puts[-3:] == [["gateway", "headrace-control"]] * 2 + [OURS]
    assert watched(serve, 10) == {}


def test_a_failed_upgrade_is_not_deleted_while_what_was_there_answers() -> None:
    serve = Serve()
    cluster(serve).deploy(settings())
    serve.failing = {"model-device"}
    slow = {"device": {"runtime": "synthetic", "options": {"base_ms": 9}}}
    broken = Settings.model_validate({"models": slow})
    cluster(serve).deploy(broken)
    assert serve.apps["model-device"]["status"] == "DEPLOY_FAILED"
    serve.puts.clear()
    cluster(serve).deploy(settings())  # other arguments: Serve tries them by itself
    serve.apps["model-device"]["status"] = "DEPLOY_FAILED"
    cluster(serve).deploy(settings())  # the same ones, and a replica still runs
    assert serve.puts == [OURS] * 4  # a lease before each


def test_what_serve_hears_only_once_is_refused_where_it_matters_and_else_said() -> None:
    serve = Serve()
    cluster(serve).deploy(settings())
    for gateway in ({"replay": False}, {"host": "127.0.0.1"}, {"haproxy_stats_port": 9999}):
        with pytest.raises(ClusterError, match="hears only when it starts"):
            cluster(serve).deploy(settings(gateway=gateway))
    told = {"limits": {"max_requests": 7}, "trusted_proxies": ["10.0.0.0/8"]}
    assert cluster(serve).waiting_for_restart(settings(gateway=told)) == []  # gateways tell HAProxy
    later = settings(gateway={"drain_s": 900})
    assert cluster(serve).waiting_for_restart(later) == ["RAY_SERVE_PORT_QUARANTINE_S"]
    assert [d.kind for d in cluster(serve).deploy(later).differences] == ["restarted"]
    assert cluster(serve).waiting_for_restart(later) == []


def test_each_change_of_a_state_is_said_once_and_the_wait_is_bounded() -> None:
    serve = Serve()
    cluster(serve).deploy(settings())
    serve.apps["model-device"]["status"] = "DEPLOYING"
    said: list[str] = []
    with pytest.raises(ClusterError, match="model-device not ready after 5 s"):
        watched(serve, 5, said.append)
    assert sorted(said) == [
        "gateway: running, 1/1 replicas",
        "headrace-control: running, 1/1 replicas",
        "model-device: deploying, 1/1 replicas",
    ]


def test_a_deployment_that_waits_for_its_place_says_so() -> None:
    serve = Serve()
    cluster(serve).deploy(settings())
    app = serve.apps["model-device"]
    app["status"] = "DEPLOYING"
    app["deployments"]["model"] |= {"status": "UPDATING", "message": "no node has 0.5 CPU free"}
    (state,) = [s for s in cluster(serve).states() if s.name == "model-device"]
    assert str(state) == ("model-device: deploying, 1/1 replicas\n  no node has 0.5 CPU free")


def test_a_dashboard_that_is_away_for_a_while_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serve = Serve()
    cluster(serve).deploy(settings())
    away: list[ClusterError] = []
    details = serve.details

    def answered() -> dict[str, Any]:
        if away:
            raise away.pop()
        return details()

    monkeypatch.setattr(serve, "details", answered)
    done = cluster(serve).deploy(settings())
    away += [ClusterError("the head restarts")] * 3
    assert watched(serve, 5, done=done) == {}
    away += [ClusterError("the head is gone")] * 10
    with pytest.raises(ClusterError, match="is gone"):
        watched(serve, 5, done=done)


def test_the_gateway_goes_before_the_models_and_others_stay() -> None:
    serve = Serve(FOREIGN)
    cluster(serve).deploy(settings())
    serve.puts.clear()
    cluster(serve).remove(lambda line: None)
    assert serve.puts == [["model-device", "theirs"], ["theirs"]]
    with pytest.raises(ClusterError, match="no application of Headrace"):
        cluster(serve).remove(lambda line: None)


def test_adapters_change_by_hand_and_nothing_else_does() -> None:
    serve, llm = Serve(FOREIGN), {"runtime": "synthetic", "task": "generate"}
    models = {"llm": llm | {"adapters": {"law": "/law", "sql": "/sql"}}, "plain": llm}
    wanted = Settings.model_validate({"models": models})
    cluster(serve).deploy(wanted)
    before = {name: app["deployed_app_config"] for name, app in serve.apps.items()}
    cluster(serve).adapt("llm", "new", "s3://b/new/#sha256=00")
    cluster(serve).adapt("llm", "sql", None)
    cluster(serve).adapt("llm", "law", "/law2")
    assert cluster(serve).adapters("llm") == {
        "law": ("/law2", True), "new": ("s3://b/new/#sha256=00", True),
    }  # fmt: skip
    after = {name: app["deployed_app_config"] for name, app in serve.apps.items()}
    assert {name for name in before if before[name] != after[name]} == {"headrace-control"}
    assert cluster(serve).deploy(wanted).differences == []
    assert set(cluster(serve).adapters("llm")) == {"law", "new"}, "a file leaves them"
    cluster(serve).adapt("llm", "law", "/law")
    cluster(serve).adapt("llm", "sql", "/sql")
    cluster(serve).adapt("llm", "new", None)
    assert "adapters" not in block(serve), "it is as the file says again"
    with pytest.raises(ClusterError, match="no adapter 'new'"):
        cluster(serve).adapt("llm", "new", None)
    with pytest.raises(ClusterError, match="has no adapters in its settings"):
        cluster(serve).adapt("plain", "law", "/law")
    with pytest.raises(ClusterError, match="no model 'x'; there are: llm, plain"):
        cluster(serve).adapt("x", "law", "/law")


def test_the_switch_of_the_controllers_changes_what_is_published_alone() -> None:
    serve = Serve(FOREIGN)
    cluster(serve).deploy(settings(tenants={"acme": {"weight": 3}}))
    before = {name: app["deployed_app_config"] for name, app in serve.apps.items()}
    cluster(serve).freeze(True)
    after = {name: app["deployed_app_config"] for name, app in serve.apps.items()}
    assert {name for name in before if before[name] != after[name]} == {"headrace-control"}
    assert block(serve)["tenants"] == {
        "tenants": {"acme": {"weight": 3}},
        "controllers": {"frozen": True},
    }
    again = block(serve)["turn"]
    cluster(serve).freeze(True)  # an operator may have let them learn again meanwhile
    assert block(serve)["turn"] != again
    cluster(serve).freeze(False)
    assert cluster(serve).deploy(settings(tenants={"acme": {"weight": 3}})).differences == []
