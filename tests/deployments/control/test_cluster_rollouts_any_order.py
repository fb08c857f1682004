"""Files, decisions, restarts and faults in any order: a cluster's rollouts come to rest, and what
runs then is what the last file asks for, or what ran before it."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from cluster_with_rollouts import THEIRS, Stand, milliseconds
from hypothesis import given, settings
from hypothesis import strategies as st
from rolled_out import model

from deployments.contract.app_names import is_model_app, model_name
from deployments.contract.listed import Entry
from deployments.control.application_list import AppList, by_name
from deployments.control.dashboard import ClusterError
from deployments.control.remote_cluster import Deployment
from deployments.control.scaling.scaling_terms import published_scaling
from deployments.control.serve_config import bounds

_RESTS_S = 15
_REPLICAS: list[dict[str, Any]] = [
    {}, {"count": 4}, {"min": 2, "max": 6}, {"groups": [{"name": "a", "count": 2}, {"name": "b"}]},
]  # fmt: skip
_SECTIONS: list[dict[str, Any]] = [
    {},
    {"scaling": {"pool": {"max": 2, "memory_mib": 100}}},
    {"gateway": {"tenants_path": "/etc/tenants.yaml"}},
]


@st.composite
def _models(draw: st.DrawFn, least: int = 0) -> dict[str, Any]:
    """Models of a file: n, and m in one of three versions, or not at all."""
    found: dict[str, Any] = {"n": model(draw(st.sampled_from([1, 2])))}
    version = draw(st.integers(least, 3))
    if version:
        fields: dict[str, Any] = {"replicas": draw(st.sampled_from(_REPLICAS))}
        if draw(st.booleans()):
            fields["optional"] = True
        if draw(st.booleans()):
            fields |= {"fallback": "k"}
            found["k"] = model(5)
        if draw(st.integers(0, 4)) == 0:
            fields["rollout"] = None
        if draw(st.booleans()):
            fields.setdefault("rollout", {"shadow_percent": 20, "steps_percent": [10, 50]})
        found["m"] = model(version, **fields)
    return found


_DEPLOY = st.tuples(st.just("deploy"), _models())
_STEPS = st.one_of(
    _DEPLOY,
    st.tuples(st.just("wait"), st.integers(1, 4)),
    st.tuples(st.just("promote"), st.just(0)),
    st.tuples(st.just("promote"), st.just(0)),
    st.tuples(st.just("abort"), st.just(0)),
    st.tuples(st.just("registry aborts"), st.just(0)),
    st.tuples(st.just("new driver"), st.just(0)),
    st.tuples(st.just("new registry"), st.just(0)),
    st.tuples(st.just("freeze"), st.booleans()),
    st.tuples(st.just("silence"), st.integers(0, 9)),
    st.tuples(st.just("deploy during a look"), _models()),
    st.tuples(st.just("deploy before a driver's put"), _models()),
    st.tuples(st.just("break canary"), st.integers(1, 3)),
    st.tuples(st.just("break live"), st.integers(1, 3)),
)


class _Watched(Stand):
    """file: the models of the last file that was deployed. before: of each model whose version it
    changes, with the entry's id, the version that is to go on if that fails; None: it leaves."""

    def __init__(self, models: dict[str, Any], sections: dict[str, Any]) -> None:
        self.sections = sections
        self.file: dict[str, Any] = {}
        self.before: dict[tuple[str, int], float | None] = {}
        super().__init__(models)
        self.serve.listed["theirs"] = THEIRS

    def deploy(self, models: dict[str, Any], **sections: Any) -> Deployment:
        put, found = self.serve.put, self.before

        def noted(config: Any) -> None:
            listed = AppList.of({n: a for n, a in by_name(config).items() if n != "theirs"})
            last = listed.control.changes[-1:]
            if last == self.listed.control.changes[-1:]:
                put(config)  # the driver's list, or a lease
                return
            found.clear()
            for name, entry in listed.entries.items():
                if entry.stage not in ("leaving", "over"):
                    old = None if entry.old is None else milliseconds(entry.old.application)
                    found[name, entry.id] = old
            put(config)

        self.serve.put = noted  # type: ignore[method-assign]
        try:
            done = super().deploy(models, **self.sections)
        finally:
            self.serve.put = put  # type: ignore[method-assign]
        self.file = models
        return done

    def tick(self, seconds: int = 1) -> None:
        """The next look meets a fault again, as in `drive`."""
        for _ in range(seconds):
            with contextlib.suppress(ClusterError):
                super().tick()

    def check(self) -> None:
        apps = self.serve.listed
        told = published_scaling(self.listed.control).settings.models
        assert told.keys() == self.running.keys()
        for app in (app for name, app in apps.items() if is_model_app(name)):
            groups = told[model_name(app["name"])].groups
            asked = [each["autoscaling_config"]["max_replicas"] for each in app["deployments"]]
            assert asked == [bounds(0, group.max)["max_replicas"] for group in groups]
        for name, entry in self.listed.entries.items():
            if entry.stage in ("starting", "judged"):
                assert self.running[name] == milliseconds(entry.old.application)
                assert self.running[f"{name}@canary"] == milliseconds(entry.new.application)
        assert apps.get("theirs") == THEIRS

    def do(self, what: str, how: Any) -> None:
        with contextlib.suppress(ClusterError):
            self._do(what, how)
        self.check()

    def _do(self, what: str, how: Any) -> None:
        serve = self.serve
        if what == "deploy":
            self.deploy(how)
        elif what == "wait":
            self.tick(how)
        elif what in ("promote", "abort"):
            self.remote.decide("m", "a bad day" if what == "abort" else "")
        elif what == "registry aborts":
            serve.registry.abort_rollout("m", "it fails")
        elif what == "new driver":
            self.restart_driver()
        elif what == "new registry":
            serve.restart_registry()
        elif what == "freeze":
            self.remote.freeze(how)
        elif what == "silence":
            serve.calls_left = how
            self.tick(2)
            serve.calls_left, serve.silent = None, False
        elif what == "deploy during a look":
            serve.before_rollouts = lambda: self._do("deploy", how)
            self.tick()
            serve.before_rollouts = None
        else:
            self._do_to_replicas(what, how)

    def _do_to_replicas(self, what: str, how: Any) -> None:
        if what == "deploy before a driver's put":
            self.serve.holds = True
            self.tick()
            self.serve.holds = False
            self.deploy(how)
            self.serve.release()
        elif what == "break canary":
            self.serve.broken ^= {("m@canary", how)}
        else:
            self.serve.broken ^= {("m", how)}

    def rest(self) -> None:
        self.tick(_RESTS_S)
        for name, entry in self.listed.entries.items():
            if entry.stage == "judged":
                self.remote.decide(name)
        self.tick(_RESTS_S)


def failed(entry: Entry, number: int) -> bool:
    """Whether this change of the model's version was taken back."""
    aborted = entry.record is not None and entry.record["phase"] == "aborted"
    return entry.id == number and (bool(entry.why) or (aborted and entry.record["id"] == number))


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True)
@given(_models(least=1), st.sampled_from(_SECTIONS), st.lists(_STEPS, min_size=1, max_size=14))
def test_whatever_happens_the_last_files_version_runs_or_the_one_before(first, sections, steps):
    stand = _Watched(first, sections)
    for what, how in steps:
        stand.do(what, how)
    stand.rest()
    entries = stand.listed.entries
    assert all(entry.stage == "over" for entry in entries.values())
    asked = {name: each["options"]["base_ms"] for name, each in stand.file.items()}
    for (name, number), old in stand.before.items():
        stays = entries[name].why and stand.file.get(name, {}).get("optional")
        if failed(entries[name], number) and name in asked and not stays:
            asked[name] = old
    assert stand.running == {name: ms for name, ms in asked.items() if ms is not None}
    puts = stand.serve.puts
    stand.tick(3)
    assert stand.serve.puts == puts
