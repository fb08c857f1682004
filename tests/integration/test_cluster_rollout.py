"""`headrace apply --address` of a model with a `rollout` to a Ray that runs already, under load:
the cluster drives the rollout by itself, also when what drives it is killed, and nobody is failed
meanwhile."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from ray_cluster import Cluster, until
from served import QUICK_ROLLOUT, Load, http, infer_body, model_with_rollout

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster(one_cluster: Cluster) -> Iterator[Cluster]:
    deployed = deploy(one_cluster, model_with_rollout(2))
    assert deployed.returncode == 0, deployed.stderr
    until(lambda: http.get(f"{one_cluster.url}/readyz").status_code == 200, 30)
    yield one_cluster
    one_cluster.clear()


@pytest.fixture
def load(cluster: Cluster) -> Iterator[Load]:
    made = Load(f"{cluster.url}/v2/models/m/infer", 4, {})
    until(lambda: made.answered > 20, 30)
    try:
        yield made
    finally:
        made.stop()


def deploy(cluster: Cluster, model: dict[str, Any], *words: str) -> Any:
    file = cluster.write(cluster.folder / "next", {"m": model})
    return cluster.apply(file, *words)


def served_version(cluster: Cluster) -> str:
    answer = http.post(f"{cluster.url}/v2/models/m/infer", json=infer_body([1]), timeout=30)
    version: str = answer.json()["model_version"]
    return version


def rollout(cluster: Cluster, *words: str) -> Any:
    return cluster.headrace("rollout", *words, "--address", cluster.address)


def last(cluster: Cluster) -> dict[str, Any]:
    shown = rollout(cluster, "status", "m", "--json")
    assert shown.returncode == 0, shown.stderr
    found: dict[str, Any] = json.loads(shown.stdout)["rollouts"][0]
    return found


def canary_went(cluster: Cluster) -> None:
    until(lambda: not cluster.replicas("model-m@canary"), 60)


def test_a_good_version_is_promoted_by_the_cluster(cluster, load):
    before, pids = served_version(cluster), cluster.replicas("model-m:model")
    done = deploy(cluster, model_with_rollout(3))
    assert done.returncode == 0, done.stderr
    assert "m: rollout begins" in done.stdout
    assert "m: promoted" in done.stdout
    assert served_version(cluster) != before
    canary_went(cluster)
    load.stop()
    assert load.failures == []
    assert last(cluster)["phase"] == "promoted"
    assert not cluster.replicas("model-m:model") & pids


def named_actors(cluster: Cluster) -> set[int]:
    return cluster.actors("RegistryActor") | cluster.actors("AutoscalerActor")


def test_another_version_of_the_code_replaces_the_named_actors(cluster, load):
    """The gateway goes on with the code that it has. The tests below show that it follows the new
    registry."""
    before, gateways = named_actors(cluster), cluster.replicas("gateway:")
    imported = cluster.folder / "imported"
    (cluster.folder / "code" / "deployments" / "control" / "__init__.py").write_text(
        f"import os\nopen({str(imported)!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
    )
    again = deploy(cluster, model_with_rollout(3))
    assert again.returncode == 0, again.stderr
    until(lambda: len(named_actors(cluster)) == 2 and not named_actors(cluster) & before, 60)
    assert named_actors(cluster) <= set(map(int, imported.read_text().split()))
    answered = load.answered
    until(lambda: load.answered > answered + 20, 30)
    load.stop()
    assert load.failures == []
    assert cluster.replicas("gateway:") == gateways


@pytest.mark.chaos
def test_a_version_that_fails_is_taken_back_by_itself(cluster, load):
    before, pids = served_version(cluster), cluster.replicas("model-m:model")
    done = deploy(cluster, model_with_rollout(3, fail_ids=[2]))  # which all rows of the load hold
    assert done.returncode == 1
    assert " requests failed" in done.stderr, done.stderr
    canary_went(cluster)
    load.stop()
    assert load.failures == []
    assert (served_version(cluster), cluster.replicas("model-m:model")) == (before, pids)
    assert last(cluster)["phase"] == "aborted"


@pytest.mark.chaos
def test_it_goes_on_when_what_drives_it_is_killed_and_is_aborted_by_hand(cluster, load):
    settled = deploy(cluster, model_with_rollout(3))  # live already, unless this test runs alone
    assert settled.returncode == 0, settled.stderr
    before = served_version(cluster)
    for_ever = {**QUICK_ROLLOUT, "hold_s": 3600}
    begun = deploy(cluster, model_with_rollout(4, for_ever), "--no-wait")
    assert begun.returncode == 0, begun.stderr
    until(lambda: last(cluster)["phase"] == "step", 60)
    (driver,) = cluster.replicas("headrace-control")
    os.kill(driver, signal.SIGKILL)
    aborted = rollout(cluster, "abort", "m", "--reason", "a bad day")
    assert aborted.returncode == 0, aborted.stderr
    until(lambda: last(cluster)["over"], 60)  # by another one
    assert last(cluster)["why"] == "a bad day"
    canary_went(cluster)
    again = deploy(cluster, model_with_rollout(3))
    assert again.returncode == 0, again.stderr
    load.stop()
    assert load.failures == []
    assert served_version(cluster) == before


@pytest.mark.chaos
def test_a_version_that_cannot_start_is_taken_back_and_the_one_before_can_come_back(cluster, load):
    first = served_version(cluster)
    plain = {**model_with_rollout(5), "rollout": None}
    changed = deploy(cluster, plain)
    assert changed.returncode == 0, changed.stderr
    second = served_version(cluster)
    missing = {"runtime": "onnxruntime", "source": "missing.onnx", "replicas": {"num_cpus": 0.1}}
    broken = deploy(cluster, missing)
    assert broken.returncode == 1
    assert "model m cannot start" in broken.stderr
    assert served_version(cluster) == second != first
    back = rollout(cluster, "back", "m")
    assert back.returncode == 0, back.stderr
    assert "the previous version runs again" in back.stdout
    assert served_version(cluster) == first
    load.stop()
    assert load.failures == []


@pytest.mark.chaos
def test_two_deployers_at_once_both_get_their_way_or_are_told(cluster):
    """One changes the model, the other numbers of replicas by hand and the switch."""
    file = cluster.write(cluster.folder / "both", {"m": model_with_rollout(6) | {"rollout": None}})
    with ThreadPoolExecutor() as pool:
        applied = pool.submit(cluster.apply, file)
        frozen = pool.submit(cluster.headrace, "freeze", "on", "--address", cluster.address)
    assert (applied.result().returncode, frozen.result().returncode) == (0, 0), (
        applied.result().stderr, frozen.result().stderr
    )  # fmt: skip
    listed = cluster.rest("GET", "/api/serve/applications/").json()["applications"]
    config = listed["headrace-control"]["deployed_app_config"]
    (block,) = [each["user_config"] for each in config["deployments"]]
    verbs = [each["verb"] for each in block["changes"][-2:]]
    assert sorted(verbs) == ["apply", "freeze"]
    # A file says what is frozen: whichever came last holds.
    assert block["tenants"]["controllers"]["frozen"] is (verbs == ["apply", "freeze"])


def test_a_large_state_is_put_and_restarts_nothing(cluster):
    """Five versions of fifty models; `pytest -rP` shows how long a change of it takes."""
    path = "/api/serve/applications/"
    pids = cluster.replicas("")
    details = cluster.rest("GET", path).json()
    apps = [each["deployed_app_config"] for each in details["applications"].values()]
    (control,) = (app for app in apps if app["name"] == "headrace-control")
    block = control["deployments"][0]["user_config"]
    model = next(app for app in apps if app["name"] == "model-m")
    version = {"application": model, "scaling": {}}
    several = 400_000 // (5 * len(json.dumps(version))) + 1
    block["history"] = {f"m-{n}": [version] * 5 for n in range(several)}
    for turn in range(3):
        block["turn"] = block.get("turn", 0) + 1
        block["revision"] += 1
        began = time.monotonic()
        put = cluster.rest("PUT", path, {"applications": apps})
        took_s = time.monotonic() - began
        assert put.status_code == 200, put.text
        print(f"PUT {turn}: {len(json.dumps(block)) / 1000:.0f} kB in {took_s:.3f} s")
    time.sleep(2)
    assert cluster.replicas("") == pids
