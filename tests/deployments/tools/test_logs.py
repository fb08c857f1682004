"""`headrace logs`: of a server here from its file, of a cluster from its dashboard."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from deployments import cli
from deployments.control.dashboard import RayDashboard
from deployments.control.supervisor import server_files
from deployments.control.supervisor.server_files import ServerLog
from deployments.tools import logs
from deployments.tools.where import Where

PORT = 8000
HEAD = "http://head:8265"


def line(second: int, message: str, model: str = "m") -> str:
    fields = {"model": model} if model else {}
    return json.dumps({"ts": f"2026-01-01T00:00:{second:02}.000Z", "message": message, **fields})


def run(*words: str) -> Result:
    return CliRunner().invoke(cli.main, ["logs", *words])


def messages(done: Result) -> list[str]:
    assert done.exit_code == 0, done.output
    return [json.loads(each.partition("{")[1] + each.partition("{")[2])["message"]
            for each in done.stdout.splitlines()]  # fmt: skip


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the log of the servers on the port."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return server_files.log_file(PORT, server_files.state_folder())


@pytest.fixture
def write(path: Path) -> Callable[[str], None]:
    return ServerLog(path).write


# ---- one request's decisions ---------------------------------------------------------------------

FIRST = {
    "request_id": "r1",
    "model": "m",
    "event": "arrive",
    "decision": "queued",
    "reason": "full",
}
LAST = {"request_id": "r1", "model": "m", "event": "end", "decision": "200 ok", "suppressed": 3}


def decision(second: int, fields: dict[str, Any]) -> str:
    return json.dumps({"ts": f"2026-01-01T00:00:{second:02}.000Z", "message": "decision", **fields})


def why(request_id: str) -> Result:
    return CliRunner().invoke(cli.main, ["why", request_id, "--port", str(PORT)])


def test_the_decisions_about_one_request_are_printed_in_order(write) -> None:
    other = {**FIRST, "request_id": "r12"}
    for each in (decision(2, LAST), line(1, "r1"), decision(1, FIRST), decision(1, other)):
        write(each)
    done = why("r1")
    assert done.exit_code == 0
    assert [each.split() for each in done.stdout.splitlines()] == [
        ["request", "r1,", "from", "2026-01-01T00:00:01.000Z"],
        ["0", "ms", "arrive", "m:", "queued"],
        ["full"],
        ["1000", "ms", "end", "m:", "200", "ok"],
        ["(3", "lines", "of", "all", "requests", "were", "left", "out", "before)"],
    ]


def test_a_log_that_is_written_as_text_is_read_too(write) -> None:
    fields = "model=m request_id=r1 event=dispatch decision=sent to m-0 reason=after 2.0 ms in the"
    write(f"2026-01-01T00:00:01.000Z info headrace.decisions decision {fields} queue: 3 rows")
    done = why("r1")
    assert "m: sent to m-0\n" in done.stdout
    assert "after 2.0 ms in the queue: 3 rows\n" in done.stdout


def test_a_request_of_which_nothing_was_logged_says_what_to_set(write) -> None:
    write(decision(1, FIRST))
    done = why("other")
    assert done.exit_code == 1
    assert "gateway.log.decisions" in done.stderr


# ---- a server here ------------------------------------------------------------------------------


def test_lines_of_the_model_and_its_canary_are_printed_and_no_others(write) -> None:
    for each in (line(1, "a"), line(2, "b", "other"), line(3, "c", "m@canary"), line(4, "d", "")):
        write(each)
    assert messages(run("m", "--port", str(PORT))) == ["a", "c"]


def test_the_last_lines_and_the_youngest(write) -> None:
    write(line(1, "old"))
    young = json.dumps({"ts": logs._ago(60), "message": "young", "model": "m"})
    for each in (young, young.replace("young", "youngest")):
        write(each)
    port = ("m", "--port", str(PORT))
    assert messages(run(*port, "--tail", "1")) == ["youngest"]
    assert messages(run(*port, "--since", "5m")) == ["young", "youngest"]


def test_lines_in_text_are_found_and_what_belongs_to_one_comes_with_it(write) -> None:
    stamp = "2026-01-01T00:00:01.000Z error headrace.replica"
    for each in (f"{stamp} failed model=m", "Traceback:", f"{stamp} well model=other", "more"):
        write(each)
    done = run("m", "--port", str(PORT))
    assert done.stdout.splitlines() == [f"{stamp} failed model=m", "Traceback:"]


def test_a_full_log_goes_on_in_another_and_both_are_read(path: Path) -> None:
    log = ServerLog(path, max_bytes=200)
    for number in range(9):
        log.write(line(number, str(number)))
    kept = messages(run("m", "--port", str(PORT)))
    assert kept == [str(n) for n in range(9)][-len(kept) :]
    assert 3 <= len(kept) <= 6


def test_what_is_written_later_is_followed_also_into_the_next_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ServerLog(path, max_bytes=200)
    log.write(line(0, "0"))
    later = iter(range(1, 8))

    def pause(seconds: float) -> None:
        log.write(line(number, str(number))) if (number := next(later, 0)) else interrupt()

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(logs.time, "sleep", pause)
    monkeypatch.setattr(logs, "interleaved", lambda streams, follow: itertools.chain(*streams))
    done = run("m", "--port", str(PORT), "--follow")
    assert done.exit_code == 130
    assert [json.loads(each)["message"] for each in done.stdout.splitlines()] == list("01234567")


def test_no_log_and_no_line_are_said(write, path: Path) -> None:
    assert run("m").stderr == "no server runs here; start one with `headrace serve`\n"
    gone = run("m", "--port", "1")
    assert (gone.exit_code, "no server on port 1 has written a log" in gone.stderr) == (1, True)
    write(line(1, "a", "other"))
    none = run("m", "--port", str(PORT))
    assert (none.exit_code, none.stderr) == (1, "there is no line about m\n")


# ---- a cluster ----------------------------------------------------------------------------------


def app(*replicas: str) -> dict[str, Any]:
    found = [{"replica_id": each, "actor_id": f"actor-{each}"} for each in replicas]
    return {"deployments": {"model": {"replicas": found}}}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What each actor of a cluster's dashboard wrote; models `m` and `other`."""
    written: dict[str, list[str]] = {}
    apps = {"model-m": app("one", "two"), "model-m@canary": app("new"), "model-other": app("x")}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/api/serve/applications/":
            return httpx.Response(200, json={"applications": apps})
        assert request.url.path in ("/api/v0/logs/file", "/api/v0/logs/stream")
        actor, tail = request.url.params["actor_id"], int(request.url.params["lines"])
        if actor not in written:
            return httpx.Response(500, text=f"Actor ID {actor} not found.")
        lines = written[actor] if tail < 0 else written[actor][-tail:]
        return httpx.Response(200, text="\n".join(lines))

    made = RayDashboard(HEAD, None, transport=httpx.MockTransport(answer))
    monkeypatch.setattr(Where, "dashboard", lambda where: made)
    return written


def test_the_lines_of_all_replicas_are_in_the_order_of_their_times(cluster) -> None:
    cluster["actor-one"] = [line(1, "a"), line(4, "d")]
    cluster["actor-two"] = [line(2, "b")]
    cluster["actor-new"] = [line(3, "c")]
    done = run("m", "--address", HEAD)
    assert messages(done) == ["a", "b", "c", "d"]
    assert [each.partition(" | ")[0] for each in done.stdout.splitlines()] == [
        "one", "two", "new", "one"
    ]  # fmt: skip
    assert messages(run("m", "--address", HEAD, "--tail", "1")) == ["b", "c", "d"]
    assert sorted(messages(run("m", "--address", HEAD, "--follow"))) == ["a", "b", "c", "d"]


def test_a_replica_whose_log_is_gone_costs_only_its_own(cluster) -> None:
    cluster["actor-one"], cluster["actor-new"] = [line(1, "a")], []
    done = run("m", "--address", HEAD)
    assert messages(done) == ["a"]
    assert "two: Ray refused /api/v0/logs/file (500): Actor ID actor-two not found." in done.stderr


def test_a_model_that_the_cluster_has_not_is_said_with_those_it_has(cluster) -> None:
    done = run("nobody", "--address", HEAD)
    assert (done.exit_code, done.stderr) == (
        1,
        "nobody is no model of that cluster; must be one of: m, other\n",
    )
