"""Which server a command is about, and what is said where an option cannot do what is asked.

The command line is run as a user runs it, without a server, or against one that is none of ours.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from deployments import cli
from deployments.tools.where import Where, reaches

TALKS = {
    "apply": ["FILE"], "diff": ["FILE"], "status": [], "stop": [], "freeze": ["on"],
    "scale": ["m", "1"], "rollout status": ["m"], "rollout promote": ["m"],
    "rollout abort": ["m"], "rollout back": ["m"], "key list": [], "key revoke": ["k"],
}  # fmt: skip


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A settings file; the state folder has no server."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_AUTH_TOKEN", "HEADRACE_OPERATOR_KEY"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "own.yaml"
    path.write_text("models: {m: {runtime: synthetic}}\n")
    return path


class Other(BaseHTTPRequestHandler):
    """A web server that is neither Ray's nor ours."""

    page: bytes = b"<html>hello</html>"
    code, kind = 200, "text/html"

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(self.code)
        self.send_header("content-type", self.kind)
        self.send_header("content-length", str(len(self.page)))
        self.end_headers()
        self.wfile.write(self.page)

    do_GET = do_PUT = do_POST = _answer

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(params=["a page", "a page that is missing", "text"])
def other(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a web server that is neither Ray's nor ours."""
    fields = {"a page": {}, "a page that is missing": {"code": 404}, "text": {"kind": "text/plain"}}
    kind = type("Kind", (Other,), fields[request.param])
    yield from _served(kind)


@pytest.fixture
def closed() -> Iterator[str]:
    """The URL of a gateway that wants an operator's key."""
    page = json.dumps({"error": "an operator's key is needed"}).encode()
    yield from _served(type("Closed", (Other,), {"code": 401, "page": page}))


def _served(kind: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def run(command: str, file: Path, *options: str) -> Result:
    words = [str(file) if word == "FILE" else word for word in TALKS[command]]
    return CliRunner().invoke(cli.main, [*command.split(), *words, *options])


def can(command: str, option: str) -> bool:
    """Whether the command's help page has the option."""
    return f"--{option} URL" in CliRunner().invoke(cli.main, [*command.split(), "--help"]).stdout


def said(done: Result, code: int) -> str:
    """What was printed: one or two lines, to standard error."""
    assert done.exit_code == code, done.output
    assert done.stdout == ""
    assert 1 <= len(done.stderr.splitlines()) <= 2, done.stderr
    return done.stderr


@pytest.mark.parametrize("command", TALKS)
def test_without_a_server_here_the_command_says_so(command: str, file: Path) -> None:
    assert "no server runs here; start one with `headrace serve`" in said(run(command, file), 1)
    assert "no server runs on port 1;" in said(run(command, file, "--port", "1"), 1)


@pytest.mark.parametrize("command", TALKS)
def test_what_is_no_ray_cluster_is_said_so(command: str, file: Path, other: str) -> None:
    done = run(command, file, "--address", other)
    if can(command, "address"):
        assert f"{other} is not a Ray dashboard" in said(done, 1)
    else:
        assert "--address cannot do this" in said(done, 2)


@pytest.mark.parametrize("command", TALKS)
def test_an_address_where_nobody_answers_or_that_is_none_is_said_so(
    command: str, file: Path
) -> None:
    if not can(command, "address"):
        return
    nobody = run(command, file, "--address", "http://127.0.0.1:1")
    assert "no Ray dashboard answers at http://127.0.0.1:1" in said(nobody, 1)
    for wrong in ("127.0.0.1:8265", "ray://head:10001", "http://", "http://[", "http://a:b"):
        assert "must be http://HOST:8265" in said(run(command, file, "--address", wrong), 1)


@pytest.mark.parametrize("command", TALKS)
def test_what_is_no_gateway_is_said_so(command: str, file: Path, other: str) -> None:
    done = run(command, file, "--url", other)
    if can(command, "url"):
        assert f"{other} is not a gateway of Headrace" in said(done, 1)
    else:
        assert "--url cannot do this" in said(done, 2)


@pytest.mark.parametrize("command", TALKS)
def test_a_key_that_opens_nothing_is_said_so(command: str, file: Path, closed: str) -> None:
    if can(command, "url"):
        sentence = said(run(command, file, "--url", closed), 1)
        assert "the operator's key is read from $HEADRACE_OPERATOR_KEY" in sentence


@pytest.mark.parametrize("command", TALKS)
@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "127.0.0.1:8000", "http://[", "nonsense"])
def test_a_url_where_nobody_answers_is_said_so(command: str, file: Path, url: str) -> None:
    if can(command, "url"):
        assert f"{url} does not answer" in said(run(command, file, "--url", url), 1)


@pytest.mark.parametrize("command", TALKS)
def test_only_one_server_can_be_named(command: str, file: Path) -> None:
    done = run(command, file, "--port", "8000", "--address", "http://head:8265")
    assert "--port and --address name a server each; must be one of them" in said(done, 2)
    assert f"see `main {command} --help`" in done.stderr


def test_the_reason_names_what_can() -> None:
    @click.command()
    @reaches(url="only --address can")
    def command(where: Where) -> None:
        click.echo(where)

    refused = CliRunner().invoke(command, ["--url", "http://x"])
    assert (refused.exit_code, "only --address can" in refused.stderr) == (2, True)
    assert "--url" not in CliRunner().invoke(command, ["--help"]).stdout
    taken = CliRunner().invoke(command, ["--address", "http://x"])
    assert taken.stdout == f"{Where(address='http://x')}\n"
