"""`headrace key`: what is printed once, what is written, and which server is told."""

from __future__ import annotations

import json
import os
import sys
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
    assert "remove it from the server's settings file or tenants file too: another cluster" in said
    assert "--release" not in said, "an answer that tells of no folder"
    assert run("list", "--url", "http://x").stdout == "there are no keys\n"
    assert asked == [
        ("POST", "/admin/keys/revoke", {"json": {"key": "laptop"}}),
        ("GET", "/admin/keys", {}),
    ]
    assert run("revoke", "laptop", "--url", "http://x", "--port", "1").exit_code == 2


def test_keys_of_a_cluster_are_listed_with_a_word_on_what_it_cannot_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Where, "cluster", lambda _: SimpleNamespace(keys=list))
    done = run("list", "--address", "http://x:8265")
    assert (done.exit_code, done.stdout) == (0, "there are no keys\n")
    assert "keys revoked at a gateway or by a folder look good here; --url shows" in done.stderr


# ---- for all clusters of a release on Kubernetes ----------------------------------------------


class Kubernetes:
    """A `kubectl` that keeps ConfigMaps of namespace `headrace`, and says what it is told to.
    `complains`: by verb, the last thing that it says of it; "once" before it: the first time."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.program = folder, folder / "bin" / "kubectl"
        self.program.parent.mkdir()
        self.services, self.clusters = ["demo-headrace"], {"demo-headrace-1": "demo-headrace"}
        self.complains: dict[str, str] = {}
        self.write()

    def write(self) -> None:
        items = [
            {
                "metadata": {
                    "name": name,
                    "ownerReferences": [{"kind": "RayService", "name": "demo-headrace"}],
                },
                "spec": {"volumes": [{"configMap": {"name": f"{of}-revoked-keys"}}]},
            }
            for name, of in self.clusters.items()
        ]
        told = {"services": self.services, "items": items, "complains": self.complains}
        (self.folder / "told.json").write_text(json.dumps(told))
        self.program.write_text(f"#!{sys.executable}\n{KUBECTL.format(folder=str(self.folder))}")
        self.program.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        found = self.folder / "calls"
        return found.read_text().splitlines() if found.exists() else []

    @property
    def noted(self) -> dict[str, str]:
        found = self.folder / "demo-headrace-revoked-keys"
        return dict(json.loads(found.read_text())["data"]) if found.exists() else {}


KUBECTL = """\
import json, pathlib, sys
folder = pathlib.Path({folder!r})
told = json.loads((folder / "told.json").read_text())
verb, arguments = sys.argv[3], sys.argv[4:]
with (folder / "calls").open("a") as calls: calls.write(" ".join(sys.argv[1:]) + "\\n")
complaint = told["complains"].get(verb, "")
if complaint.startswith("once "):
    mark = folder / ("said-" + verb)
    complaint, _ = "" if mark.exists() else complaint[5:], mark.touch()
if complaint: sys.exit("Error from server " + complaint)
if verb == "config": print("the-context")
if verb == "get" and arguments[0] == "rayclusters.ray.io": print(json.dumps(told))
if verb == "get" and arguments[0] == "rayservices.ray.io":
    if arguments[1] == "-o": print("\\n".join("rayservice.ray.io/" + e for e in told["services"]))
    elif arguments[1] not in told["services"]: sys.exit("Error from server (NotFound): no such")
if verb == "create":
    made = json.loads(sys.stdin.read())
    (folder / made["metadata"]["name"]).write_text(json.dumps(made))
if verb == "patch":
    kept = folder / arguments[1]
    if not kept.exists(): sys.exit("Error from server (NotFound): no such")
    made = json.loads(kept.read_text())
    made["data"].update(json.loads(arguments[-1])["data"])
    kept.write_text(json.dumps(made))
"""
THERE = ("--release", "headrace/demo-headrace")
BY_URL = ("--url", "http://x")
ANSWER = {"revoked": "laptop", "owner": "tenant acme", "hash": HASH, "folder": True}


@pytest.fixture
def kubernetes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Kubernetes:
    """One RayService, whose cluster reads the ConfigMap, which is not there yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    return Kubernetes(tmp_path)


def gateway(monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any] | None) -> list[str]:
    """The paths that are asked of a gateway; None: of one that does not answer."""
    asked: list[str] = []

    def answers(_: str, url: str, path: str, **__: Any) -> dict[str, Any]:
        asked.append(path)
        if answer is None:
            raise operator.OperatorRefused(f"{url} does not answer")
        return answer

    monkeypatch.setattr(operator, "_ask", answers)
    return asked


def test_one_command_ends_a_key_where_callers_are_answered_and_in_all_clusters(
    monkeypatch: pytest.MonkeyPatch, kubernetes: Kubernetes
) -> None:
    gateway(monkeypatch, ANSWER)
    done = run("revoke", "laptop", *BY_URL, *THERE)
    assert done.exit_code == 0, done.output
    assert "http://x: revoked laptop of tenant acme" in done.stdout
    assert (
        "headrace/demo-headrace: noted laptop in ConfigMap demo-headrace-revoked-keys (context "
        "the-context)\nclusters that read it refuse it within two minutes: demo-headrace-1\n"
    ) in done.stdout
    assert kubernetes.noted == {"1" * 64: "laptop tenant acme"}
    assert run("revoke", "sha256:" + "2" * 64, *THERE).exit_code == 0
    assert kubernetes.noted.keys() == {"1" * 64, "2" * 64}


@pytest.mark.parametrize("name", ["laptop", HASH])
def test_a_hash_or_a_file_needs_no_server(file: Path, kubernetes: Kubernetes, name: str) -> None:
    assert run("revoke", name, str(file), *THERE).exit_code == 0
    assert kubernetes.noted == {"1" * 64: "laptop tenant acme"}
    assert tenants_of(file).tenants["acme"].keys == ()


def test_an_id_alone_is_not_enough(kubernetes: Kubernetes) -> None:
    done = run("revoke", "laptop", *THERE)
    assert (done.exit_code, kubernetes.calls) == (1, [])
    assert "'laptop' is no hash; must be one, or --url or FILE say which" in done.stderr


def test_what_is_no_rayservice_is_said_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch, kubernetes: Kubernetes
) -> None:
    asked = gateway(monkeypatch, ANSWER)
    done = run("revoke", "laptop", *BY_URL, "--release", "demo")
    assert (done.exit_code, "must be NAMESPACE/RAYSERVICE" in done.stderr) == (1, True)
    assert (kubernetes.calls, asked) == ([], [])


def test_a_rayservice_that_is_not_there_gets_no_config_map(kubernetes: Kubernetes) -> None:
    """`demo` is Helm's name; the RayService is called otherwise."""
    done = run("revoke", HASH, "--release", "headrace/demo")
    assert done.exit_code == 1
    assert "no such RayService; there are: demo-headrace" in done.stderr
    assert not any("patch" in each or "create" in each for each in kubernetes.calls)


def test_clusters_that_do_not_read_it_are_named(kubernetes: Kubernetes) -> None:
    kubernetes.clusters["demo-headrace-0"] = "another"
    kubernetes.write()
    done = run("revoke", HASH, *THERE)
    assert done.exit_code == 1
    assert kubernetes.noted == {"1" * 64: ""}
    assert "within two minutes: demo-headrace-1\n" in done.stdout
    assert "demo-headrace-0 of an earlier version of the chart: does not read" in done.stderr


def test_a_gateway_that_fails_keeps_a_hash_from_no_other_cluster(
    monkeypatch: pytest.MonkeyPatch, kubernetes: Kubernetes, file: Path
) -> None:
    gateway(monkeypatch, None)
    done = run("revoke", HASH, *BY_URL, *THERE)
    assert (done.exit_code, "http://x does not answer" in done.stderr) == (1, True)
    assert kubernetes.noted == {"1" * 64: ""}
    assert run("revoke", "laptop", str(file), *BY_URL, *THERE).exit_code == 1
    assert kubernetes.noted == {"1" * 64: "laptop tenant acme"}
    assert file.read_text() == TENANTS, "so that the second try knows the hash"
    done = run("revoke", "laptop", *BY_URL, *THERE)
    assert done.exit_code == 1
    assert "laptop is not revoked there: the server did not tell its hash" in done.stderr


ROTATED = "sha256:" + "2" * 64


def test_a_rotated_id_revokes_the_key_that_the_server_has_and_leaves_the_files(
    monkeypatch: pytest.MonkeyPatch, kubernetes: Kubernetes, file: Path
) -> None:
    """The file lists the new key already, under the id of the leaked one."""
    gateway(monkeypatch, ANSWER)
    rotated = TENANTS.replace(HASH, ROTATED)
    file.write_text(rotated)
    for release in (THERE, ()):
        done = run("revoke", "laptop", str(file), *BY_URL, *release)
        assert (done.exit_code, file.read_text()) == (1, rotated)
        assert f"another key, {ROTATED}, which is not revoked" in done.stderr
        assert f"revoked is the server's laptop, {HASH}" in done.stderr
    assert kubernetes.noted == {"1" * 64: "laptop tenant acme"}
    file.write_text(TENANTS)
    assert run("revoke", "laptop", str(file), *BY_URL, *THERE).exit_code == 0
    assert tenants_of(file).tenants["acme"].keys == ()


def test_an_id_is_the_files_where_the_server_does_not_answer_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, kubernetes: Kubernetes, file: Path
) -> None:
    gateway(monkeypatch, None)
    done = run("revoke", "laptop", str(file), *BY_URL, *THERE)
    assert (done.exit_code, file.read_text()) == (1, TENANTS)
    assert kubernetes.noted == {"1" * 64: "laptop tenant acme"}
    assert f"the hash of laptop is the one that {file} lists, since the server" in done.stderr


def test_kubectl_that_fails_keeps_the_gateway_from_nothing(
    monkeypatch: pytest.MonkeyPatch, kubernetes: Kubernetes
) -> None:
    asked = gateway(monkeypatch, ANSWER)
    kubernetes.program.unlink()
    monkeypatch.setenv("PATH", str(kubernetes.program.parent))
    done = run("revoke", HASH, *BY_URL, *THERE)
    assert (done.exit_code, asked) == (1, ["/admin/keys/revoke"])
    assert "kubectl cannot be run" in done.stderr
    assert "http://x: revoked laptop of tenant acme" in done.stdout


def test_a_gateway_of_the_version_before_tells_no_hash(
    monkeypatch: pytest.MonkeyPatch, kubernetes: Kubernetes, file: Path
) -> None:
    gateway(monkeypatch, {"revoked": "laptop", "owner": "tenant acme"})
    done = run("revoke", "laptop", *BY_URL, *THERE)
    assert (done.exit_code, kubernetes.noted) == (1, {})
    assert "http://x: revoked laptop of tenant acme" in done.stdout
    assert "is of an earlier version and tells no hash; give the key's hash" in done.stderr
    done = run("revoke", "laptop", str(file), *BY_URL, *THERE)
    assert kubernetes.noted == {"1" * 64: "laptop tenant acme"}
    assert (done.exit_code, "read no ConfigMap of revoked keys" in done.stderr) == (1, True)


def test_a_gateway_alone_asks_for_the_other_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway(monkeypatch, ANSWER)
    said = run("revoke", "laptop", *BY_URL).stdout
    assert "other clusters of its RayService accept it; revoke it with --release too" in said


@pytest.mark.parametrize(
    ("complaint", "way"),
    [
        ("(Forbidden): cannot patch", "accept the key; run this again"),
        (": ConfigMap is invalid: Too long: at most 1048576", "edit configmap demo-headrace-rev"),
    ],
)
def test_what_kubectl_refuses_is_told(kubernetes: Kubernetes, complaint: str, way: str) -> None:
    kubernetes.complains["patch"] = complaint
    kubernetes.write()
    done = run("revoke", HASH, *THERE)
    assert (done.exit_code, kubernetes.noted) == (1, {})
    assert complaint in done.stderr
    assert way in done.stderr
    assert ("run this again" in done.stderr) == ("Forbidden" in complaint)


def test_a_config_map_that_somebody_else_makes_meanwhile_is_patched(kubernetes: Kubernetes) -> None:
    (kubernetes.folder / "demo-headrace-revoked-keys").write_text('{"data": {"other": ""}}')
    kubernetes.complains |= {"patch": "once (NotFound): no such", "create": "(AlreadyExists): is"}
    kubernetes.write()
    assert run("revoke", HASH, *THERE).exit_code == 0
    assert kubernetes.noted == {"other": "", "1" * 64: ""}


def test_what_a_cluster_revoked_is_carried_to_those_that_follow(
    monkeypatch: pytest.MonkeyPatch, kubernetes: Kubernetes, file: Path
) -> None:
    more = "sha256:" + "2" * 64
    rows = [
        {"id": "laptop", "owner": "tenant acme", "state": "revoked"},
        {"id": "desk", "owner": "tenant b", "state": "revoked", "hash": more},
        {"id": "good", "owner": "tenant b", "state": "good"},
    ]
    gateway(monkeypatch, {"keys": rows})
    done = run("carry", *BY_URL, *THERE)
    assert (done.exit_code, kubernetes.noted) == (1, {})
    assert "nothing was done: hashes of laptop are not known" in done.stderr
    done = run("carry", str(file), *BY_URL, *THERE)
    assert done.exit_code == 0
    assert f"hashes of laptop are those that {file} lists; it must be the tenants in" in done.stderr
    assert kubernetes.noted == {"1" * 64: "laptop tenant acme", "2" * 64: "desk tenant b"}
    gateway(monkeypatch, {"keys": rows[2:]})
    assert run("carry", *BY_URL, *THERE).stdout == "no key is revoked there\n"


def test_a_dashboard_knows_too_little_to_carry_what_was_revoked(kubernetes: Kubernetes) -> None:
    done = run("carry", "--address", "http://x:8265", *THERE)
    assert (done.exit_code, kubernetes.calls) == (2, [])
    assert "keys revoked at a gateway are not seen there; --url" in done.stderr
