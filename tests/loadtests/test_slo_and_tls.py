"""A model's SLO is the server's where nothing else names one; servers over TLS are played to."""

from __future__ import annotations

import datetime
import http.server
import ipaddress
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from loadtests.client.http1 import Target
from loadtests.command import main
from loadtests.results.record import load
from loadtests.run import RunOptions, prepare

SCENARIO = """
duration_s: 0.5
arrivals: {rate: 40}
lengths: {fixed: 8}
tenants: {a: {}}
"""


class _Model(http.server.BaseHTTPRequestHandler):
    """Metadata with `parameters`, where `key` is brought, and an answer to each inference."""

    protocol_version = "HTTP/1.1"
    parameters: dict[str, Any] = {}
    key = ""

    def do_GET(self) -> None:
        wanted = f"Bearer {self.key}" if self.key else None
        if wanted and self.headers["authorization"] != wanted:
            self._say(401, {})
            return
        inputs = [{"name": "ids", "datatype": "INT64", "shape": [-1, -1]}]
        self._say(200, {"name": "m", "inputs": inputs, "parameters": self.parameters})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._say(200, {"model_name": "m", "outputs": []})

    def _say(self, status: int, body: Any) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def serving(
    parameters: dict[str, Any], key: str = "", tls: tuple[Path, Path] | None = None
) -> Iterator[str]:
    model = type("Model", (_Model,), {"parameters": parameters, "key": key})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), model) as server:
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    file = tmp_path / "some.yaml"
    file.write_text(SCENARIO)
    return file


@pytest.mark.parametrize(
    ("parameters", "slo_s", "first_s"),
    [
        ({"slo_latency_ms": 250.0}, 0.25, None),
        ({"slo_ttft_ms": 400}, None, 0.4),
        ({}, None, None),
    ],
)
def test_the_slo_is_the_servers_where_nothing_else_names_one(
    scenario: Path, parameters: dict[str, Any], slo_s: float | None, first_s: float | None
) -> None:
    with serving(parameters) as url:
        ready = prepare(RunOptions(scenario, url, model="m"))
        assert (ready.slo_s, ready.tokens.first_s) == (slo_s, first_s)
        given = prepare(RunOptions(scenario, url, model="m", slo_ms=70))
        assert given.slo_s == 0.07


def test_a_run_without_any_slo_is_refused_and_says_what_to_give(scenario: Path) -> None:
    with serving({}) as url:
        result = CliRunner().invoke(main, [str(scenario), "--url", url, "--model", "m"])
    assert result.exit_code == 2
    assert result.stderr.startswith("--slo-ms is missing")


def test_callers_that_each_bring_a_budget_need_none(scenario: Path) -> None:
    scenario.write_text(SCENARIO.replace("a: {}", "a: {budget_ms: 300}"))
    with serving({}) as url:
        prepare(RunOptions(scenario, url, model="m")).check_slo()


def test_metadata_is_asked_with_a_tenants_key(scenario: Path) -> None:
    with serving({"slo_latency_ms": 100}, key="secret") as url:
        ready = prepare(RunOptions(scenario, url, model="m", keys={"a": "secret"}))
    assert ready.slo_s == 0.1


def test_a_server_over_tls_is_played_to(scenario: Path, tmp_path: Path) -> None:
    certificate, key = _certificate(tmp_path)
    out = tmp_path / "record.json"
    with serving({"slo_latency_ms": 5000}, tls=(certificate, key)) as url:
        command = [str(scenario), "--url", url, "--model", "m", "--json", str(out), "--quiet"]
        distrusted = CliRunner().invoke(main, command)
        assert distrusted.exit_code == 2
        assert "CERTIFICATE_VERIFY_FAILED" in distrusted.stderr
        played = CliRunner().invoke(main, [*command, "--ca", str(certificate)])
    record = load(out)
    assert record.total().latency.total == record.total().offered > 0, played.output
    assert record.slo_ms == 5000


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://h/x", Target("h", 443, "/x", tls=True, ca="ca.pem")),
        ("https://h:8443", Target("h", 8443, "/", tls=True, ca="ca.pem")),
        ("http://h", Target("h", 80, "/", ca="ca.pem")),
    ],
)
def test_a_url_names_host_port_and_whether_it_is_tls(url: str, target: Target) -> None:
    assert Target.parse(url, "ca.pem") == target


def _certificate(folder: Path) -> tuple[Path, Path]:
    """Signed by itself, for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))
        .not_valid_after(datetime.datetime(2120, 1, 1, tzinfo=datetime.UTC))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    certificate, private = folder / "certificate.pem", folder / "private.pem"
    certificate.write_bytes(signed.public_bytes(pem))
    form = serialization.PrivateFormat.PKCS8
    private.write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
    return certificate, private
