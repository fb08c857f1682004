"""`headrace init` writes a file that checks, and `completion` what a shell can run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from deployments import cli
from deployments.settings_files.load import load
from deployments.tools.init import text


def run(*words: str) -> Result:
    return CliRunner().invoke(cli.main, words)


def test_the_file_is_fine_as_it_is_and_left_alone_where_it_exists(tmp_path: Path) -> None:
    path = tmp_path / "new.yaml"
    done = run("init", str(path))
    assert done.exit_code == 0, done.output
    checked = run("check", str(path))
    assert checked.stdout == "ok: 1 model (own), 1 tenant (default), http://127.0.0.1:8000\n"
    path.write_text("mine")
    again = run("init", str(path))
    assert (again.exit_code, "exists already" in again.stderr) == (1, True)
    assert path.read_text() == "mine"


def test_each_line_that_is_commented_out_is_fine_too(tmp_path: Path) -> None:
    lines = text("new.yaml").splitlines()
    settings = [n for n, each in enumerate(lines) if re.match(r" +# [a-z_]+: ", each)]
    assert len(settings) == 4
    path = tmp_path / "new.yaml"
    for number in settings:
        changed = [*lines]
        changed[number] = changed[number].replace("# ", "", 1)
        kind = "onnxruntime" if "source" in changed[number] else "synthetic"
        path.write_text("\n".join(changed).replace("runtime: synthetic", f"runtime: {kind}"))
        load(path, here=False)


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    done = run("init", str(tmp_path / "none" / "x.yaml"))
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "cannot be written: No such file or directory" in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completion(shell: str) -> None:
    assert "_HEADRACE_COMPLETE" in run("completion", shell).stdout


def test_commands_are_completed_in_bash() -> None:
    program = run("completion", "bash").stdout + (
        '\nCOMP_WORDS=(headrace roll); COMP_CWORD=1; _headrace_completion "$0"'
        "\nprintf '%s' \"${COMPREPLY[*]}\""
    )
    shell = ["bash", "-c", program, Path(sys.executable).with_name("headrace")]
    done = subprocess.run(shell, capture_output=True, text=True, check=True)
    assert done.stdout == "rollout"
