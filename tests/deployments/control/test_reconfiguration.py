from __future__ import annotations

import json
import threading

from deployments.control.deployed import Deployed
from deployments.control.reconfiguration import Origin, Reconfiguration, taken_back, without
from deployments.control.settings_changes import changes_between
from deployments.settings.load import parse_tenants, tenants_text
from deployments.settings.tree import Settings


def settings(models, **sections) -> Settings:
    return Settings.model_validate({"models": models, **sections})


FAST = {"runtime": "synthetic", "options": {"base_ms": 1}}
SLOW = {"runtime": "synthetic", "options": {"base_ms": 9}}


def test_changes_name_what_came_went_and_differs():
    old = settings({"a": FAST, "b": FAST, "c": FAST}, tenants={"t": {}, "u": {}})
    new = settings({"a": FAST, "b": SLOW, "d": FAST}, tenants={"t": {"weight": 2}, "u": {}})
    assert changes_between(old, new) == {
        "added": ["d"], "removed": ["c"], "restarted": ["b"], "updated": [], "tenants": ["t"],
        "controllers": [], "sections": [], "reasons": ["b: settings.options.base_ms: 1 -> 9"],
    }  # fmt: skip


def test_the_switch_of_all_controllers_is_a_change_of_its_own():
    free = settings({"a": FAST})
    frozen = settings({"a": FAST}, controllers={"frozen": True})
    assert changes_between(free, frozen)["controllers"] == ["frozen"]
    assert changes_between(frozen, free)["controllers"] == ["no longer frozen"]


def test_what_only_the_autoscaler_or_operators_read_is_a_change_too():
    scaled = FAST | {"replicas": {"min": 1, "max": 3}, "scaling": {"hold_s": 60}}
    old = settings({"a": scaled})
    new = settings(
        {"a": scaled | {"scaling": {"hold_s": 30}}},
        operators={"keys": ["sha256:" + "a" * 64]},
        scaling={"budget": {"cpus": 9}},
    )
    found = changes_between(old, new)
    assert (found["updated"], found["sections"]) == (["a"], ["operators", "scaling"])
    assert found["reasons"] == ["a: scaling.hold_s: 60.0 -> 30.0"]


def test_nothing_differs_between_equal_files():
    old = settings({"a": FAST})
    assert not any(changes_between(old, settings({"a": FAST})).values())


def test_what_failed_is_what_it_was_or_not_there():
    old, new = settings({"a": FAST}), settings({"a": SLOW, "b": FAST, "c": FAST})
    kept = without(Deployed(old), Deployed(new), {"a", "b"}).settings
    assert {name: m.options["base_ms"] for name, m in kept.models.items()} == {"a": 1, "c": 1}
    assert list(taken_back(kept, {"a": "no", "b": "nor this"})) == [
        "model a cannot start and goes on as it was: no",
        "model b cannot start and was left out: nor this",
        "everything else is as the file says",
    ]


def test_tenants_are_published_whole():
    settings = Settings.model_validate(
        {
            "models": {"m": {"runtime": "synthetic"}},
            "tenants": {"acme": {"weight": 3, "rate": {"tokens_per_s": 9}}},
            "controllers": {"frozen": True},
        }
    )
    published = parse_tenants(tenants_text(settings), "published")
    assert (published.tenants, published.controllers) == (settings.tenants, settings.controllers)


class Cluster:
    """Settles at once; `settled`: what was waited for, call by call."""

    def __init__(self, failed: dict[str, str]) -> None:
        self.failed, self.settled = failed, []
        self.published, self.switch = [], None

    def publish_tenants(self, text):
        self.published.append(text)
        self.switch = None

    def freeze(self, frozen):
        self.switch = frozen

    def frozen(self):
        return self.switch

    def publish_scaling(self, text): ...

    def put(self, config): ...

    def settle(self, settings, changed, stop):
        self.settled.append(list(changed))
        return {name: why for name, why in self.failed.items() if name in changed}


def test_a_file_without_the_keys_opens_no_server(tmp_path):
    models = {"models": {"a": FAST}}
    keyed = {"tenants": {"acme": {"keys": ["sha256:" + "a" * 64]}}}
    new = tmp_path / "new.yaml"
    for auth, tenants, refused in (
        (None, {"acme": {"weight": 2}}, True),
        (None, {}, True),
        (None, {"other": {"keys": []}}, False),
        ("required", {"acme": {"weight": 2}}, False),
    ):
        said = {"gateway": {"auth": auth}} if auth else {}
        running = Settings.model_validate({**models, **keyed, **said})
        live = Reconfiguration(running, Cluster({}), Origin(tmp_path), threading.Event())
        new.write_text(json.dumps({**models, **said, "tenants": tenants}))
        for asked in (live.diff, live.apply):
            answer = asked({"path": str(new)})
            assert ("gateway.auth: open" in answer.get("error", "")) is refused, (auth, tenants)
        assert (live.settings.tenants == running.tenants) is refused


def test_a_changed_gateway_setting_is_named_and_refused(tmp_path):
    new = tmp_path / "new.yaml"
    running = settings({"a": FAST}, gateway={"port": 8000})
    live = Reconfiguration(running, Cluster({}), Origin(tmp_path), threading.Event())
    for gateway, said in (
        ({"port": 9000}, ["gateway.port: 8000 -> 9000"]),
        ({"host": "::1"}, ["gateway.host: 127.0.0.1 -> ::1"]),
        ({"limits": {"max_requests": 7}}, ["gateway.limits.max_requests: 2000 -> 7"]),
        ({"haproxy_threads": 2, "log": {"level": "debug"}},
         ["gateway.haproxy_threads: 1 -> 2", "gateway.log.level: info -> debug"]),
    ):  # fmt: skip
        new.write_text(json.dumps({"models": {"a": FAST}, "gateway": gateway}))
        for asked in (live.diff, live.apply):
            first, *rest = asked({"path": str(new)})["error"].splitlines()
            assert "cannot change while it runs" in first
            assert [line.strip() for line in rest] == said


def test_the_command_lines_port_holds_whatever_a_file_says(tmp_path):
    new = tmp_path / "new.yaml"
    running = settings({"a": FAST}, gateway={"port": 9000})
    origin = Origin(tmp_path, {"port": 9000})
    live = Reconfiguration(running, Cluster({}), origin, threading.Event())
    for port in (8000, 8001, 9000):
        new.write_text(json.dumps({"models": {"a": FAST}, "gateway": {"port": port}}))
        assert "error" not in live.diff({"path": str(new)})
    new.write_text(json.dumps({"models": {"a": FAST}, "gateway": {"host": "::1"}}))
    assert "gateway.host" in live.diff({"path": str(new)})["error"]


def test_a_switch_changes_no_tenants_and_a_file_sets_it_as_it_says(tmp_path):
    cluster, new = Cluster({}), tmp_path / "new.yaml"
    live = Reconfiguration(settings({"a": FAST}), cluster, Origin(tmp_path), threading.Event())
    live.start()
    before, published = live.deployed, list(cluster.published)
    assert live.freeze({"frozen": True}) == {"controllers": ["frozen"]}
    assert live.freeze({"frozen": True}) == {"controllers": []}
    assert (live.deployed, cluster.published) == (before, published)
    new.write_text(json.dumps({"models": {"a": FAST}}))
    assert live.diff({"path": str(new)})["controllers"] == ["no longer frozen"]
    assert cluster.switch is True
    assert live.apply({"path": str(new)})["controllers"] == ["no longer frozen"]
    assert cluster.switch is None
    frozen = {"controllers": {"frozen": True}}
    new.write_text(json.dumps({"models": {"a": FAST}} | frozen))
    assert live.apply({"path": str(new)})["controllers"] == ["frozen"]
    assert live.freeze({"frozen": False}) == {"controllers": ["no longer frozen"]}


def test_a_rollback_leaves_the_switch_as_an_operator_has_set_it(tmp_path):
    cluster, new = Cluster({}), tmp_path / "new.yaml"
    live = Reconfiguration(settings({"a": FAST}), cluster, Origin(tmp_path), threading.Event())
    new.write_text(json.dumps({"models": {"a": SLOW}}))
    live.apply({"path": str(new)})
    cluster.freeze(True)
    assert live.rollback({"model": "a"})["rolled back"] == ["a"]
    assert cluster.switch is True


def test_nothing_waits_for_an_optional_model_that_a_file_brings(tmp_path):
    file = tmp_path / "settings.yaml"
    broken = FAST | {"optional": True}
    file.write_text(json.dumps({"models": {"a": FAST, "b": FAST, "broken": broken}}))
    cluster = Cluster({"broken": "no such file"})
    live = Reconfiguration(settings({"a": FAST}), cluster, Origin(tmp_path), threading.Event())
    assert live.apply({"path": str(file)})["added"] == ["b", "broken"]
    assert cluster.settled == [["b"]]
    assert "broken" in live.settings.models
