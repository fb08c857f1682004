"""Where a cluster's dashboard is found, what it is asked, and what is said if it is silent."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest

from deployments.control.dashboard import (
    ClusterError,
    JobFailed,
    RayDashboard,
    RayJobs,
    ServeRest,
    address_of,
    token_of,
)


def test_the_address_is_the_one_given_or_rays_own() -> None:
    assert address_of("http://head:8265/", {}) == "http://head:8265"
    assert address_of(None, {"RAY_API_SERVER_ADDRESS": "http://other:1"}) == "http://other:1"
    assert address_of(None, {}) == "http://127.0.0.1:8265"
    with pytest.raises(ClusterError, match="'ray://head:10001' is no address of a Ray dashboard"):
        address_of("ray://head:10001", {})


def test_the_token_is_found_where_ray_looks(tmp_path: Path) -> None:
    assert token_of({"RAY_AUTH_TOKEN": " abc "}, tmp_path) == "abc"
    assert token_of({}, tmp_path) is None
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("home\n")
    assert token_of({}, tmp_path) == "home"
    (tmp_path / "file").write_text("named")
    assert token_of({"RAY_AUTH_TOKEN_PATH": str(tmp_path / "file")}, tmp_path) == "named"
    with pytest.raises(ClusterError, match="RAY_AUTH_TOKEN_PATH"):
        token_of({"RAY_AUTH_TOKEN_PATH": str(tmp_path / "none")}, tmp_path)


class FakeDashboard(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        known = self.headers.get("Authorization") == "Bearer right"
        body = b'{"applications": {}}' if known else b"no"
        self.send_response(200 if known else 401)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(400)
        self.send_header("content-length", "9")
        self.end_headers()
        self.wfile.write(b"bad field")

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), FakeDashboard)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_refusal_says_what_to_do(address: str) -> None:
    assert ServeRest(RayDashboard(address, "right")).details() == {"applications": {}}
    with pytest.raises(ClusterError, match=r"wants the cluster's token: set .RAY_AUTH_TOKEN"):
        ServeRest(RayDashboard(address, None)).details()
    with pytest.raises(ClusterError, match=r"Ray refused /api/serve/app.* .400.: bad field"):
        ServeRest(RayDashboard(address, "right")).put({"applications": []})
    with pytest.raises(ClusterError, match=r"no Ray dashboard answers at http://127.0.0.1:1 "):
        ServeRest(RayDashboard("http://127.0.0.1:1", None)).details()


class Cluster:
    """A cluster that runs one job: `states` are what it is in, one a question."""

    def __init__(self, states: list[str], wants_token: str | None = None, output: str = "") -> None:
        self.states, self.wants_token, self.output = states, wants_token, output
        self.asked: list[tuple[str, str]] = []
        self.entrypoint = ""

    def __call__(self, request: httpx.Request) -> httpx.Response:
        sent = request.headers.get("authorization", "")
        if self.wants_token and sent != f"Bearer {self.wants_token}":
            return httpx.Response(403 if sent else 401, text="Unauthorized")
        self.asked.append((request.method, request.url.path))
        if (request.method, request.url.path) == ("POST", "/api/jobs/"):
            self.entrypoint = json.loads(request.content)["entrypoint"]
            return httpx.Response(200, json={"submission_id": "job-1"})
        if request.url.path == "/api/jobs/job-1/logs":
            return httpx.Response(200, json={"logs": self.output})
        if (request.method, request.url.path) == ("GET", "/api/jobs/job-1"):
            state = self.states[0] if len(self.states) == 1 else self.states.pop(0)
            return httpx.Response(200, json={"status": state, "message": f"it {state}"})
        return httpx.Response(200, json=[])

    def reached(self, with_token: str | None = None) -> RayJobs:
        transport = httpx.MockTransport(self)
        dashboard = RayDashboard("http://head:8265", with_token, transport=transport)
        return RayJobs(dashboard, pause=lambda seconds: None)


def test_a_job_is_waited_for_and_leaves_nothing_behind():
    cluster = Cluster(["PENDING", "RUNNING", "SUCCEEDED"], output="said\n")
    with cluster.reached() as jobs:
        assert jobs.run("echo said", 10) == "said\n"
    assert cluster.entrypoint == "echo said"
    assert cluster.asked[-1] == ("DELETE", "/api/jobs/job-1")


def test_a_job_that_failed_tells_what_it_printed():
    with (
        Cluster(["FAILED"], output="no such module").reached() as jobs,
        pytest.raises(JobFailed, match="it FAILED") as failed,
    ):
        jobs.run("echo", 10)
    assert failed.value.output == "no such module"


def test_a_job_that_does_not_end_is_stopped():
    cluster = Cluster(["RUNNING"])
    with cluster.reached() as jobs, pytest.raises(JobFailed, match="not done within 3 s"):
        jobs.run("sleep 1000", 3)
    assert cluster.asked[-1] == ("POST", "/api/jobs/job-1/stop")


@pytest.mark.parametrize("sent", [None, "wrong"])
def test_a_cluster_that_wants_a_token_says_where_it_is_looked_for(sent):
    with (
        Cluster(["SUCCEEDED"], wants_token="right").reached(sent) as jobs,
        pytest.raises(ClusterError, match="wants the cluster's token"),
    ):
        jobs.run("echo", 10)


def test_a_cluster_is_open_when_it_takes_nobodys_token():
    with Cluster([], wants_token="right").reached("right") as closed:
        assert not closed.lets_anybody_in()
    with Cluster([]).reached("right") as open_:
        assert open_.lets_anybody_in()


def test_nobody_at_the_address_is_said_with_the_way_to_another():
    with (
        RayJobs(RayDashboard("http://127.0.0.1:1", None)) as jobs,
        pytest.raises(ClusterError, match=r"answers at http://127\.0\.0\.1:1 .*--address"),
    ):
        jobs.run("echo", 10)


def test_an_error_of_the_dashboard_is_told():
    def broken(request: httpx.Request) -> httpx.Response:
        return httpx.Response(500, text="no head node agent")

    with (
        RayJobs(RayDashboard("http://head", None, transport=httpx.MockTransport(broken))) as jobs,
        pytest.raises(ClusterError, match=r"Ray refused /api/jobs/ \(500\): no head node agent"),
    ):
        jobs.run("echo", 10)
