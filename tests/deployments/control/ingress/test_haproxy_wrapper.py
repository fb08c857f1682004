from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deployments.control.ingress import haproxy_rules, haproxy_wrapper
from deployments.control.ingress.haproxy_options import HAProxyConfigError, HAProxyOptions
from deployments.control.ingress.haproxy_wrapper import connections, corrected, too_few_files
from deployments.gateway.http import strict_protocol

CONFIG = """\
global
    # A comment about `log`.
    log 127.0.0.1:514 local0 info
    stats socket /run/admin.sock mode 666 level admin expose-fd listeners
    stats timeout 30s
    maxconn 4096
    nbthread 4
    tune.bufsize 16384
defaults
    timeout connect 5s
    timeout client 3600s
    retry-on conn-failure
    errorfile 502 /somewhere/500.http
    errorfile 503 /somewhere/500.http
    option splice-request
    option splice-response
frontend prometheus
    bind :19101
frontend http_frontend
    bind 127.0.0.1:18000
    log global
backend default_backend
    http-request return status 404
backend http-gateway
    http-reuse always
    timeout client 5s
    server SERVE_REPLICA_gateway-1 127.0.0.1:30000 check observe layer4
    server SERVE_PROXY_ACTOR-fallback-1 127.0.0.1:30001 check backup
listen stats
  bind *:18404
"""
WRAPPER = Path(haproxy_wrapper.__file__)


def lines(config: str = CONFIG, **options) -> list[str]:
    return [line.strip() for line in corrected(config, HAProxyOptions(**options)).splitlines()]


def starting(word: str, found: list[str]) -> list[str]:
    return [line for line in found if line.startswith(f"{word} ")]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1"])
def test_haproxys_own_pages_have_an_address_of_their_own(host):
    binds = starting("bind", lines(host="0.0.0.0", admin_host=host))
    assert binds == [
        f"bind {host}:19101",
        "bind 0.0.0.0:18000 proto h1 tcp-ut 30s",
        f"bind {host}:18404",
    ]


def test_requests_are_accepted_where_serve_says_unless_told_otherwise():
    assert "bind 127.0.0.1:18000 proto h1 tcp-ut 30s" in lines()
    assert "bind 10.0.0.7:18000 proto h1 tcp-ut 30s" in lines(host="10.0.0.7")


@pytest.mark.parametrize(("threads", "expected"), [(0, 4), (1, 1), (3, 3)])
def test_haproxy_has_as_many_threads_as_the_settings_say_or_else_serve(threads, expected):
    assert starting("nbthread", lines(threads=threads)) == [f"nbthread {expected}"]


@pytest.mark.parametrize("target", ["127.0.0.1:514", "stdout"])
def test_nothing_is_sent_to_the_machines_syslog_unless_someone_asked(target):
    found = lines(CONFIG.replace("127.0.0.1:514", target))
    assert ("log stdout local0 info" in found) == (target == "stdout")
    assert starting("log", found)[-1] == "log global"


@pytest.mark.parametrize(("body_s", "expected"), [(7, 60), (90, 90)])
def test_headers_bodies_and_slow_readers_have_their_times(body_s, expected):
    found = lines(headers_s=7, body_s=body_s)
    assert {f"timeout client {expected}s", "timeout client-fin 5s"} <= set(found)
    assert starting("timeout http-request", found) == ["timeout http-request 7s"]
    (waits,) = [line for line in found if "wait-for-body" in line]
    assert waits.startswith(f"http-request wait-for-body time {body_s}s if")


def test_as_many_headers_are_taken_as_gateways_take():
    assert haproxy_rules.MAX_HEADERS == strict_protocol.MAX_HEADERS
    assert haproxy_rules.MAX_HEAD_BYTES == strict_protocol.MAX_HEAD_BYTES


@pytest.mark.parametrize(("serves", "expected"), [(16_384, 32_768), (8_388_608, 8_388_608)])
def test_what_is_larger_than_a_head_may_be_fits_the_buffer_and_is_told_so(serves, expected):
    found = lines(CONFIG.replace("tune.bufsize 16384", f"tune.bufsize {serves}"))
    assert f"tune.bufsize {expected}" in found
    assert expected > 2 * haproxy_rules.MAX_HEAD_BYTES


def test_a_gateway_has_a_bound_and_the_fallback_none():
    found = lines(max_requests=50)
    assert starting("server", found) == [
        "server SERVE_REPLICA_gateway-1 127.0.0.1:30000 check observe layer4 maxconn 164 tcp-ut 5s",
        "server SERVE_PROXY_ACTOR-fallback-1 127.0.0.1:30001 check backup",
    ]
    assert {"timeout queue 1s", "timeout check 10s"} <= set(found)


def section(name: str, found: list[str]) -> list[str]:
    at = found.index(name) + 1
    ends = [n for n in range(at, len(found)) if found[n].startswith(("backend", "listen"))]
    return found[at : ends[0]]


@pytest.mark.parametrize("replay", [True, False])
def test_what_a_gateway_had_when_it_died_goes_to_another_where_it_may(replay):
    found = lines(replay=replay)
    assert starting("retry-on", found) == [
        "retry-on conn-failure empty-response" if replay else "retry-on conn-failure"
    ]
    assert "http-request disable-l7-retry if { req.hdr(x-idempotent) -m str -i false }" in found


def test_a_node_that_falls_silent_is_noticed():
    found = lines()
    assert starting("timeout connect", found) == ["timeout connect 2s"]
    assert {"option srvtcpka", "srvtcpka-idle 1s", "srvtcpka-intvl 1s", "srvtcpka-cnt 3"} <= set(
        found
    )


@pytest.mark.parametrize(
    ("files", "expected"), [(1024, 329), (1_000_000, 65_536), (100, 100), (-1, 65_536)]
)
def test_connections_fit_the_files_that_may_be_open(files, expected):
    assert connections(65_536, files) == expected


@pytest.mark.parametrize(("files", "enough"), [(449, False), (450, True), (-1, True)])
def test_haproxy_needs_files_for_its_fewest_connections(files, enough):
    why = too_few_files(files)
    assert why is None if enough else "connections need 450" in str(why)


def test_this_nodes_limit_of_files_bounds_the_connections(monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda _: (100, 1024))
    assert "maxconn 329" in lines()
    assert "maxconn 300" in lines(max_connections=300)


def test_before_there_are_gateways_there_is_nothing_to_bound():
    before, _, after = CONFIG.partition("backend http-gateway")
    found = lines(before + after[after.index("listen") :])
    assert len([line for line in found if "maxconn" in line]) == 1  # of HAProxy itself


@pytest.mark.parametrize(
    ("gone", "what"),
    [
        ("    log 127.0.0.1:514 local0 info\n", "syslog"),
        (" mode 666", "admin socket"),
        ("    maxconn 4096\n", "open files"),
        ("    timeout client 3600s\n", "have their times"),
        ("    bind :19101\n", "metrics have an address"),
        ("    bind 127.0.0.1:18000\n", "requests are accepted"),
        ("  bind *:18404\n", "statistics have an address"),
    ],
)
def test_an_edit_that_finds_nothing_refuses_the_template_and_says_which(gone, what):
    with pytest.raises(HAProxyConfigError, match=what):
        corrected(CONFIG.replace(gone, ""), HAProxyOptions())


@pytest.mark.parametrize("option", ["errorfile", "option splice-"])
def test_an_edit_of_several_lines_refuses_when_none_is_left(option):
    config = "".join(line for line in CONFIG.splitlines(keepends=True) if option not in line)
    with pytest.raises(HAProxyConfigError, match="found nothing to edit"):
        corrected(config, HAProxyOptions())


def test_a_gateway_under_another_name_is_not_left_unbounded():
    with pytest.raises(
        HAProxyConfigError, match="neither a gateway nor the fallback: server REPLICA-1"
    ):
        corrected(CONFIG.replace("SERVE_REPLICA_gateway", "REPLICA"), HAProxyOptions())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOST", "$(id)"),
        ("ADMIN_HOST", "127.0.0.1\n  bind *"),
        ("HEADERS_S", "0"),
        ("MAX_REQUESTS", "many"),
        ("MAXCONN", "-1"),
        ("SOURCE_CONNECTIONS", "all"),
        ("CERTIFICATE", "tls.crt"),
        ("CLIENT_CA", "/etc/ca.pem verify none"),
        ("TRUSTED_PROXIES", "10.0.0.0/8 } or { always_true"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_by_name(name, value):
    with pytest.raises(HAProxyConfigError, match=f"HEADRACE_HAPROXY_{name} (is|has) .*must be"):
        HAProxyOptions.of({f"HEADRACE_HAPROXY_{name}": value})


# ---- as Serve starts it --------------------------------------------------------------------


@pytest.fixture
def stand_in(tmp_path) -> str:
    """In HAProxy's place: prints its arguments and the configuration it was given."""
    path = tmp_path / "stand-in"
    path.write_text('#!/bin/sh\necho "$@"\n[ "$2" = -f ] && cat "$3"\nexit 0\n')
    path.chmod(0o700)
    return str(path)


def run(arguments: list[str], **told: str) -> subprocess.CompletedProcess[str]:
    # Without what a server told this process that was started in it before.
    env = {name: value for name, value in os.environ.items() if "HEADRACE_HAPROXY_" not in name}
    env |= {f"HEADRACE_HAPROXY_{name}": value for name, value in told.items()}
    # As a manager of Serve has it: it must not start itself for ever.
    env |= {"RAY_SERVE_HAPROXY_BINARY_PATH": str(WRAPPER)}
    command = [sys.executable, "-m", haproxy_wrapper.__name__, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=20)


def test_it_becomes_haproxy_with_the_same_arguments_and_a_corrected_file(tmp_path, stand_in):
    config = tmp_path / "haproxy.cfg"
    config.write_text(CONFIG)
    arguments = ["-db", "-f", str(config), "-sf", "12", "-x", "/run/admin.sock"]
    done = run(arguments, PROGRAM=stand_in, MAX_REQUESTS="77")
    assert done.returncode == 0, done.stderr
    first, shown = done.stdout.split("\n", 1)
    assert first.split() == arguments
    assert shown == corrected(CONFIG, HAProxyOptions(max_requests=77))


def test_a_file_that_was_corrected_already_stays(tmp_path, stand_in):
    config = tmp_path / "haproxy.cfg"
    config.write_text(CONFIG)
    for _ in range(2):
        assert run(["-db", "-f", str(config)], PROGRAM=stand_in).returncode == 0
    assert config.read_text() == corrected(CONFIG, HAProxyOptions())


def test_without_a_file_it_is_haproxy(stand_in):
    assert run(["-v"], PROGRAM=stand_in).stdout == "-v\n"


def test_haproxy_itself_is_rays_own_not_this_program():
    assert "HAProxy version" in run(["-v"]).stdout


def test_a_template_it_does_not_know_ends_it_loudly_and_stays(tmp_path, stand_in):
    config = tmp_path / "haproxy.cfg"
    config.write_text(CONFIG.replace("timeout client 3600s", "timeout client-side 3600s"))
    done = run(["-db", "-f", str(config)], PROGRAM=stand_in)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "headrace-haproxy: found nothing to edit for 'headers" in done.stderr
    assert "It knows what Ray 2.60 writes; installed is 2.60." in done.stderr
    assert "client-side" in config.read_text()


@pytest.mark.parametrize("missing", ["/nowhere/haproxy.cfg", "/proc/version"])
def test_a_file_that_cannot_be_corrected_is_said(missing, stand_in):
    done = run(["-db", "-f", missing], PROGRAM=stand_in)
    assert done.returncode == 1
    assert missing in done.stderr


def test_a_program_that_is_none_is_said():
    done = run(["-v"], PROGRAM="/nowhere/haproxy")
    assert done.returncode == 1
    assert "HEADRACE_HAPROXY_PROGRAM is /nowhere/haproxy, which is no program" in done.stderr


@pytest.mark.parametrize(("before", "after"), [(0o777, 0o700), (0o755, 0o700), (0o700, 0o700)])
def test_its_folder_is_its_owners_alone(tmp_path, before, after):
    folder = tmp_path / "haproxy-serve" / "node"
    folder.mkdir(parents=True)
    folder.chmod(before)
    folder.parent.chmod(0o777)
    haproxy_wrapper.keep_to_its_owner(str(folder))
    assert folder.stat().st_mode & 0o7777 == after
    assert folder.parent.stat().st_mode & 0o7777 == 0o755


def test_a_folder_below_one_that_is_everybodys_on_purpose_leaves_that_as_it_is(tmp_path):
    tmp_path.chmod(0o1777)
    (tmp_path / "node").mkdir()
    haproxy_wrapper.keep_to_its_owner(str(tmp_path / "node"))
    assert tmp_path.stat().st_mode & 0o7777 == 0o1777


@pytest.mark.parametrize("whose", ["haproxy-serve", "haproxy-serve/node"])
def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch, whose):
    folder = tmp_path / "haproxy-serve" / "node"
    folder.mkdir(parents=True)
    real = os.lstat

    def another_users(path):
        found = list(real(path))
        found[4] = 4242 if str(path) == str(tmp_path / whose) else found[4]
        return os.stat_result(found)

    monkeypatch.setattr(haproxy_wrapper.os, "lstat", another_users)
    with pytest.raises(HAProxyConfigError, match="belongs to user 4242; remove it"):
        haproxy_wrapper.keep_to_its_owner(str(folder))
