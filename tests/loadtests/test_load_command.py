"""`headrace load`: is a scenario played and kept, and is what is wrong told in a line?"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from loadtests.benches.server import free_port
from loadtests.command import main
from loadtests.results.record import Client, Record, load
from loadtests.run import PreparedRun

SCENARIO = """
duration_s: 1
arrivals: {rate: 200}
lengths: {fixed: 8}
tenants: {a: {share: 3}, b: {retry: {attempts: 2}}}
"""
PLAY = [sys.executable, "-m", "loadtests"]
EMBED = ("--protocol", "openai-embeddings", "--model", "m")


@pytest.fixture
def scenario(tmp_path) -> Path:
    file = tmp_path / "some.yaml"
    file.write_text(SCENARIO)
    return file


@contextmanager
def server():
    port = free_port()
    command = [sys.executable, "-m", "loadtests.benches.trivial_server", "--port", str(port)]
    running = subprocess.Popen([*command, "--seconds", "60"])
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        running.terminate()
        running.wait()


def played(scenario: Path, url: str, *more: str):
    path = scenario.with_suffix(".json")
    limit = ("--slo-ms", "5000")
    command = [*PLAY, str(scenario), "--url", url, *EMBED, *limit, "--json", str(path), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done, load(path)


@pytest.mark.integration
@pytest.mark.parametrize("processes", [1, 2])
def test_scenario_is_played_and_kept_whole(scenario, processes):
    page = scenario.with_suffix(".html")
    with server() as url:
        wait_for(url)
        more = ("--processes", str(processes), "--html", str(page))
        done, record = played(scenario, url, *more)
    assert "| a " in done.stdout
    assert record.client.processes == processes
    assert record.total().offered == record.total().latency.total
    assert record.total().offered == pytest.approx(200, rel=0.3)
    assert record.batch_sizes == {8: record.total().offered}
    assert "<html" in page.read_text()
    assert done.returncode == (1 if record.client.behind else 0)


@pytest.mark.integration
def test_interrupted_run_keeps_what_was_seen(scenario):
    path = scenario.with_suffix(".json")
    more = ("--slo-ms", "5000", "--set", "duration_s=600", "--json", str(path), "--processes", "2")
    with server() as url:
        wait_for(url)
        running = subprocess.Popen([*PLAY, str(scenario), "--url", url, *EMBED, *more])
        try:
            wait_until_it_plays(running.pid, int(url.rpartition(":")[2]))
            time.sleep(3.0)
            os.kill(running.pid, signal.SIGINT)
            assert running.wait(timeout=120) in (0, 1)
        finally:
            running.kill()
    record = load(path)
    assert 0 < record.seconds < 30
    assert record.total().latency.total > 0


@pytest.mark.integration
def test_server_that_is_not_there_is_told_by_the_exit_code(scenario):
    done, record = played(scenario, f"http://127.0.0.1:{free_port()}")
    assert done.returncode == 1
    assert set(record.total().reasons) == {"connect"}


def wait_until_it_plays(pid: int, port: int) -> None:
    """Until one of its processes is connected; a busy machine takes long to start them."""
    for _ in range(1200):
        for process in psutil.Process(pid).children():
            if any(each.raddr and each.raddr.port == port for each in process.net_connections()):
                return
        time.sleep(0.1)
    raise AssertionError("no process has connected")


def wait_for(url: str) -> None:
    import httpx

    for _ in range(100):
        try:
            httpx.get(url)
        except httpx.TransportError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the server did not start")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--url", "ftp://x", "--model", "m"], "--url: 'ftp://x' is not of the form"),
        (["--url", "http://127.0.0.1:1"], "--model is missing"),
        (["--url", "http://127.0.0.1:1", "--model", "m"], "/v2/models/m: "),
        (["--url", "http://x", "--set", "duration_s=-1"], "duration_s: is -1"),
        (["--url", "http://x", "--model", "m", "--extra", "7"], "--extra must be a JSON object"),
        (["--url", "http://x", "--model", "m", "--key", "a"], "'a' must be name=value"),
        (["--url", "http://x", "--model", "m", "--protocol", "custom"], "--adapter FILE belong"),
        (["--url", "http://x", *EMBED, "--adapter", "a.yaml"], "--adapter FILE belong"),
        (["--url", "http://127.0.0.1:1", *EMBED], "--slo-ms is missing"),
        (["--url", "https://x", *EMBED, "--ca", "none.pem"], "--ca none.pem: "),
    ],
)
def test_what_is_wrong_is_said_in_a_line(scenario, arguments, said):
    result = CliRunner().invoke(main, [str(scenario), *arguments])
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_scenario_that_is_not_there_is_said(tmp_path):
    result = CliRunner().invoke(main, [str(tmp_path / "none.yaml"), "--url", "http://x"])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)


SETTINGS = "models: {device: {runtime: synthetic}}\ngateway: {port: 8000}\n"
PROMISES = "scenario: some.yaml\npromises: [{in_slo: 0.9}]\n"


@pytest.mark.parametrize(
    ("text", "command", "said"),
    [
        (SETTINGS, [], "is a server's settings file and not a scenario: `headrace serve` takes it"),
        (SETTINGS, ["goodput", "--low", "5"], "a scenario says duration_s, arrivals and lengths"),
        (PROMISES, [], "is a file of promises and not a scenario: `headrace load smoke` takes it"),
        (SETTINGS, ["smoke"], "is a server's settings file and not a file of promises: `headrace"),
        (SCENARIO, ["smoke"], "is a scenario and not a file of promises: `headrace load` and"),
    ],
)
def test_a_file_of_another_kind_is_told_apart_and_what_takes_it_is_said(
    tmp_path, text, command, said
):
    file = tmp_path / "given.yaml"
    file.write_text(text)
    name, more = command[:1], command[1:]
    result = CliRunner().invoke(main, [*name, str(file), "--url", "http://127.0.0.1:1", *more])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{file}: is ")
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_scenario_that_has_a_mistake_besides_is_still_one(scenario):
    scenario.write_text(SCENARIO + "models: {}\n")
    result = CliRunner().invoke(main, [str(scenario), "--url", "http://127.0.0.1:1"])
    assert "models: unknown" in result.stderr


@pytest.mark.integration
def test_goodput_is_an_interval(scenario):
    path = scenario.with_suffix(".json")
    more = ("--slo-ms", "5000", "--low", "50", "--high", "100", "--repeats", "1", "--pause", "0")
    with server() as url:
        wait_for(url)
        command = [*PLAY, "goodput", str(scenario), "--url", url, *EMBED, *more]
        subprocess.run([*command, "--json", str(path)], timeout=60, check=False)
    found = json.loads(path.read_text())
    assert (found["holds"], found["fails"]) == (100.0, None)
    assert [trial["rate"] for trial in found["trials"]] == [50.0, 100.0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["goodput", "--low", "0"], "low is 0"),
        (["goodput", "--low", "5"], "--slo-ms is missing"),
    ],
)
def test_what_is_wrong_with_a_search_is_said_in_a_line(scenario, arguments, said):
    command, *more = arguments
    url = ("--url", "http://127.0.0.1:1", *EMBED)
    result = CliRunner().invoke(main, [command, str(scenario), *url, *more])
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_what_no_load_generator_can_do_is_said(scenario, monkeypatch):
    monkeypatch.setattr(
        PreparedRun, "play", lambda self, *_: Record("x", client=Client(behind="late"))
    )
    more = ("--set", "faults.noise=0.1", "--set", "replicas=3", "--quiet")
    for given, said in ((more, "simulator's: replicas, faults\n"), (("--quiet",), "")):
        path = scenario.with_suffix(".json")
        url = ("--url", "http://127.0.0.1:1", *EMBED, "--slo-ms", "9", "--json", str(path))
        result = CliRunner().invoke(main, [str(scenario), *url, *given])
        assert result.exit_code == 1
        assert ("not played" in result.stderr) == bool(said)
        assert said in result.stderr
