from __future__ import annotations

import asyncio
import contextlib
import subprocess

import httpx
import pytest
from fake_engines import until

from deployments.cluster import haproxy, ports

CONFIG = """\
global
    log 127.0.0.1:514 local0 info
defaults
    timeout client 3600s
    errorfile 503 /somewhere/500.http
    option splice-request
    option splice-response
frontend prometheus
    bind :19101
frontend http_frontend
    bind 127.0.0.1:18000
backend http-gateway
    server SERVE_REPLICA_gateway-1 127.0.0.1:30000 check observe layer4
    server SERVE_PROXY_ACTOR-fallback-1 127.0.0.1:30001 check backup
listen stats
  bind *:18404
"""

TAKEN = """\
defaults
    mode http
    timeout connect 5s
    timeout server 5s
    timeout client 3600s
    errorfile 503 /somewhere/500.http
frontend http_frontend
    bind 127.0.0.1:18000
    default_backend http-gateway
backend http-gateway
    server SERVE_REPLICA_gateway-1 127.0.0.1:30000 check
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A stand-in for HAProxy that prints the configuration it was given."""
    stand_in = tmp_path / "stand-in"
    stand_in.write_text('#!/bin/sh\ncat "$3"\n')
    stand_in.chmod(0o700)
    monkeypatch.setattr(haproxy, "_program", lambda: str(stand_in))


def run(wrapper: str, folder) -> list[str]:
    config = folder / "haproxy.cfg"
    config.write_text(CONFIG)
    shown = subprocess.run(
        [wrapper, "-db", "-f", str(config)], capture_output=True, text=True, check=True
    )
    return [line.strip() for line in shown.stdout.splitlines()]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1"])
def test_every_page_is_bound_to_the_gateways_host_alone(tmp_path, program, host):
    lines = run(haproxy.wrapped(tmp_path, host, 30, 50), tmp_path)
    binds = [line for line in lines if line.startswith("bind")]
    assert binds == [f"bind {host}:19101", "bind 127.0.0.1:18000", f"bind {host}:18404"]


def test_nothing_is_sent_to_the_machines_syslog(tmp_path, program):
    lines = run(haproxy.wrapped(tmp_path, "127.0.0.1", 30, 50), tmp_path)
    assert not [line for line in lines if line.startswith("log")]


def test_headers_have_a_time_to_arrive_in(tmp_path, program):
    lines = run(haproxy.wrapped(tmp_path, "127.0.0.1", 7, 50), tmp_path)
    at = lines.index("timeout client 3600s")
    assert lines[at + 1 : at + 3] == ["timeout http-request 7s", "option http-ignore-probes"]


def test_a_gateway_has_a_bound_and_the_fallback_none(tmp_path, program):
    lines = run(haproxy.wrapped(tmp_path, "127.0.0.1", 30, 50), tmp_path)
    servers = [line for line in lines if line.startswith("server")]
    assert servers == [
        "server SERVE_REPLICA_gateway-1 127.0.0.1:30000 check observe layer4 maxconn 50",
        "server SERVE_PROXY_ACTOR-fallback-1 127.0.0.1:30001 check backup",
    ]
    assert {"timeout queue 1s", "timeout check 10s"} <= set(lines)


def test_its_own_refusals_are_what_they_say(tmp_path, program):
    lines = run(haproxy.wrapped(tmp_path, "127.0.0.1", 30, 50), tmp_path)
    refusals = [line for line in lines if line.startswith(("http-error", "errorfile"))]
    assert [line.split()[2] for line in refusals] == ["502", "503", "504"]
    assert all(line.endswith("hdr Retry-After 1") for line in refusals)


def test_haproxy_takes_what_was_written(tmp_path):
    path = haproxy.wrapped(tmp_path, "127.0.0.1", 30, 50)
    config = tmp_path / "haproxy.cfg"
    config.write_text(TAKEN)
    said = subprocess.run([path, "-c", "-f", str(config)], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr


def test_a_host_is_no_shell_command(tmp_path, program):
    lines = run(haproxy.wrapped(tmp_path, "$(id);'", 30, 50), tmp_path)
    assert "bind $(id);':19101" in lines


LEFT = """\
defaults
    mode http
    timeout connect 5s
    timeout server 60s
    timeout client 60s
    option abortonclose
    option splice-request
    option splice-response
    option http-no-delay
    option idle-close-on-response
frontend http_frontend
    bind 127.0.0.1:{port}
    default_backend http-gateway
backend http-gateway
    server SERVE_REPLICA_gateway-1 127.0.0.1:{server} check
"""


def test_no_option_to_splice_is_left(tmp_path, program):
    lines = run(haproxy.wrapped(tmp_path, "127.0.0.1", 30, 50), tmp_path)
    assert not [line for line in lines if "splice" in line]


async def test_callers_that_leave_while_they_wait_are_noticed(tmp_path):
    """The real HAProxy, before a server that answers nobody."""
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
    port, config = ports.any_free(), tmp_path / "haproxy.cfg"
    taken = server.sockets[0].getsockname()[1]
    config.write_text(LEFT.format(port=port, server=taken))
    wrapper = haproxy.wrapped(tmp_path, "127.0.0.1", 30, 50)
    process = await asyncio.create_subprocess_exec(wrapper, "-db", "-f", str(config))
    try:
        async with httpx.AsyncClient(timeout=None) as client:
            asked = [asyncio.create_task(_ask(client, port)) for _ in range(20)]
            await until(lambda: len(came) == 20, limit_s=20)
            assert not left
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        await until(lambda: len(left) == 20)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
        server.close()


async def _ask(client: httpx.AsyncClient, port: int) -> None:
    """As soon as HAProxy listens; waits for an answer for ever."""
    while True:
        try:
            await client.post(f"http://127.0.0.1:{port}/asked", json={"pad": "x" * 100})
        except httpx.ConnectError:
            await asyncio.sleep(0.05)
