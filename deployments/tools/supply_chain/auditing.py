"""Whether the locks are still what the registry has, and whether anybody knows a weakness.

The registry is asked through `uv`, which resolves anew and names yanked releases. Weaknesses come
of PyPI's own list, by `pip-audit`; where that list cannot be had, packages count as unheard, never
as sound.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from deployments.tools.supply_chain.lock_sets import SETS, Locked, parsed
from deployments.tools.supply_chain.locking import uv

_PIP_AUDIT = "pip-audit==2.10.1"
_AUDIT_S = 600
# Weaknesses of Python itself that input to Headrace could reach: the first release of each minor
# version without them, and what stands in their way. A distribution may have mended an older one.
_INTERPRETER = {
    "CVE-2024-6232 (tarfile)": ({11: 10, 12: 6, 13: 0}, "archives are read by code of our own"),
    "CVE-2024-0450 (zipfile)": ({11: 8, 12: 2, 13: 0}, "archives are checked for overlaps first"),
}
Package = tuple[str, str]


def of_registry(texts: Mapping[str, str], said: Iterable[str]) -> list[str]:
    """What is wrong with the locks as they stand. `texts`: the same locks, made now; `said`: uv's
    warnings meanwhile."""
    found = sorted({line for line in said if " is yanked" in line})
    for each in SETS:
        now = {_key(package): package for package in parsed(texts[each.name])}
        locked = {_key(package): package for package in parsed(each.path.read_text())}
        wrong = [line for key, package in locked.items() for line in _gone(package, now.get(key))]
        wrong += [_missing(package) for key, package in now.items() if key not in locked]
        found += [f"{each.name}.lock: {complaint}" for complaint in wrong]
    return found


def _key(package: Locked) -> tuple[str, str]:
    return package.name, package.marker


def _gone(package: Locked, now: Locked | None) -> Iterator[str]:
    pinned = f"{package.name}=={package.version}"
    if now is None:
        yield f"{pinned} is not needed any more; run `make lock`"
    elif now.version != package.version:
        yield f"{pinned} cannot be had any more, {now.version} can; run `make lock`"
    elif missing := set(package.digests) - set(now.digests):
        yield f"{pinned}: the registry has no file any more with {', '.join(sorted(missing))}"


def _missing(package: Locked) -> str:
    where = f", {package.marker}" if package.marker else ""
    return f"{package.name}=={package.version}{where} is needed and not there; run `make lock`"


def vulnerabilities(folder: Path) -> tuple[list[str], set[Package]]:
    """What is known of the locks' packages, and the packages of which nothing could be heard."""
    known: list[str] = []
    unheard: set[Package] = set()
    for each in SETS:
        report = _asked(each.path, folder / f"{each.name}.json")
        packages = {(p.name, p.version) for p in parsed(each.path.read_text())}
        answered = {(d["name"], d["version"]) for d in report if "skip_reason" not in d}
        unheard |= packages - answered
        known += _named(report)
    return known, unheard


def _asked(lock: Path, path: Path) -> list[dict[str, Any]]:
    """What pip-audit says of each package; nothing where it cannot be had in time."""
    command = [uv(), "tool", "run", "--from", _PIP_AUDIT, "pip-audit", "--requirement", str(lock)]
    command += ["--no-deps", "--disable-pip", "--format", "json", "--output", str(path)]
    try:
        subprocess.run(command, capture_output=True, timeout=_AUDIT_S, check=False)
    except subprocess.TimeoutExpired:
        return []
    if not path.exists():
        return []
    report: dict[str, Any] = json.loads(path.read_text())
    return list(report["dependencies"])


def _named(report: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for each in report:
        for known in each.get("vulns", ()):
            mended = ", ".join(known["fix_versions"]) or "no release"
            yield f"{each['name']}=={each['version']}: {known['id']}, mended in {mended}"


def interpreter(version: tuple[int, int, int]) -> list[str]:
    """What is known of a Python 3 of this version, by the table above; for people to judge."""
    shown = ".".join(map(str, version))
    return [
        f"Python {shown}: {name}, mended in 3.{version[1]}.{mended[version[1]]}; here {instead}"
        for name, (mended, instead) in _INTERPRETER.items()
        if version[2] < mended.get(version[1], 0)
    ]


def summary(found: Sequence[str], known: Sequence[str], unheard: set[Package]) -> str:
    """One sentence each for the registry and for weaknesses."""
    packages = {(p.name, p.version) for each in SETS for p in parsed(each.path.read_text())}
    lines = [
        f"{len(packages)} packages: {len(found)} differ from what the registry has, or are yanked",
        f"{len(packages) - len(unheard)} packages looked up: {len(known)} weaknesses known",
    ]
    if unheard:
        lines.append(
            f"{len(unheard)} packages were NOT looked up: no list of weaknesses can be reached"
        )
    return "\n".join(lines)
