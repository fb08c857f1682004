"""What is built, mounted and written, with programs that only say what the real ones would."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from deployments.tools import images

BASE = "localhost/debian:bookworm"
IMAGE = "localhost/headrace:1.2.3"
# Says what it was asked, keeps what it was sent, and answers as the program whose name it has.
FAKE = """#!{python} -IS
import json, pathlib, shutil, sys
name, words = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
here = pathlib.Path({here!r})
with (here / "asked").open("a") as asked:
    asked.write(json.dumps([name, *words]) + "\\n")
if name == "buildah" and words[0] == "build" and "--target=cpu" in words:
    shutil.copytree(words[-1], here / "sent", dirs_exist_ok=True)
elif name == "buildah":
    print("buildah version 1.2.3 (image-spec 1.0)")
elif words[:2] == ["image", "inspect"]:
    layers = json.loads((here / "layers").read_text())
    said = dict(Digest=layers[words[2]], RootFS=dict(Layers=["sha256:a"]), Size=7_000_000)
    print(json.dumps([said]))
elif words[:2] == ["image", "mount"]:
    print("/mounted")
elif words[:1] == ["create"]:
    print(words[1])
elif words[:1] == ["export"]:
    sys.stdout.buffer.write((here / (words[1].replace("/", "-") + ".tar")).read_bytes())
elif name == "dpkg-query":
    print("bash 5.2 amd64\\nca-certificates 2023 all")
elif words[:3] == ["-m", "pip", "config"]:
    index = here / "index" / "simple"
    debug = f"env:\\n  {{here}}/pip.conf, exists: True\\n  /etc/none.conf, exists: False"
    print(debug if words[3] == "debug" else f"global.index-url='file://{{index}} https://x.example'")
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository, and what the fakes know."""
    root, programs = tmp_path / "root", tmp_path / "programs"
    for folder in (
        root / "requirements",
        root / "out" / "sbom",
        programs,
        tmp_path / "index/simple",
    ):
        folder.mkdir(parents=True)
    (tmp_path / "pip.conf").touch()
    (root / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (root / ".gitignore").write_text("out\n")
    for lock in ("build", "compiler", "runtime", "stores", "example"):
        (root / "requirements" / f"{lock}.lock").write_text(lock)
    empty = {"components": [{"name": "numpy"}], "metadata": {"component": {}}}
    (root / "out/sbom/cpu.cdx.json").write_text(json.dumps(empty))
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@example"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    for name in ("buildah", "podman", "mmdebstrap", "dpkg-query", "python"):
        (programs / name).write_text(FAKE.format(python=sys.executable, here=str(tmp_path)))
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(images.sys, "executable", str(programs / "python"))
    monkeypatch.setattr(images, "ROOT", root)
    monkeypatch.setattr(images, "OUT", root / "out" / "images")
    digests(tmp_path, "sha256:1", "sha256:1")
    return tmp_path


def digests(here: Path, one: str, again: str) -> None:
    known = {BASE: "sha256:b", IMAGE: one, f"{IMAGE}-again": again}
    (here / "layers").write_text(json.dumps(known))


def asked(here: Path, *first: str) -> list[list[str]]:
    every = [json.loads(line) for line in (here / "asked").read_text().splitlines()]
    return [words for words in every if words[: len(first)] == [*first]]


def test_what_is_committed_is_built_and_nothing_else(here: Path, capsys) -> None:
    (here / "root" / "new.py").touch()
    assert images.main([]) == 0
    assert "what is not committed is left out" in capsys.readouterr().out
    assert (here / "sent" / "pyproject.toml").exists()
    assert not (here / "sent" / "new.py").exists()
    assert not (here / "sent" / "out").exists()


def test_the_build_has_this_machines_certificates_and_pips_settings(here: Path) -> None:
    images.main([])
    (words,) = [each for each in asked(here, "buildah", "build") if "--target=cpu" in each]
    mounted = [each.split(":")[1] for each in words if each.startswith("--volume=")]
    assert mounted == ["/etc/ssl/certs", f"{here}/pip.conf", f"{here}/index"]
    assert f"--build-arg=BASE={BASE}" in words


def test_a_base_of_somebody_else_is_taken_as_it_is(here: Path) -> None:
    digest = "debian:12.15-slim@sha256:abc"
    known = json.loads((here / "layers").read_text()) | {digest: "sha256:abc"}
    (here / "layers").write_text(json.dumps(known))
    assert images.main(["--base", digest]) == 0
    assert asked(here, "mmdebstrap") == []


def test_packages_and_provenance_are_written_beside_it(here: Path) -> None:
    images.main([])
    out = here / "root" / "out" / "images"
    packages = json.loads((out / "cpu.cdx.json").read_text())
    assert [each["name"] for each in packages["components"]] == ["numpy", "bash", "ca-certificates"]
    assert packages["components"][1]["purl"] == "pkg:deb/debian/bash@5.2?arch=amd64"
    said = json.loads((out / "cpu.provenance.json").read_text())
    assert said["subject"] == [{"name": IMAGE, "digest": {"sha256": "1"}}]
    made_of = [each["uri"] for each in said["predicate"]["buildDefinition"]["resolvedDependencies"]]
    locks = ["build", "compiler", "runtime", "stores", "example"]
    assert made_of == ["git+headrace", BASE, *(f"requirements/{each}.lock" for each in locks)]


def test_two_equal_builds_are_said_to_be_equal(here: Path, capsys) -> None:
    assert images.main(["--twice"]) == 0
    assert "both builds are equal" in capsys.readouterr().out
    assert len(asked(here, "mmdebstrap")) == 2


def test_of_two_builds_that_differ_the_files_are_named(here: Path, capsys) -> None:
    digests(here, "sha256:1", "sha256:2")
    for name, text in ((IMAGE, "1"), (f"{IMAGE}-again", "2")):
        (here / "same").write_text("same")
        (here / "other").write_text(text)
        with tarfile.open(here / f"{name.replace('/', '-')}.tar", "w") as tar:
            tar.add(here / "same", "etc/same")
            tar.add(here / "other", "etc/other")
    assert images.main(["--twice"]) == 1
    assert "etc/other" in capsys.readouterr().err


def test_a_program_that_is_missing_is_named(here: Path, monkeypatch, capsys) -> None:
    (here / "programs" / "mmdebstrap").unlink()
    (here / "programs" / "git").symlink_to(str(shutil.which("git")))
    monkeypatch.setenv("PATH", f"{here}/programs")
    assert images.main([]) == 1
    assert "mmdebstrap is not installed" in capsys.readouterr().err
