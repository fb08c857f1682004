"""`headrace key`: what is printed once, what is written, and which server is told."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from deployments import cli
from deployments.gateway.tenancy.tenants import hash_key
from deployments.settings.key import moment_s
from deployments.tools import keys, operator
from deployments.tools.keys import tenants_of
from deployments.tools.where import Where

HASH = "sha256:" + "1" * 64
TENANTS = f"tenants:\n  acme:\n    keys:\n      - {{id: laptop, hash: '{HASH}', models: [m]}}\n"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["key", *arguments])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tenants.yaml"
    path.write_text(TENANTS)
    return path


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """What the host of the server on port 8000 is asked."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    asked: list[Any] = []
    state = SimpleNamespace(port=8000, settings_path="/here.yaml")

    def ask(where: Where, request: dict[str, Any]) -> dict[str, Any]:
        asked.append((where.port, request))
        row = {"id": "k", "owner": "operators", "state": "good", "expires": None, "models": None}
        return {"revoked": "laptop", "owner": "tenant acme", "keys": [row]}

    monkeypatch.setattr(Where, "server", lambda where: state)
    monkeypatch.setattr(Where, "ask", ask)
    return asked


def test_a_key_with_a_life_comes_with_the_yaml_to_paste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys.time, "time", lambda: moment_s("2027-01-01T00:00:00Z"))
    done = run("new", "--tenant", "acme", "--id", "laptop", "--expires", "30d", "--model", "m:a")
    assert done.exit_code == 0, done.output
    key_line, yaml_line = done.stdout.splitlines()
    text, _, place = yaml_line.removeprefix("yaml: ").partition("   ")
    assert yaml.load(text, yaml.BaseLoader) == [
        {"id": "laptop", "hash": hash_key(key_line.split()[1]), "expires": "2027-01-31T00:00:00Z",
         "models": ["m:a"]}
    ]  # fmt: skip
    assert "tenants.acme.keys" in place


def test_a_key_is_written_into_a_file_and_shown_once(file: Path) -> None:
    done = run("new", "--tenant", "acme", "--id", "new", str(file))
    assert done.exit_code == 0, done.output
    made = done.stdout.split()[1]
    assert made not in file.read_text()
    _, key = tenants_of(file).key_called("new")
    assert key.hash == hash_key(made)
    again = run("new", "--tenant", "acme", "--id", "new", str(file))
    assert again.exit_code == 1
    assert "hr_" not in again.output  # a key that nobody knows of is not handed out
    assert "is new, which is already the id of a key of tenant acme" in again.output


def test_an_operators_key_has_no_tenant(file: Path) -> None:
    assert run("new", "--operator", "--tenant", "acme").exit_code == 2
    assert run("new", str(file)).exit_code == 2
    assert "operators.keys" in run("new", "--operator").stdout
    assert run("new", "--operator", "--id", "root", str(file)).exit_code == 0
    assert tenants_of(file).key_called("root")[0] == "operators"


def test_keys_of_a_file_are_listed(file: Path) -> None:
    header, only = run("list", str(file)).stdout.splitlines()
    assert header.split() == ["ID", "OWNER", "STATE", "EXPIRES", "MODELS"]
    assert only.split() == ["laptop", "tenant", "acme", "good", "never", "m"]
    file.write_text("tenants: {acme: {}}\n")
    assert run("list", str(file)).stdout == "there are no keys\n"


def test_keys_of_a_running_server_are_listed(told: list[Any]) -> None:
    assert "operators" in run("list").stdout
    assert told == [(None, {"do": "keys"})]
    assert run("list", "x.yaml", "--port", "8000").exit_code == 2


def test_a_key_is_revoked_at_the_server_unless_only_a_file_is_named(
    file: Path, told: list[Any]
) -> None:
    done = run("revoke", "laptop")
    assert "remove it from /here.yaml or" in done.stdout
    asked = (8000, {"do": "revoke", "key": "laptop"})
    assert told == [asked]
    assert run("revoke", "laptop", str(file)).exit_code == 0
    assert tenants_of(file).tenants["acme"].keys == ()
    assert told == [asked]
    file.write_text(TENANTS)
    assert run("revoke", "laptop", str(file), "--port", "8000").exit_code == 0
    assert told == [asked, asked]


def test_a_key_is_revoked_through_a_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def answer(method: str, url: str, path: str, **body: Any) -> dict[str, Any]:
        asked.append((method, path, body))
        return {"revoked": "laptop", "owner": "tenant acme", "keys": []}

    monkeypatch.setattr(operator, "_ask", answer)
    said = run("revoke", "laptop", "--url", "http://x").stdout
    assert "revoked laptop of tenant acme" in said
    assert "remove it from the server's settings file" in said
    assert run("list", "--url", "http://x").stdout == "there are no keys\n"
    assert asked == [
        ("POST", "/admin/keys/revoke", {"json": {"key": "laptop"}}),
        ("GET", "/admin/keys", {}),
    ]
    assert run("revoke", "laptop", "--url", "http://x", "--port", "1").exit_code == 2


# ---- for all clusters of a release on Kubernetes ----------------------------------------------


KUBECTL = """\
#!/bin/sh
printf '%s ' "$@" >> {calls}
cat >> {calls}; echo >> {calls}
case "$3" in patch) echo 'Error from server (NotFound): no such' >&2; exit 1;; esac
"""


@pytest.fixture
def kubectl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The calls of a `kubectl` whose cluster has no such ConfigMap yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    calls, program = tmp_path / "calls", tmp_path / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text(KUBECTL.format(calls=calls))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    return calls


def test_one_command_ends_a_key_where_callers_are_answered_and_in_all_clusters(
    monkeypatch: pytest.MonkeyPatch, kubectl: Path
) -> None:
    answer = {"revoked": "laptop", "owner": "tenant acme", "hash": HASH}
    monkeypatch.setattr(operator, "_ask", lambda *_, **__: answer)
    done = run("revoke", "laptop", "--url", "http://x", "--release", "headrace/demo-headrace")
    assert done.exit_code == 0, done.output
    assert "http://x: revoked laptop of tenant acme" in done.stdout
    assert "headrace/demo-headrace: revoked laptop in every cluster" in done.stdout
    patched, created = kubectl.read_text().splitlines()
    assert patched.startswith("-n headrace patch configmap demo-headrace-revoked-keys --type=merge")
    assert created.startswith("-n headrace create -f -")
    made = json.loads(created.removeprefix("-n headrace create -f -"))
    assert made["metadata"]["name"] == "demo-headrace-revoked-keys"
    assert made["data"] == {"1" * 64: "laptop tenant acme"}


def test_a_hash_needs_no_server_and_an_id_does(kubectl: Path) -> None:
    assert run("revoke", HASH, "--release", "headrace/demo").exit_code == 0
    kubectl.unlink()
    done = run("revoke", "laptop", "--release", "headrace/demo")
    assert done.exit_code == 1
    assert "'laptop' is no hash; must be one, or --url be given" in done.stderr
    done = run("revoke", HASH, "--release", "demo")
    assert (done.exit_code, "must be NAMESPACE/RAYSERVICE" in done.stderr) == (1, True)
    assert not kubectl.exists()


def test_what_kubectl_refuses_is_told(kubectl: Path) -> None:
    program = kubectl.parent / "bin" / "kubectl"
    program.write_text("#!/bin/sh\necho 'Forbidden: cannot patch' >&2; exit 1\n")
    done = run("revoke", HASH, "--release", "headrace/demo")
    assert done.exit_code == 1
    assert "Forbidden: cannot patch; another cluster of demo accepts the key" in done.stderr
