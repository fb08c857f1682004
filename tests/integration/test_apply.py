"""`headrace apply` under load: what changes is changed, the rest is not touched, nothing fails."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from served import Server, http, patient, synthetic, total

from deployments.control.dashboard import RayDashboard, ServeRest, token_of
from deployments.control.supervisor import server_files
from deployments.gateway.tenancy.tenants import new_key

pytestmark = pytest.mark.integration

A = synthetic(options={"base_ms": 2})
B = synthetic(options={"base_ms": 3})
C = synthetic(options={"base_ms": 4})
BROKEN = {"runtime": "onnxruntime", "source": "rubbish.onnx"}


@pytest.fixture(scope="module")
def server(serve) -> Server:
    made: Server = serve({"a": A, "b": B})
    (made.folder / "rubbish.onnx").write_bytes(b"\x3a\x04\x5a\x02\x0a\x05")  # an input is cut off
    return made.start()


def apply(server: Server, models, **sections):
    return server.headrace("apply", str(server.write("new.yaml", models, **sections)))


def version(server: Server, model: str) -> str:
    answer: str = server.infer(model, [1, 2]).json()["model_version"]
    return answer


def version_by_numbers(server: Server, model: str) -> str:
    row = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}
    answer = http.post(f"{server.url}/v2/models/{model}/infer", json={"inputs": [row]})
    assert answer.status_code == 200, answer.text
    found: str = answer.json()["model_version"]
    return found


def test_models_come_change_and_go_without_a_failure_of_them_or_the_others(server):
    pids, old = server.replicas("a"), server.replicas("b")
    before = version(server, "b")
    assert server.infer("c", [1]).status_code == 404
    with server.load("a") as load, server.load("b") as changing:
        added = apply(server, {"a": A, "b": B, "c": C})
        assert (added.returncode, added.stdout) == (0, "c: added\n"), added.stderr
        assert total(server.infer("c", [5, 6])) == 11

        faster = {**B, "options": {"base_ms": 1}}
        changed = apply(server, {"a": A, "b": faster})
        assert (changed.returncode, changed.stdout.splitlines()) == (
            0, ["b: restarted", "  settings.options.base_ms: 3 -> 1", "c: removed"]
        ), changed.stderr  # fmt: skip
        assert version(server, "b") != before
        server.until(lambda: server.infer("c", [1]).status_code == 404, 10)
        server.until(lambda: not server.replicas("b") & old, 10)
        changing.goes_on(server)

        unchanged = apply(server, {"a": A, "b": faster})
        assert (unchanged.returncode, unchanged.stdout) == (0, "nothing changed\n")
        server.until(lambda: load.answered > 100, 10)
    assert load.failures == changing.failures == []
    assert load.answered > 100
    assert server.replicas("a") == pids


def test_a_file_with_a_mistake_changes_nothing_and_says_why(server):
    pids = server.replicas("a") | server.replicas("b")
    refused = apply(server, {"a": {"runtime": "synthetic", "colour": "blue"}})
    assert refused.returncode == 2
    assert "models.a.colour" in refused.stderr
    assert server.replicas("a") | server.replicas("b") == pids
    assert server.infer("b", [1]).status_code == 200


def test_gateway_settings_are_refused_while_it_runs(server):
    gateway = {**server.gateway, "drain_s": 7}
    refused = apply(server, {"a": A, "b": B}, gateway=gateway)
    assert refused.returncode == 1
    assert "gateway settings cannot change" in refused.stderr


def test_a_new_model_that_cannot_load_is_left_out_and_harms_nobody(server):
    pids = server.replicas("a")
    with server.load("a") as load:
        began = time.monotonic()
        refused = apply(server, {"a": A, "b": B, "c": BROKEN})
        assert time.monotonic() - began < patient(120)  # not the whole of start_timeout_s
    assert refused.returncode == 1
    assert "model c cannot start and was left out: " in refused.stderr
    assert "rubbish.onnx" in refused.stderr
    assert load.failures == []
    assert server.replicas("a") == pids
    assert [m["name"] for m in server.status()["models"]] == ["a", "b"]
    assert server.infer("c", [1]).status_code == 404


@pytest.mark.chaos
def test_an_optional_model_that_cannot_load_holds_nothing_up(server):
    added = apply(server, {"a": A, "b": B, "c": BROKEN | {"optional": True}})
    assert added.returncode == 0, added.stderr
    said, why = added.stdout.splitlines()
    assert (said, "rubbish.onnx" in why) == ("c: added", True), why
    assert why.startswith("c is optional and cannot start: ")
    server.until(lambda: server.model_status("c")["state"] == "failed", 60)
    # What KubeRay waits for, and what callers get.
    state = server_files.find(server.port, server_files.state_folder(server.environ))
    (pid,) = server.replicas("a")
    token = token_of(psutil.Process(pid).environ())
    serve = ServeRest(RayDashboard(state.dashboard_url, token))
    assert serve.details()["applications"]["model-c"]["status"] == "RUNNING"
    refused = server.infer("c", [1])
    assert (refused.status_code, "rubbish.onnx" in refused.text) == (503, True), refused.text
    assert "rubbish.onnx" in server.model_status("c")["reason"]
    ready = http.get(f"{server.url}/readyz")
    assert (ready.status_code, list(ready.json()["waiting"])) == (200, ["c"])
    gone = apply(server, {"a": A, "b": B})
    assert (gone.returncode, gone.stdout) == (0, "c: removed\n"), gone.stderr


def test_a_change_that_cannot_load_leaves_the_model_as_it_was(server):
    pids, before = server.replicas("b"), version(server, "b")
    with server.load("b") as load:
        refused = apply(server, {"a": A, "b": BROKEN})
    assert refused.returncode == 1
    assert "model b cannot start and goes on as it was: " in refused.stderr
    assert load.failures == []
    assert version(server, "b") == before
    # The refused version's process may take its time to go.
    server.until(lambda: server.replicas("b") == pids, 30)


@pytest.mark.chaos
def test_a_version_that_costs_many_times_as_much_leaves_the_old_one_serving(server):
    server.until(lambda: len(server.replicas("b")) == 1, 30)  # those of the test before have ended
    pids, before = server.replicas("b"), version(server, "b")
    slow = {**B, "options": {"base_ms": 100}, "profile_s": 0.3}
    with server.load("b") as load:
        refused = apply(server, {"a": A, "b": slow})
        load.goes_on(server)
    assert refused.returncode == 1
    said = refused.stderr.replace("\n", " ")
    assert "model b cannot start and goes on as it was: a batch of length " in said
    assert "more than 5 times as long (measured 3 times; accept.max_cost_ratio)" in said
    assert load.failures == []
    assert version(server, "b") == before
    server.until(lambda: server.replicas("b") == pids, 30)


def test_controllers_freeze_and_learn_again_while_requests_go_on(server):
    pids, port = server.replicas("a"), str(server.port)
    with server.load("a") as load:
        frozen = server.headrace("freeze", "on", "--port", port)
        assert (frozen.returncode, frozen.stdout) == (0, "controllers: frozen\n"), frozen.stderr
        server.until(lambda: server.status()["frozen"], 10)
        page = http.get(f"{server.url}/metrics").text
        (line,) = [s for s in page.splitlines() if s.startswith("headrace_controllers_frozen{")]
        assert line.endswith(" 1.0")

        applied = apply(server, {"a": A, "b": B})
        assert "tenants.controllers.frozen: True -> False" in applied.stdout, applied.stderr
        server.until(lambda: not server.status()["frozen"], 10)
        server.until(lambda: load.answered > 100, 10)
    assert load.failures == []
    assert load.answered > 100
    assert server.replicas("a") == pids


def test_a_version_that_does_not_agree_with_its_reference_leaves_the_old_one_serving(server):
    whole, half = (scaled_onnx(server.folder / f"{name}.onnx", name) for name in ("whole", "half"))
    base = {"runtime": "onnxruntime", "task": "tensors", "profile_s": 0}
    accepted = {**base, "source": whole.name, "accept": {"max_abs": 0.01}}
    added = apply(server, {"a": A, "b": B, "c": accepted})
    assert (added.returncode, added.stdout) == (0, "c: added\n"), added.stderr
    before = version_by_numbers(server, "c")

    spoilt = {**base, "source": half.name, "accept": {"max_abs": 0.01, "artifact": whole.name}}
    spoilt["allow_non_finite"] = True
    refused = apply(server, {"a": A, "b": B, "c": spoilt})
    assert refused.returncode == 1
    said = "model c cannot start and goes on as it was: not accepted against onnxruntime fp32: "
    assert f"{said}output y: max_abs is inf, allowed at most 0.01" in refused.stderr
    assert version_by_numbers(server, "c") == before


def test_tenants_are_in_force_within_seconds_and_a_spoilt_file_changes_nothing(server):
    key, hashed = new_key()
    pids = server.replicas("a")
    applied = apply(server, {"a": A, "b": B}, tenants={"acme": {"keys": [hashed]}})
    assert applied.returncode == 0, applied.stderr
    assert "tenants.tenants.acme" in applied.stdout
    server.until(lambda: server.infer("a", [1]).status_code == 401, 5)
    bearer = {"authorization": f"Bearer {key}"}
    assert server.infer("a", [1], headers=bearer).status_code == 200

    refused = apply(server, {"a": A, "b": B}, tenants={"acme": {"weight": "heavy"}})
    assert refused.returncode == 2
    assert server.infer("a", [1], headers=bearer).status_code == 200
    assert server.infer("a", [1]).status_code == 401
    assert http.get(f"{server.url}/readyz").status_code == 200

    opened = apply(server, {"a": A, "b": B})  # without the keys
    assert opened.returncode == 1
    assert "gateway.auth: open" in opened.stderr
    assert server.infer("a", [1]).status_code == 401

    apply(server, {"a": A, "b": B}, tenants={"default": {}, "acme": {"keys": []}})
    server.until(lambda: server.infer("a", [1]).status_code == 200, 5)
    assert server.infer("a", [1], headers=bearer).status_code == 401
    assert server.replicas("a") == pids


@pytest.mark.chaos
def test_a_key_is_revoked_while_the_registry_hangs_and_an_apply_waits_for_it(server):
    (leaked, leaked_hash), (kept, kept_hash) = new_key(), new_key()
    tenants = {"acme": {"keys": [{"id": "leaked", "hash": leaked_hash}, kept_hash]}}
    applied = apply(server, {"a": A, "b": B}, tenants=tenants)
    assert applied.returncode == 0, applied.stderr
    bearers = [{"authorization": f"Bearer {key}"} for key in (leaked, kept)]
    server.until(lambda: server.infer("a", [1]).status_code == 401, 5)
    assert server.infer("a", [1], headers=bearers[0]).status_code == 200
    (registry,) = server.named("ray::RegistryActor")
    hung = [registry, *registry.children()]  # whose watchdog would end it
    file = server.write("more.yaml", {"a": A, "b": B, "c": C}, tenants=tenants)
    with ThreadPoolExecutor(1) as pool:
        for process in hung:
            process.suspend()
        try:
            applying = pool.submit(server.headrace, "apply", str(file))
            server.until(lambda: bool(server.named("ray::ServeReplica:model-c")), 60)
            revoked = server.headrace("key", "revoke", "leaked")
            began = time.monotonic()
            assert revoked.returncode == 0, revoked.stderr
            server.until(lambda: server.infer("a", [1], headers=bearers[0]).status_code == 401, 2)
            print(f"refused {time.monotonic() - began:.2f} s after `headrace key revoke` returned")
            assert not applying.done()
            assert server.infer("a", [1], headers=bearers[1]).status_code == 200
        finally:
            for process in hung:
                process.resume()
        finished = applying.result(90)
    assert finished.returncode == 0, finished.stderr  # of a file that has the key yet
    assert server.infer("a", [1], headers=bearers[0]).status_code == 401
    assert server.infer("a", [1], headers=bearers[1]).status_code == 200
    listed = server.headrace("key", "list").stdout.splitlines()
    assert ["leaked", "tenant", "acme", "revoked", "never", "all"] in [o.split() for o in listed]
    lines = [json.loads(line) for line in audit_file(server).read_text().splitlines()]
    (line,) = [each for each in lines if each["verb"] == "key revoke"]
    assert (line["object"], line["outcome"]) == ("key leaked", "done")
    assert {"serve", "apply", "take up"} <= {each["verb"] for each in lines}
    used = {(each["actor"], each["object"]) for each in lines if each["verb"] == "use"}
    assert ("key leaked", "tenant acme") in used
    assert leaked not in audit_file(server).read_text()


def audit_file(server: Server) -> Path:
    return server_files.audit_file(server.port, server_files.state_folder(server.environ))


def scaled_onnx(file: Path, kind: str) -> Path:
    """`x` [-1, 2] → `y`: times a million and back; `half` keeps what is between in float16, which
    ends at 65,504."""
    from onnx import TensorProto, helper

    tensor = helper.make_tensor_value_info
    x, y = (tensor(name, TensorProto.FLOAT, ["rows", 2]) for name in "xy")
    factors = [
        helper.make_tensor(name, TensorProto.FLOAT, [], [value])
        for name, value in (("up", 1e6), ("down", 1e-6))
    ]
    between = TensorProto.FLOAT16 if kind == "half" else TensorProto.DOUBLE
    nodes = [
        helper.make_node("Mul", ["x", "up"], ["large"]),
        helper.make_node("Cast", ["large"], ["kept"], to=between),
        helper.make_node("Cast", ["kept"], ["again"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["again", "down"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "scaled", [x], [y], factors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    file.write_bytes(model.SerializeToString())
    return file
