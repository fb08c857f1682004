from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from fake_engines import until
from real_haproxy import in_front_of

from deployments.control.ingress import haproxy


def test_an_installed_program_is_taken_as_it_is(tmp_path):
    scripts, folder = tmp_path / "bin", tmp_path / "run"
    scripts.mkdir()
    installed = scripts / haproxy.NAME
    installed.write_text("#!/bin/sh\n")
    installed.chmod(0o755)
    assert haproxy.program(folder, scripts) == installed
    assert not folder.exists()


def test_a_checkout_gets_one_that_runs_from_anywhere(tmp_path):
    made = haproxy.program(tmp_path / "it's a run", tmp_path)
    assert made.parent == tmp_path / "it's a run"
    shown = subprocess.run(
        [str(made), "-v"], cwd="/", env={"PATH": "/bin"}, capture_output=True, text=True
    )
    assert "HAProxy version" in shown.stdout, shown.stderr


def test_where_there_is_no_haproxy_the_way_out_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_HAPROXY_PROGRAM", str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match="no program; one gateway on one machine needs"):
        haproxy.program(tmp_path)


@pytest.fixture(scope="module")
def wrapper(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("program")
    return str(haproxy.program(folder, folder))


def test_what_the_installed_ray_writes_is_corrected_and_taken_by_haproxy(tmp_path, wrapper):
    assert haproxy.problem(wrapper, tmp_path) is None


def test_a_check_asks_no_gateway(tmp_path, wrapper):
    """The file that is checked names one that is made up, where somebody else may listen."""
    config = haproxy._written_by_serve(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        named = f"127.0.0.1:{server.getsockname()[1]}"
        config.write_text(config.read_text().replace("127.0.0.1:30000", named))
        assert named in config.read_text()
        subprocess.run([wrapper, "-c", "-f", str(config)], check=True, timeout=9)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_haproxy_itself_is_no_program_of_ours(tmp_path):
    plain = tmp_path / "plain"
    plain.write_text(f'#!/bin/sh\nexec {os.environ.get("SHELL", "/bin/sh")} -c "exit 0"\n')
    plain.chmod(0o700)
    found = haproxy.problem(str(plain), tmp_path)
    assert found is not None
    assert "uncorrected" in found


@pytest.mark.parametrize("name", ["none", "."])
def test_a_path_without_a_program_is_said(tmp_path, name):
    assert haproxy.problem(str(tmp_path / name), tmp_path) == f"{tmp_path / name} is no program"


async def test_callers_that_leave_while_they_wait_are_noticed(tmp_path: Path, wrapper):
    """Before a server that answers nobody."""
    came, left = [], []

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            if b"/asked" in await reader.readuntil(b"\r\n\r\n"):
                came.append(writer)
                with contextlib.ExitStack() as leaving:
                    leaving.callback(left.append, writer)
                    while await reader.read(1000):
                        pass
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with in_front_of(server, folder=tmp_path, wrapper=wrapper) as url:
        async with httpx.AsyncClient(timeout=None) as client:
            asked = [asyncio.create_task(_ask(client, url)) for _ in range(20)]
            await until(lambda: len(came) == 20, limit_s=20)
            assert not left
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        await until(lambda: len(left) == 20)


async def _ask(client: httpx.AsyncClient, url: str, **headers: str) -> httpx.Response:
    return await client.post(f"{url}/asked", json={"pad": "x" * 100}, headers=headers)


Answers = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def gateway(*, dies: bool, came: list[bytes], reset: bool) -> Answers:
    """One that answers every request; or that takes each in, and dies."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(h for h in head.lower().split(b"\r\n") if h.startswith(b"content-l"))
                body = await reader.readexactly(int(length.partition(b":")[2]))
                came.append(body)
                if dies:
                    break
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        if reset:
            writer.transport.abort()
        writer.close()

    return serve


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
async def test_what_a_gateway_that_died_had_is_answered_by_another(tmp_path: Path, wrapper, reset):
    lost, answered = [], []
    dying = await asyncio.start_server(gateway(dies=True, came=lost, reset=reset), "127.0.0.1", 0)
    living = await asyncio.start_server(
        gateway(dies=False, came=answered, reset=reset), "127.0.0.1", 0
    )
    async with (
        in_front_of(dying, living, folder=tmp_path, wrapper=wrapper) as url,
        httpx.AsyncClient(timeout=20) as client,
    ):
        codes = [(await _ask(client, url)).status_code for _ in range(6)]
    assert codes == [200] * 6
    assert len(lost) >= 3
    assert set(lost) == set(answered)


async def test_what_may_not_run_twice_is_not_sent_to_another_gateway(tmp_path: Path, wrapper):
    came: list[bytes] = []
    dying = await asyncio.start_server(gateway(dies=True, came=came, reset=False), "127.0.0.1", 0)
    async with (
        in_front_of(dying, dying, folder=tmp_path, wrapper=wrapper) as url,
        httpx.AsyncClient(timeout=20) as client,
    ):
        answer = await _ask(client, url, **{"x-idempotent": "false"})
    assert answer.status_code == 502
    assert len(came) == 1
