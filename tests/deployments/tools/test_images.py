"""What is built, mounted and written, with programs that only say what the real ones would."""

from __future__ import annotations

import hashlib
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
if name == "mmdebstrap":
    made = pathlib.Path(next(each for each in words if each.endswith("base.tar")))
    (made.parent / "lists").write_text("abc  deb.debian.org_InRelease\\n")
elif name == "buildah" and words[0] == "build" and "--target=build-cpu" in words:
    for each in words:
        if each.endswith(":/etc/pip.conf:ro"):
            shutil.copy(each.removeprefix("--volume=").partition(":")[0], here / "sent.conf")
elif name == "buildah" and words[0] == "build" and "--target=cpu" in words:
    shutil.copytree(words[-1], here / "sent", dirs_exist_ok=True)
elif name == "buildah":
    print("buildah version 1.2.3 (image-spec 1.0)")
elif words[:2] == ["image", "inspect"]:
    layers = json.loads((here / "layers").read_text())
    said = dict(Digest=layers[words[2]], RootFS=dict(Layers=["sha256:a"]), Size=7_000_000)
    print(json.dumps([said]))
elif words[:2] == ["image", "mount"]:
    print(here / "image")
elif words[:1] == ["create"]:
    print(words[1])
elif words[:1] == ["export"]:
    sys.stdout.buffer.write((here / (words[1].replace("/", "-") + ".tar")).read_bytes())
elif name == "dpkg-query":
    print("bash 5.2 amd64\\nlibstdc++6 1:2023+b1 amd64")
elif words[:3] == ["-m", "pip", "config"]:
    index = here / "index" / "simple"
    print(":env:.retries='7'", f"global.cert='{{here}}/own.crt'", "global.retries='5'", sep="\\n")
    print(f"global.index-url='file://{{index}} https://x.example'")
"""


SOURCES = """# of this machine
Types: deb
URIs: {uri}
Suites: {suite} {suite}-updates
Components: main
"""
LOCKS = {
    "runtime": "numpy==2.0 \\\n    --hash=sha256:ab \\\n    --hash=sha256:cd\n"
    "colorama==1 ; sys_platform == 'win32' \\\n    --hash=sha256:ef\n",
}


def inside(here: Path, path: str, text: str) -> None:
    """A file of each image."""
    file = here / "image" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def installed(here: Path, name: str, version: str) -> None:
    folder = f"usr/local/lib/python3.11/dist-packages/{name}-{version}.dist-info"
    inside(here, f"{folder}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository, and what the fakes know."""
    root, programs = tmp_path / "root", tmp_path / "programs"
    for folder in (root / "requirements", programs, tmp_path / "index/simple"):
        folder.mkdir(parents=True)
    (tmp_path / "own.crt").touch()
    inside(tmp_path, "usr/lib/os-release", 'VERSION_CODENAME=bookworm\nVERSION_ID="12"\n')
    for name, version in (("NumPy", "2.0"), ("headrace", "1.2.3")):
        installed(tmp_path, name, version)
    allowed = SOURCES.format(uri="http://deb.debian.org/debian", suite="bookworm")
    (tmp_path / "apt").write_text(allowed)
    monkeypatch.setattr(images, "_APT", [tmp_path / "apt"])
    (root / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (root / ".gitignore").write_text("out\n")
    for lock in ("build", "compiler", "runtime", "stores", "example"):
        (root / "requirements" / f"{lock}.lock").write_text(LOCKS.get(lock, lock))
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


def test_what_compiles_has_this_machines_settings_and_the_image_has_none(here: Path) -> None:
    images.main([])
    (stage,) = (each for each in asked(here, "buildah", "build") if "--target=build-cpu" in each)
    (image,) = (each for each in asked(here, "buildah", "build") if "--target=cpu" in each)
    mounted = [each.split(":")[1] for each in stage if each.startswith("--volume=")]
    assert mounted == ["/etc/pip-certificates.crt", f"{here}/index", "/etc/pip.conf"]
    assert f"--volume={here}/own.crt:/etc/pip-certificates.crt:ro" in stage
    assert (here / "sent.conf").read_text().splitlines()[1:] == [
        "retries = 7",
        f"index-url = file://{here}/index/simple https://x.example",
        "cert = /etc/pip-certificates.crt",
        "",
    ]
    assert not [each for each in image if each.startswith("--volume=")]
    assert f"--build-context=build-cpu=container-image://{IMAGE}-packages" in image
    assert f"--build-arg=BASE={BASE}" in image
    assert "--annotation=org.opencontainers.image.base.digest=sha256:b" in image
    assert asked(here, "podman", "rmi") == [["podman", "rmi", f"{IMAGE}-packages"]]


@pytest.mark.parametrize("path", ["etc/pip.conf", "etc/pip-certificates.crt", "etc/hostname"])
def test_an_image_with_a_file_of_this_machine_is_refused(here: Path, capsys, path: str) -> None:
    own = Path("/", path)
    inside(here, path, own.read_text() if own.exists() else "")
    assert images.main([]) == 1
    assert f"has files of this machine: /{path}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("uri", "suite", "said"),
    [
        ("http://deb.debian.org/debian", "trixie", "names trixie, trixie-updates, and the image"),
        ("mirror+file:/etc/apt/mirrors/debian.list", "bookworm", "others than debian.org's"),
        ("https://me:token@deb.debian.org/debian", "bookworm", "others than debian.org's"),
        ("https://mirror.example/debian.org/", "bookworm", "others than debian.org's"),
    ],
)
def test_sources_that_must_not_stay_in_an_image_are_refused(
    here: Path, capsys, uri: str, suite: str, said: str
) -> None:
    (here / "apt").write_text(SOURCES.format(uri=uri, suite=suite))
    assert images.main([]) == 1
    told = capsys.readouterr().err
    assert said in told
    assert "token" not in told
    assert not (here / "asked").exists()


def test_sources_of_one_line_each_are_read_too(here: Path) -> None:
    (here / "apt").write_text("deb [arch=amd64] https://deb.debian.org/debian trixie main\n")
    with pytest.raises(images.CannotBuild, match="names trixie"):
        images.sources()


def test_another_debian_is_no_base(here: Path, capsys) -> None:
    inside(here, "usr/lib/os-release", 'PRETTY_NAME="Debian 13"\nVERSION_CODENAME=trixie\n')
    assert images.main(["--base", BASE]) == 1
    assert "the base is Debian 13, and must be Debian bookworm" in capsys.readouterr().err
    assert asked(here, "buildah", "build") == []


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
    named = [each["name"] for each in packages["components"]]
    assert named == ["NumPy", "headrace", "bash", "libstdc++6"]
    (files,) = packages["components"][0]["externalReferences"]
    assert [each["content"] for each in files["hashes"]] == ["ab", "cd"]
    assert packages["components"][0]["purl"] == "pkg:pypi/numpy@2.0"
    purl = "pkg:deb/debian/libstdc%2B%2B6@1:2023%2Bb1?arch=amd64&distro=debian-12"
    assert packages["components"][3]["purl"] == purl
    said = json.loads((out / "cpu.provenance.json").read_text())
    assert said["subject"] == [{"name": IMAGE, "digest": {"sha256": "1"}}]
    made_of = [each["uri"] for each in said["predicate"]["buildDefinition"]["resolvedDependencies"]]
    locks = ["build", "compiler", "runtime", "stores", "example"]
    signed = "deb.debian.org_InRelease"
    of_locks = [f"requirements/{each}.lock" for each in locks]
    assert made_of == ["git+headrace", BASE, signed, *of_locks]


def test_provenance_is_of_the_commit_and_not_of_the_working_tree(here: Path) -> None:
    lock = here / "root" / "requirements" / "stores.lock"
    lock.write_text("other")
    images.main([])
    said = json.loads((here / "root/out/images/cpu.provenance.json").read_text())
    made_of = said["predicate"]["buildDefinition"]["resolvedDependencies"]
    (found,) = (each["digest"] for each in made_of if each["uri"] == "requirements/stores.lock")
    assert found == {"sha256": hashlib.sha256(b"stores").hexdigest()}


def test_an_image_that_has_other_packages_than_the_locks_is_refused(here: Path, capsys) -> None:
    installed(here, "evil", "1")
    assert images.main([]) == 1
    assert "no lock names evil==1" in capsys.readouterr().err
    shutil.rmtree(here / "image/usr/local")
    installed(here, "headrace", "1.2.3")
    assert images.main([]) == 1
    assert "the image lacks numpy==2.0 of the locks" in capsys.readouterr().err


def test_two_equal_builds_are_said_to_be_equal(here: Path, capsys) -> None:
    assert images.main(["--twice"]) == 0
    assert "both builds are equal" in capsys.readouterr().out
    assert len(asked(here, "mmdebstrap")) == 2
    assert ["podman", "rmi", f"{IMAGE}-again"] in asked(here, "podman", "rmi")


def test_two_builds_of_the_same_files_are_said_to_differ_elsewhere(here: Path, capsys) -> None:
    digests(here, "sha256:1", "sha256:2")
    for name in (IMAGE, f"{IMAGE}-again"):
        tarfile.open(here / f"{name.replace('/', '-')}.tar", "w").close()
    assert images.main(["--twice"]) == 1
    assert "only the images' configuration differs" in capsys.readouterr().err


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
