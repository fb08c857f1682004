"""The digest of the actors' code: it changes with any of their sources, and with nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from deployments.contract.codec import SPOKEN, WIRE
from deployments.process.code_version import code_version, sources_digest

ROOT = Path(__file__).parents[3]


def test_a_release_speaks_its_own_version_and_the_one_before() -> None:
    assert SPOKEN == (WIRE, WIRE - 1)


def test_the_digest_changes_with_a_source_its_name_and_its_folder(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    source = tmp_path / "a" / "one.py"
    source.write_text("x = 1\n")
    digests = [sources_digest(tmp_path, ("a",))]
    source.write_text("x = 2\n")
    digests.append(sources_digest(tmp_path, ("a",)))
    source.rename(tmp_path / "a" / "two.py")
    digests.append(sources_digest(tmp_path, ("a",)))
    (tmp_path / "a" / "two.py").rename(tmp_path / "a" / "b" / "two.py")
    digests.append(sources_digest(tmp_path, ("a",)))
    assert len(set(digests)) == 4
    (tmp_path / "a" / "notes.txt").write_text("not a source")
    (tmp_path / "other.py").write_text("not in the folder")
    assert sources_digest(tmp_path, ("a",)) == digests[-1]


def test_an_installed_copy_has_the_digest_of_its_sources(tmp_path: Path) -> None:
    """As a wheel lays it out: the packages side by side in a folder of the path."""
    for package in ("deployments", "autoscaling"):
        for path in (ROOT / package).rglob("*.py"):
            target = tmp_path / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    said = "from deployments.process.code_version import code_version; print(code_version())"

    def digest() -> str:
        command = [sys.executable, "-c", said]
        where = {"PYTHONPATH": str(tmp_path)}
        return subprocess.check_output(command, cwd=tmp_path, env=where, text=True).strip()

    assert digest() == code_version()
    actor = tmp_path / "deployments" / "control" / "__init__.py"
    actor.write_text(actor.read_text() + "# changed\n")
    assert digest() != code_version()
