"""Each command calls what it should, prints the outcome and exits with the code it promises."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from safetensors.numpy import save_file

import routers.shared
from deployments import cli
from deployments.gateway.tenancy.tenants import hash_key
from deployments.settings_files.load import load
from deployments.tools import change
from deployments.tools import serve as host
from deployments.tools.where import ServerRefused, Where

HEAD = "http://head:8265"
HERE, THERE = Where(), Where(address=HEAD)
GOOD = "models: {device: {runtime: synthetic}}\ntenants: {a: {}, b: {}}\n"


def run(*words: str) -> Result:
    return CliRunner().invoke(cli.main, words)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "bad.yaml"
    path.write_text("models:\n  device: {runtime: synthetic, retri: 1}\n  B: {}\n")
    return path


@pytest.mark.parametrize(
    ("suffix", "core"), [(".py", "interpreted"), (EXTENSION_SUFFIXES[0], "compiled")]
)
def test_the_version_says_how_the_core_was_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, suffix: str, core: str
) -> None:
    (tmp_path / f"dispatcher{suffix}").touch()
    monkeypatch.delitem(sys.modules, "routers.batch.scheduler", raising=False)
    monkeypatch.setattr(routers.shared, "__path__", [str(tmp_path)])
    done = run("--version")
    assert (done.exit_code, done.stdout.endswith(f", core {core}\n")) == (0, True)


def test_check_sums_up_a_file_that_is_fine(good: Path) -> None:
    done = run("check", str(good))
    assert (done.exit_code, done.stdout) == (
        0,
        "ok: 1 model (device), 2 tenants (a, b), http://127.0.0.1:8000\n",
    )


def test_check_says_what_a_policy_will_do(tmp_path: Path) -> None:
    path = tmp_path / "scaled.yaml"
    path.write_text(
        "models:\n"
        "  a: {runtime: synthetic, replicas: {min: 0, max: 4}, scaling: {policy: scale-to-zero}}\n"
        "  b: {runtime: synthetic}\n"
    )
    first, name, *sentences = run("check", str(path)).stdout.splitlines()
    assert first.startswith("ok: 2 models (a, b)")
    assert (name, sentences[0]) == ("a:", "  The model has 0 to 4 replicas.")
    assert any("without a request the last replica goes" in each for each in sentences)
    assert "b:" not in sentences


def test_check_says_which_models_take_no_texts(tmp_path: Path) -> None:
    folder = tmp_path / "encoder"
    folder.mkdir()
    config = {"model_type": "roberta", "hidden_size": 8, "num_attention_heads": 2}
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"a": np.ones(2, np.float32)}, folder / "model.safetensors")
    path = tmp_path / "own.yaml"
    path.write_text(
        "models:\n"
        "  a: {runtime: torch, source: encoder, task: embed, options: {pooling: mean}}\n"
        "  b: {runtime: torch, source: encoder}\n"
    )
    assert run("check", str(path)).stdout.splitlines()[1:] == [
        "a: has no tokenizer.json beside its weights, so it takes token ids and no texts; add the "
        "model's own for texts"
    ]
    (folder / "tokenizer.json").write_text("{}")
    assert run("check", str(path)).stdout.splitlines()[1:] == []


def test_check_explains_every_mistake_and_exits_2(bad: Path) -> None:
    done = run("check", str(bad))
    assert done.exit_code == 2
    assert done.stdout == ""
    first, second, *_ = done.stderr.splitlines()
    assert first == f"{bad}:2: models.device.retri: unknown setting; did you mean retry?"
    assert second.startswith(f"{bad}:3: models.B: is no model name")


def test_check_without_the_models_files_is_for_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "far.yaml"
    path.write_text("models: {a: {runtime: openvino, source: far.onnx}}\n")
    assert run("check", str(path)).exit_code == 2
    assert run("check", "--elsewhere", str(path)).exit_code == 0


def test_missing_file_and_missing_argument_exit_2(tmp_path: Path) -> None:
    gone = run("check", str(tmp_path / "gone.yaml"))
    assert gone.exit_code == 2
    assert "cannot be read: no such file" in gone.stderr
    assert run("check").exit_code == 2
    assert run("serve", "--port", "0").exit_code == 2


def test_serve_passes_its_overrides_and_exits_with_the_code(
    monkeypatch: pytest.MonkeyPatch, good: Path
) -> None:
    calls: list[tuple[Path, int | None, str | None]] = []

    def serve(path: Path, *, port: int | None, host: str | None) -> int:
        calls.append((path, port, host))
        return 3

    monkeypatch.setattr(host, "serve", serve)
    assert run("serve", str(good), "--port", "8001", "--host", "0.0.0.0").exit_code == 3
    assert run("serve").exit_code == 3
    assert calls == [(good, 8001, "0.0.0.0"), (cli.built_in_example(), None, None)]


def test_mistakes_met_by_serve_exit_2(monkeypatch: pytest.MonkeyPatch, bad: Path) -> None:
    monkeypatch.setattr(host, "serve", lambda path, **_: load(path))
    done = run("serve", str(bad))
    assert done.exit_code == 2
    assert "did you mean retry?" in done.stderr


@pytest.mark.parametrize(
    ("words", "called"),
    [
        (["apply", "f"], ("apply", Path("f"), HERE, {"wait": True})),
        (["apply", "f", "--no-wait", "--address", HEAD],
         ("apply", Path("f"), THERE, {"wait": False})),
        (["diff", "f"], ("diff", Path("f"), HERE, {})),
        (["stop", "--port", "8001"], ("stop", Where(8001), {})),
        (["freeze", "on"], ("freeze", True, HERE, {})),
        (["freeze", "off", "--url", "http://g"], ("freeze", False, Where(url="http://g"), {})),
        (["scale", "m", "3"], ("scale", "m", "", 3, HERE, {})),
        (["scale", "m", "auto", "--group", "g"], ("scale", "m", "g", None, HERE, {})),
        (["rollout", "promote", "m"], ("promote", "m", HERE, {})),
        (["rollout", "abort", "m", "--address", HEAD], ("abort", "m", "", THERE, {})),
        (["rollout", "back", "m"], ("back", "m", HERE, {})),
    ],
)  # fmt: skip
def test_a_change_is_told_what_and_where(
    monkeypatch: pytest.MonkeyPatch, words: list[str], called: tuple[object, ...]
) -> None:
    calls: list[tuple[object, ...]] = []

    def record(*args: object, **options: object) -> int:
        calls.append((called[0], *args, options))
        return 4

    monkeypatch.setattr(change, str(called[0]), record)
    assert run(*words).exit_code == 4
    assert calls == [called]


@pytest.mark.parametrize(
    "words",
    [
        ["apply"], ["verify", "f"], ["record", "f"], ["check"], ["freeze", "perhaps"],
        ["scale", "m"], ["scale", "m", "some"], ["scale", "m", "--", "-1"], ["scale", "m", "1.5"],
        ["check", "f", "--write"], ["check", "f", "--elsewhere", "--fingerprint", "m"],
        ["key", "new", "f"], ["logs"], ["stop", "--port", "0"], ["kube", "why", "a", "b"],
        ["rollout", "forwards", "m"], ["nothing"],
    ],
)  # fmt: skip
def test_wrong_arguments_are_one_line_and_the_page_that_helps(words: list[str]) -> None:
    done = run(*words)
    assert (done.exit_code, done.stdout) == (2, "")
    wrong, helps = done.stderr.splitlines()
    assert wrong[0].isupper() or wrong[0] == "-"
    assert helps.startswith("see `main")
    assert helps.endswith("--help`")


def test_a_model_that_the_file_has_not_is_named(good: Path) -> None:
    for words in (["verify"], ["record"], ["profile"], ["check", "--fingerprint"]):
        command, *options = words
        done = run(command, str(good), *options, "nobody")
        assert (done.exit_code, done.stdout) == (2, ""), done.output
        (line,) = done.stderr.splitlines()
        assert "nobody" in line
        assert "device" in line


def test_refusal_of_the_server_exits_1_with_its_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(where: Where, request: object) -> dict[str, object]:
        raise ServerRefused("starting")

    monkeypatch.setattr(Where, "ask", refuse)
    done = run("status")
    assert (done.exit_code, done.stderr) == (1, "starting\n")


def test_fault_that_nobody_expected_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(where: Where, request: object) -> dict[str, object]:
        raise ZeroDivisionError

    monkeypatch.setattr(Where, "ask", broken)
    assert isinstance(run("status").exception, ZeroDivisionError)


def test_status_is_a_table_or_json(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = {
        "url": "http://here",
        "pid": 1,
        "uptime_s": 1.0,
        "gateways": 1,
        "models": [],
        "frozen": False,
        "problem": None,
    }
    monkeypatch.setattr(Where, "ask", lambda where, request: snapshot)
    assert json.loads(run("status", "--json").stdout) == snapshot
    assert "http://here" in run("status").stdout


def test_new_key_comes_with_its_hash() -> None:
    key, hashed = (line.split()[1] for line in run("key", "new").stdout.splitlines())
    assert hashed == hash_key(key)


@pytest.mark.parametrize(
    ("name", "model"),
    [("minilm.yaml", "minilm"), ("device.yaml", "device"), ("tenants.yaml", "device")],
)
def test_examples_are_settings(name: str, model: str) -> None:
    found = load(cli.built_in_example().with_name(name), here=False)
    assert list(found.models) == [model]
    assert (found.gateway.host, found.gateway.port) == ("127.0.0.1", 8000)


def imported_by(program: str) -> set[str]:
    code = f"{program}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_help_imports_nothing_slow() -> None:
    slow = {"ray", "numpy", "pydantic", "yaml", "rich", "psutil"}
    assert not slow & imported_by("import deployments.cli")


@pytest.mark.slow
def test_check_imports_no_backend_and_no_cluster(good: Path) -> None:
    slow = {"ray", "torch", "openvino", "onnxruntime", "tokenizers", "rich"}
    assert not slow & imported_by(
        f"from deployments.settings_files.load import load; load({str(good)!r})"
    )
