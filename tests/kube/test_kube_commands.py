"""`headrace kube status | why | logs` as a user types them: the real `kubernetes` client against
an API server that stores what a cluster in trouble would.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from deployments.cli import main
from tests.deployments.tools.kube.kube_objects import (
    CLUSTER,
    NAMESPACE,
    THEN,
    Object,
    container_status,
    event,
    mig_limits,
    pod,
    ray_cluster,
    ray_service,
    unschedulable,
    waiting,
)
from tests.deployments.tools.kube.test_pods import BACK_OFF, IMAGE, NOT_FOUND
from tests.deployments.tools.kube.test_release import QUOTA
from tests.kube.api_server import Store, api_server

_PLURALS = {
    "Pod": "pods", "Event": "events", "RayService": "rayservices", "RayCluster": "rayclusters",
}  # fmt: skip
OOM = {"terminated": {"reason": "OOMKilled", "exitCode": 137, "finishedAt": THEN}}
NO_DEVICE = (
    "0/4 nodes are available: 1 Insufficient nvidia.com/mig-1g.18gb, 3 node(s) had untolerated "
    "taint {node-role.kubernetes.io/control-plane: }."
)
WAITS = "Deployment 'model' in application 'model-minilm' has 1 replicas that have taken more than"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    pytest.importorskip("kubernetes")
    with api_server() as (url, store):
        _use(tmp_path, monkeypatch, url)
        for each in (ray_service(_said()), ray_cluster(), *_pods(), *_events()):
            put(store, each)
        yield store


def _use(folder: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    context = {"cluster": "it", "user": "it", "namespace": NAMESPACE}
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "it",
        "clusters": [{"name": "it", "cluster": {"server": url}}],
        "contexts": [{"name": "it", "context": context}],
        "users": [{"name": "it", "user": {}}],
    }  # fmt: skip
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(folder / "kubeconfig"))


def put(store: Store, each: Object) -> None:
    version = each["apiVersion"]
    store.put((version, _PLURALS[each["kind"]], NAMESPACE, each["metadata"]["name"]), each)


def _said() -> Object:
    waits = {"model": {"status": "UPDATING", "message": WAITS}}
    return {
        "gateway": {"status": "RUNNING"},
        "model-minilm": {"status": "DEPLOYING", "serveDeploymentStatuses": waits},
        "model-small": {"status": "RUNNING"},
    }


def _pods() -> list[Object]:
    return [
        pod("head-0", "head"),
        pod("gateway-0", "gateways", status=waiting("ImagePullBackOff", NOT_FOUND)),
        pod("mig-0", spec=mig_limits(), status=unschedulable(NO_DEVICE)),
        pod("cpu-0", "cpu", status=waiting("CrashLoopBackOff", BACK_OFF, lastState=OOM)),
        pod("stranger", labels={"ray.io/cluster": "other", "app.kubernetes.io/instance": "other"}),
    ]  # fmt: skip


def _events() -> list[Object]:
    return [
        event("FailedToCreateWorkerPod", QUOTA, CLUSTER, "RayCluster"),
        event("Created", "Created container ray", "head-0", type="Normal"),
    ]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["kube", *arguments], catch_exceptions=False)


def test_one_table_says_what_runs_where_and_what_the_rest_waits_for(store: Store) -> None:
    answer = run("status")
    assert answer.exit_code == 0
    lines = {line.split()[0]: " ".join(line.split()) for line in answer.output.splitlines()}
    assert lines["head-0"].startswith("head-0 head node-1 - Running yes 0")
    assert f"image: {IMAGE}" in lines["gateway-0"]
    assert "mig-0 mig - 1g.18gb Pending no 0" in lines["mig-0"]
    assert "minilm x1-4 deploying" in lines["mig-0"]
    assert "device: nvidia.com/mig-1g.18gb: not enough on 1 of 4 nodes" in lines["mig-0"]
    assert "crash: OOMKilled at 12Gi" in lines["cpu-0"]
    assert "(1 not there) mig" in lines["(1"]
    assert "quota: exceeded quota: gpu-quota" in lines["(1"]
    assert f"minilm is deploying: {WAITS}" in answer.output
    assert "stranger" not in answer.output


def test_json_has_every_row_application_and_cause(store: Store) -> None:
    store.page = 2  # the client asks for page after page
    answer = json.loads(run("status", "demo", "--json").output)
    assert answer["clusters"] == [CLUSTER]
    causes = {
        (row["pod"] or row["group"]): (row["waits_for"] or {}).get("kind") for row in answer["pods"]
    }
    assert causes == {
        "head-0": None, "gateway-0": "image", "mig-0": "device", "cpu-0": "crash", "mig": "quota",
    }  # fmt: skip
    minilm = answer["applications"][1]
    assert minilm["state"] == "DEPLOYING"
    assert (minilm["min_replicas"], minilm["max_replicas"]) == (1, 4)


def test_why_gives_each_thing_a_paragraph_with_evidence_and_help(store: Store) -> None:
    paragraphs = run("why").output
    assert "pod mig-0 (group mig): device: nvidia.com/mig-1g.18gb" in paragraphs
    assert NO_DEVICE in paragraphs
    assert "headrace plan mig" in paragraphs
    assert "image.tag" in paragraphs
    assert "kubectl describe quota gpu-quota" in paragraphs
    assert "model minilm is deploying" in paragraphs
    assert "pod head-0" not in paragraphs


def test_why_of_a_model_is_about_its_own_pods(store: Store) -> None:
    paragraphs = run("why", "minilm").output
    assert "pod mig-0" in paragraphs
    assert "gateway-0" not in paragraphs


def test_why_of_what_is_well_says_so(store: Store) -> None:
    assert run("why", "head-0").output == "nothing is wrong\n"


def test_why_of_nothing_there_lists_what_is(store: Store) -> None:
    answer = run("why", "minilmm")
    assert answer.exit_code == 1
    assert "must be one of gateway, minilm, small, head" in answer.output


def test_logs_of_a_model_are_its_pods_lines_in_order(store: Store) -> None:
    put(store, pod("mig-1"))
    store.logs["mig-0"] = ["2026-11-22T11:00:01Z first", "2026-11-22T11:00:03Z third"]
    store.logs["mig-1"] = ["2026-11-22T11:00:02Z second", "2026-11-22T11:00:04Z "]
    store.logs["cpu-0"] = ["2026-11-22T11:00:02Z of another"]
    answer = run("logs", "minilm")
    assert answer.output.splitlines() == [
        "mig-0 | first", "mig-1 | second", "mig-0 | third", "mig-1 | ",
    ]  # fmt: skip
    assert run("logs", "minilm", "--tail", "1").output.splitlines() == ["mig-0 | third", "mig-1 | "]


def test_followed_logs_end_with_their_pods(store: Store) -> None:
    store.logs["head-0"] = ["2026-11-22T11:00:01Z a line", "2026-11-22T11:00:02Z the last"]
    answer = run("logs", "head", "--follow", "--since", "10m")
    assert answer.output.splitlines() == ["head-0 | a line", "head-0 | the last"]


def test_previous_logs_are_those_before_the_restart(store: Store) -> None:
    store.logs["cpu-0"] = ["2026-11-22T11:00:02Z after"]
    store.previous_logs["cpu-0"] = ["2026-11-22T11:00:01Z before"]
    assert run("logs", "cpu-0", "--previous").output == "cpu-0 | before\n"


def test_an_init_container_that_fails_is_what_the_log_shows(store: Store) -> None:
    """As the chart's prewarm pods have one, which brings models' files."""
    ended = {"terminated": {"reason": "Error", "exitCode": 1, "finishedAt": THEN}}
    back_off = {"waiting": {"reason": "CrashLoopBackOff", "message": BACK_OFF}}
    status = waiting("PodInitializing") | {
        "initContainerStatuses": [container_status(back_off, "artifacts", lastState=ended)]
    }
    labels = {"ray.io/group": "", "app.kubernetes.io/component": "prewarm"}
    put(store, pod("prewarm-0", "", status=status, labels=labels))
    put(store, pod("prewarm-1", "", labels=labels))
    store.logs["prewarm-0/artifacts"] = ["2026-11-22T11:00:01Z no such model"]
    store.logs["prewarm-1"] = ["2026-11-22T11:00:02Z a line"]
    answer = run("logs", "prewarm")
    assert answer.output.splitlines() == [
        "prewarm-0/artifacts | no such model", "prewarm-1 | a line",
    ]  # fmt: skip
    assert "kubectl logs prewarm-0 -c artifacts --previous" in run("why", "prewarm-0").output


def test_a_pod_without_logs_costs_the_others_nothing(store: Store) -> None:
    put(store, pod("mig-1"))
    store.logs["mig-1"] = ["2026-11-22T11:00:01Z a line"]
    answer = run("logs", "minilm")
    assert answer.exit_code == 0
    assert "mig-1 | a line" in answer.stdout
    assert 'container "ray" in pod "mig-0" is waiting to start' in answer.stderr
    assert run("logs", "mig-0").exit_code == 1


def test_a_time_that_is_none_is_refused_with_what_one_is() -> None:
    answer = run("logs", "head", "--since", "yesterday")
    assert answer.exit_code == 2
    assert "must be like 90s, 10m, 2h or 1d" in answer.output


def test_a_right_that_is_missing_is_named(store: Store) -> None:
    store.forbidden = {("list", "pods")}
    answer = run("status")
    assert answer.exit_code == 1
    assert "you may not list pods in the namespace serving" in answer.output
    assert 'User "jane" cannot list resource "pods"' in answer.output


def test_the_table_goes_without_events_and_says_so(store: Store) -> None:
    store.forbidden = {("list", "events"), ("list", "rayclusters")}
    answer = run("status")
    assert answer.exit_code == 0
    assert "mig-0" in answer.output
    assert "you may not list events" in answer.output
    assert "you may not list rayclusters" in answer.output


def test_logs_that_may_not_be_read_name_the_right(store: Store) -> None:
    store.forbidden = {("get", "pods")}
    answer = run("logs", "head")
    assert answer.exit_code == 1
    assert "you may not get pods/log of head-0" in answer.output


def test_a_namespace_without_a_release_names_the_way_to_another(store: Store) -> None:
    answer = run("status", "-n", "elsewhere")
    assert answer.exit_code == 1
    said = "the namespace elsewhere does not contain a RayService (it contains: none)"
    assert said in answer.output


def test_a_context_that_is_none_is_named(store: Store) -> None:
    answer = run("status", "--context", "nowhere")
    assert answer.exit_code == 1
    assert "has no context nowhere" in answer.output


def test_without_a_kubeconfig_it_says_where_it_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("kubernetes")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    answer = run("status")
    assert answer.exit_code == 1
    assert f"no kubeconfig at {tmp_path / 'nothing'}" in answer.output


def test_a_context_is_no_pods_own_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("kubernetes")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    assert "no kubeconfig at" not in run("status").output
    answer = run("status", "--context", "elsewhere")
    assert answer.exit_code == 1
    assert f"no kubeconfig at {tmp_path / 'nothing'}" in answer.output


def test_a_server_that_does_not_answer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("kubernetes")
    _use(tmp_path, monkeypatch, "http://127.0.0.1:1")
    begun = time.monotonic()
    answer = run("status")
    assert (answer.exit_code, time.monotonic() - begun < 5) == (1, True)
    assert "http://127.0.0.1:1 does not answer" in answer.output


@pytest.mark.parametrize(
    "page", [b"<html>Log in</html>", b"[]", b'"hello"', b"null", b"", b"\xff"], ids=repr
)
def test_a_server_that_is_no_kubernetes_is_told_from_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: bytes
) -> None:
    pytest.importorskip("kubernetes")
    with _always(page) as url:
        _use(tmp_path, monkeypatch, url)
        answer = run("status")
    assert answer.exit_code == 1
    assert (
        f"the answer of {url} is not one of the Kubernetes API; is there a proxy" in answer.output
    )


@contextmanager
def _always(page: bytes) -> Iterator[str]:
    """A server that answers 200 with this, whatever is asked."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@pytest.mark.parametrize("text", ["some notes of mine\n", "- a\n- b\n", "7\n"])
def test_a_file_that_is_no_kubeconfig_is_told_from_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    pytest.importorskip("kubernetes")
    (tmp_path / "notes").write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "notes"))
    answer = run("status")
    assert answer.exit_code == 1
    assert f"{tmp_path / 'notes'} is no kubeconfig: it must be a mapping" in answer.output


def test_without_its_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    answer = run("status")
    assert answer.exit_code == 1
    assert "pip install 'headrace[k8s]'" in answer.output
