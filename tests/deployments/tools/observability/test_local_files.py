"""What a local Prometheus and Grafana are told, and where they are looked for."""

from __future__ import annotations

import json
import socket
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml

from deployments.settings.gateway import GatewaySettings
from deployments.tools.observability import grafana_server, prometheus_binary
from deployments.tools.observability.dashboard_page import span_of, window_of
from deployments.tools.observability.local_dashboard import prometheus_config, targets, write_files
from deployments.tools.observability.local_server import ServerFailed, free_port
from deployments.tools.observability.prometheus_binary import NoPrometheus


def test_every_gateway_is_scraped_on_its_own_port() -> None:
    gateway = GatewaySettings(replicas=3, metrics_port=9700, host="0.0.0.0")
    assert targets(gateway) == ["127.0.0.1:9700", "127.0.0.1:9701", "127.0.0.1:9702"]


def test_gpus_are_scraped_where_they_are_named() -> None:
    without = yaml.safe_load(prometheus_config(["a:1"], []))
    assert [job["job_name"] for job in without["scrape_configs"]] == ["headrace"]
    jobs = yaml.safe_load(prometheus_config(["a:1"], ["b:9400"]))["scrape_configs"]
    assert jobs[1]["static_configs"] == [{"targets": ["b:9400"]}]


def test_all_files_stand_in_one_folder(tmp_path: Path) -> None:
    made = write_files(tmp_path / "new", ["a:1"], [])
    assert made.config.exists()
    assert (tmp_path / "new" / "alerts.yaml").exists()
    files = sorted((tmp_path / "new" / "grafana" / "dashboards").glob("*.json"))
    assert [json.loads(path.read_text())["uid"] for path in files] == [
        "headrace-tenants",
        "headrace-war-room",
    ]


@pytest.mark.parametrize(("minutes", "step_s"), [(1, 5), (15, 5), (30, 8), (1440, 360)])
def test_a_page_has_some_hundred_moments_and_windows_of_several_scrapes(
    minutes: float, step_s: float
) -> None:
    span = span_of(minutes, 1e9)
    assert span.step_s == step_s
    assert len(span.moments) <= 242
    assert window_of(span) == f"{4 * step_s}s"


def test_prometheus_is_looked_for_in_the_folder_that_is_named_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(prometheus_binary.PLACE, str(tmp_path))
    assert prometheus_binary.found("promtool") is None
    with pytest.raises(NoPrometheus, match="make prometheus"):
        prometheus_binary.needed("promtool")
    (tmp_path / "promtool").touch(0o755)
    assert prometheus_binary.needed("promtool") == tmp_path / "promtool"


def test_what_cannot_be_fetched_is_said_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoPrometheus, match="apt-get is not installed"):
        prometheus_binary.fetch(tmp_path / "into")
    for name, status in (("apt-get", 100), ("dpkg-deb", 0)):
        (tmp_path / name).write_text(f"#!/bin/sh\necho no such package >&2\nexit {status}\n")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(NoPrometheus, match="download prometheus` failed: no such package"):
        prometheus_binary.fetch(tmp_path / "into")


def test_grafana_is_provisioned_with_our_dashboards_and_prometheus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a program in Grafana's place, which says that it is well."""
    in_grafanas_place(tmp_path / "grafana", _HEALTHY)
    monkeypatch.setenv(grafana_server.PLACE, str(tmp_path / "grafana"))
    folder, installed = tmp_path / "files", grafana_server.home()
    assert installed == tmp_path / "grafana"
    grafana_server.write_dashboards(folder / "dashboards")
    port = free_port()
    with grafana_server.running(installed, folder, port, "http://127.0.0.1:9090") as url:
        assert url == f"http://127.0.0.1:{port}"
        with urllib.request.urlopen(f"{url}/api/health", timeout=5.0) as answer:
            assert answer.read() == b"well"
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{url}/api/health", timeout=5.0)
    read = yaml.safe_load((folder / "provisioning/datasources/headrace.yaml").read_text())
    assert read["datasources"][0]["url"] == "http://127.0.0.1:9090"
    read = yaml.safe_load((folder / "provisioning/dashboards/headrace.yaml").read_text())
    assert len(list(Path(read["providers"][0]["options"]["path"]).glob("*.json"))) == 2


def test_a_grafana_that_ends_at_once_says_what_it_wrote(tmp_path: Path) -> None:
    in_grafanas_place(tmp_path / "grafana", "#!/bin/sh\necho no database >&2\nexit 1\n")
    files = tmp_path / "files"
    server = grafana_server.running(tmp_path / "grafana", files, free_port(), "http://127.0.0.1:1")
    with pytest.raises(ServerFailed, match=r"Grafana did not start; .* ends with:\nno database"):
        server.__enter__()


def test_a_taken_port_of_grafana_is_said_in_a_sentence(tmp_path: Path) -> None:
    in_grafanas_place(tmp_path / "grafana", _HEALTHY)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        server = grafana_server.running(
            tmp_path / "grafana", tmp_path / "files", port, "http://127.0.0.1:1"
        )
        with pytest.raises(ServerFailed, match=f"port {port} is taken; .* --grafana-port"):
            server.__enter__()


_HEALTHY = f"""#!{sys.executable}
import http.server, os

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/api/health" else 404)
        self.end_headers()
        self.wfile.write(b"well")

address = os.environ["GF_SERVER_HTTP_ADDR"], int(os.environ["GF_SERVER_HTTP_PORT"])
http.server.HTTPServer(address, Handler).serve_forever()
"""


def in_grafanas_place(installed: Path, text: str) -> None:
    program = installed / "bin" / "grafana"
    program.parent.mkdir(parents=True)
    program.write_text(text)
    program.chmod(0o755)
