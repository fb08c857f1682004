"""Which ports a start needs, and what is said when somebody has them."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deployments import haproxy, ports, run_folder, state_file
from deployments.settings import GatewaySettings, Settings, load_tenants


@pytest.fixture(autouse=True)
def _no_folder_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run_folder, "path_of", lambda port: tmp_path / str(port))


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def gateway(**fields: Any) -> GatewaySettings:
    free = {name: ports.any_free() for name in ("port", "haproxy_stats_port")}
    free["haproxy_metrics_port"] = ports.any_free()
    return GatewaySettings.model_validate({**free, "ingress": "haproxy", **fields})


def test_haproxys_ports_are_needed_with_haproxy_alone() -> None:
    assert list(ports.of(gateway())) == ["http", "haproxy_stats", "haproxy_metrics"]
    assert list(ports.of(gateway(ingress="proxy"))) == ["http"]


def test_free_ports_need_no_word(tmp_path: Path) -> None:
    assert ports.free_or_say(gateway(), tmp_path) == []


@pytest.mark.parametrize(
    ("field", "setting"),
    [("port", "gateway.port"), ("haproxy_stats_port", "gateway.haproxy_stats_port")],
)
def test_a_taken_port_is_named_with_its_setting_and_its_holder(
    tmp_path: Path, taken: int, field: str, setting: str
) -> None:
    (sentence,) = ports.free_or_say(gateway(**{field: taken}), tmp_path)
    assert sentence.startswith(f"port {taken} ({setting}) is taken by ")
    assert str(os.getpid()) in sentence


def test_a_server_of_ours_is_named_with_what_ends_it(tmp_path: Path) -> None:
    settings = gateway()
    state = state_file.ServerState(
        port=settings.port,
        server=state_file.ProcessMark.of(os.getpid()),
        ray_address="",
        dashboard_url="",
        settings_path="",
        started_at_s=0.0,
        ports={},
        host="127.0.0.1",
    )
    state_file.write(state, tmp_path)
    (sentence,) = ports.free_or_say(settings, tmp_path)
    assert f"headrace stop --port {settings.port}" in sentence


class Leftover:
    pid = 4711


@pytest.mark.parametrize("managed", [False, True])
def test_a_leftover_of_ours_is_ended_unless_its_server_lives(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, managed: bool
) -> None:
    ended: list[Any] = []
    monkeypatch.setattr(haproxy, "find", lambda folder: [Leftover()])
    monkeypatch.setattr(haproxy, "is_managed", lambda process: managed)
    monkeypatch.setattr(haproxy, "end", ended.extend)
    said = ports.free_or_say(gateway(), tmp_path)
    assert (len(said), len(ended)) == ((1, 0) if managed else (0, 1))
    assert not managed or "4711" in said[0]


def test_tenants_are_written_whole_and_for_their_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "tenants.yaml"
    given = {"acme": {"weight": 3, "keys": ["sha256:" + "0" * 64]}}
    model = {"runtime": "synthetic"}
    settings = Settings.model_validate({"models": {"m": model}, "tenants": given})
    ports.write_tenants(settings, path)
    assert load_tenants(path).tenants == settings.tenants
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]
