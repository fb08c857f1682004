"""`headrace apply` of a model with a `rollout`, under load: a good version takes over by itself, a
bad one is taken back by itself, and nobody is failed meanwhile. A cluster changes by the same code,
which test_cluster_rollout shows in each run of the tests; this one is run by `make chaos`."""

from __future__ import annotations

import json
import time

import pytest
from served import Server, model_with_rollout

from deployments.control.supervisor import server_files

pytestmark = [pytest.mark.integration, pytest.mark.chaos]


@pytest.fixture(scope="module")
def server(serve) -> Server:
    made: Server = serve({"m": model_with_rollout(2)})
    return made.start()


def served_version(server: Server) -> str:
    version: str = server.infer("m", [1]).json()["model_version"]
    return version


def apply(server: Server, model: dict):
    return server.headrace("apply", str(server.write("new.yaml", {"m": model})))


def last_rollout(server: Server) -> dict:
    asked = server.headrace("rollout", "status", "m", "--port", str(server.port), "--json")
    assert asked.returncode == 0, asked.stderr
    found: dict = json.loads(asked.stdout)["rollouts"][0]
    return found


def canary_went(server: Server) -> None:
    server.until(lambda: not server.replicas("m@canary"), 30)
    status = server.status()
    assert [m["name"] for m in status["models"]] == ["m"]
    assert status["rollouts"] == []


def test_a_good_version_is_promoted_by_itself_and_rolled_back_by_hand(server):
    before, pids = served_version(server), server.replicas("m")
    with server.load("m", clients=8) as load:
        changed = apply(server, model_with_rollout(3))
        assert changed.returncode == 0, changed.stderr
        assert "m: rollout begins" in changed.stdout
        assert "m: promoted" in changed.stdout
        assert served_version(server) != before
        canary_went(server)
        assert last_rollout(server)["phase"] == "promoted"
        assert not server.replicas("m") & pids
        back = server.headrace("rollout", "back", "m", "--port", str(server.port))
        assert back.returncode == 0, back.stderr
        assert served_version(server) == before
    assert load.failures == []
    audit = server_files.audit_file(server.port, server.folder / "state" / "headrace")
    assert '"verb": "promoted"' in audit.read_text()


def test_a_version_that_fails_is_taken_back_by_itself(server):
    before, pids = served_version(server), server.replicas("m")
    with server.load("m", clients=8) as load:  # whose rows all hold a 2
        began = time.monotonic()
        refused = apply(server, model_with_rollout(2, fail_ids=[2]))
        took_s = time.monotonic() - began
    assert refused.returncode == 1
    assert "m: aborted, the live version goes on: " in refused.stderr
    assert " requests failed" in refused.stderr, refused.stderr
    assert load.failures == []
    assert (served_version(server), server.replicas("m")) == (before, pids)
    canary_went(server)
    assert last_rollout(server)["why"] in refused.stderr
    print(f"taken back {took_s:.1f} s after apply began")
