from __future__ import annotations

import json

import httpx
import pytest

from deployments.control.dashboard import ClusterError, Dashboard, JobFailed, RayJobs


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
        dashboard = Dashboard("http://head:8265", with_token, transport=transport)
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
        RayJobs(Dashboard("http://127.0.0.1:1", None)) as jobs,
        pytest.raises(ClusterError, match=r"answers at http://127\.0\.0\.1:1 .*--address"),
    ):
        jobs.run("echo", 10)


def test_an_error_of_the_dashboard_is_told():
    def broken(request: httpx.Request) -> httpx.Response:
        return httpx.Response(500, text="no head node agent")

    with (
        RayJobs(Dashboard("http://head", None, transport=httpx.MockTransport(broken))) as jobs,
        pytest.raises(ClusterError, match=r"Ray refused /api/jobs/ \(500\): no head node agent"),
    ):
        jobs.run("echo", 10)
