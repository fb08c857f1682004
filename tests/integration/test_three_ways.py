"""One file, three ways: `headrace serve` here, `headrace apply --address` to a Ray that runs, and
the list of applications that `headrace build` prints, put by somebody else. Nothing fails on the
way."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from ray_cluster import Cluster, until
from served import Load, Server, http, infer_body, synthetic

from deployments.gateway.tenancy.tenants import new_key

pytestmark = pytest.mark.integration

A, B = synthetic(options={"base_ms": 2}), synthetic(options={"base_ms": 3})
ROWS = ([1], [1, 2, 3], list(range(64)))
KEY, HASH = new_key()


def answers(url: str) -> list[Any]:
    """Of both models to all rows, but for what differs from one request to the next."""
    found = [
        http.post(f"{url}/v2/models/{model}/infer", json=infer_body(rows), timeout=30)
        for model in "ab"
        for rows in ROWS
    ]
    assert {answer.status_code for answer in found} == {200}
    return [answer.json() for answer in found]


@pytest.fixture(scope="module")
def served_here(serve: Callable[..., Server]) -> list[Any]:
    """The answers of `headrace serve`, which has ended when they are there."""
    server = serve({"a": A, "b": B}).start()
    found = answers(server.url)
    assert not server.end()
    return found


@pytest.fixture(scope="module")
def cluster(one_cluster: Cluster) -> Iterator[Cluster]:
    one_cluster.file = one_cluster.write(one_cluster.folder, {"a": A, "b": B})
    yield one_cluster
    one_cluster.clear()


def deploy(cluster: Cluster, models: dict[str, Any] | None = None, **sections: Any) -> str:
    """Prints what changed."""
    file = cluster.write(cluster.folder / "next", models or {"a": A, "b": B}, **sections)
    done = cluster.apply(file)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_deployed_to_a_cluster_it_answers_the_same(cluster, served_here):
    done = cluster.apply(cluster.file)
    assert done.returncode == 0, done.stderr
    until(lambda: http.get(f"{cluster.url}/readyz").status_code == 200, 30)
    assert answers(cluster.url) == served_here
    assert done.stdout.splitlines() == [
        f"{name}: added" for name in ("gateway", "headrace-control", "a", "b")
    ]


def test_what_replicas_wrote_is_shown(cluster):
    done = cluster.headrace("logs", "a", "--address", cluster.address, "--tail", "50")
    assert done.returncode == 0, done.stderr
    found = [
        json.loads(line.partition(" | ")[2]) for line in done.stdout.splitlines() if '"ts"' in line
    ]
    assert any(each["model"] == "a" and "ready" in each["message"] for each in found), done.stdout


def test_another_checkout_restarts_nothing(cluster):
    before = cluster.replicas("")
    file = cluster.write(cluster.folder / "elsewhere", {"a": A, "b": B})
    for command in ("diff", "apply"):
        done = cluster.headrace(command, str(file), "--address", cluster.address)
        assert (done.returncode, done.stdout) == (0, "nothing changed\n"), done.stderr
    assert cluster.replicas("") == before


def test_an_upgrade_under_load_loses_nothing(cluster):
    others = cluster.replicas("gateway") | cluster.replicas("model-b:model")
    old = cluster.replicas("model-a:model")
    load = Load(f"{cluster.url}/v2/models/a/infer", 4, {})
    try:
        until(lambda: load.answered > 20, 30)
        said = deploy(cluster, {"a": {**A, "options": {"base_ms": 5}}, "b": B})
        assert said == "a: restarted\n  settings.options.base_ms: 2 -> 5\n"
        until(lambda: not cluster.replicas("model-a:model") & old, 60)
        more = load.answered + 20
        until(lambda: load.answered > more, 30)
    finally:
        load.stop()
    assert load.failures == []
    assert cluster.replicas("gateway") | cluster.replicas("model-b:model") == others


@pytest.mark.chaos
def test_an_operator_asks_a_gateway_and_freezes_the_controllers(cluster):
    deploy(cluster, operators={"keys": [HASH]})
    cluster.environ["HEADRACE_OPERATOR_KEY"] = KEY

    def status() -> str:
        return str(cluster.headrace("status", "--url", cluster.url).stdout)

    until(lambda: re.search(r"^a +\w+ +ready ", status(), re.MULTILINE), 30)
    frozen = cluster.headrace("freeze", "on", "--url", cluster.url)
    assert (frozen.returncode, frozen.stdout) == (0, "controllers: frozen\n"), frozen.stderr
    until(lambda: "controllers are frozen" in status(), 30)
    assert cluster.headrace("freeze", "off", "--address", cluster.address).returncode == 0
    until(lambda: "controllers are frozen" not in status(), 30)


def test_the_printed_list_put_by_somebody_else_is_the_same(cluster, served_here):
    deploy(cluster)
    before = cluster.replicas("gateway") | cluster.replicas("model")
    built = cluster.headrace("build", str(cluster.file))
    put = cluster.rest("PUT", "/api/serve/applications/", yaml.safe_load(built.stdout))
    assert put.status_code == 200, put.text
    assert answers(cluster.url) == served_here
    assert cluster.replicas("gateway") | cluster.replicas("model") == before


def test_a_model_that_is_gone_is_404_and_the_other_stays(cluster):
    load = Load(f"{cluster.url}/v2/models/a/infer", 2, {})
    try:
        said = deploy(cluster, {"a": A}).splitlines()
        told = [line for line in said if not line.startswith("  ")]
        # The list before was somebody else's, and named no version of the code.
        assert told == ["headrace-control: restarted", "b: removed"]
        url = f"{cluster.url}/v2/models/b/infer"
        until(lambda: http.post(url, json=infer_body([1])).status_code == 404, 30)
        until(lambda: load.answered > 20, 30)
    finally:
        load.stop()
    assert load.failures == []
    assert http.get(f"{cluster.url}/readyz").status_code == 200


def test_what_is_stopped_is_gone_and_the_cluster_stays(cluster):
    done = cluster.headrace("stop", "--address", cluster.address)
    assert done.returncode == 0, done.stderr
    assert cluster.rest("GET", "/api/serve/applications/").json()["applications"] == {}
    again = cluster.headrace("stop", "--address", cluster.address)
    assert (again.returncode, again.stderr) == (1, "no application of Headrace runs there\n")
