"""Whose licence is named how, and which texts go with it."""

from __future__ import annotations

from importlib.metadata import PathDistribution
from pathlib import Path, PurePosixPath

import pytest

from deployments.tools.supply_chain.notices import is_notice, licence, notices


def package(folder: Path, name: str, *headers: str, text: str = "") -> PathDistribution:
    metadata = folder / f"{name}-1.0.dist-info"
    (metadata / "licenses").mkdir(parents=True)
    lines = ["Metadata-Version: 2.4", f"Name: {name}", "Version: 1.0", *headers]
    (metadata / "METADATA").write_text("\n".join(lines) + "\n")
    (metadata / "licenses" / "LICENSE").write_text(text)
    (metadata / "RECORD").write_text(
        f"{metadata.name}/licenses/LICENSE,,\n{metadata.name}/METADATA,,\n{name}/licence.py,,\n"
    )
    return PathDistribution(metadata)


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        (("License-Expression: MIT OR Apache-2.0", "License: other"), "MIT OR Apache-2.0"),
        (("Classifier: License :: OSI Approved :: ISC License", "License: ours"), "ISC License"),
        (("Classifier: License :: OSI Approved", "License: GPLv2"), "GPLv2"),
        (("License:  Some words,",), "Some words,"),
        ((), "not declared"),
    ],
)  # fmt: skip
def test_a_licence_is_what_the_package_declares_most_exactly(
    tmp_path: Path, headers: tuple[str, ...], said: str
):
    assert licence(package(tmp_path, "one", *headers)) == said


def test_every_package_but_our_own_has_its_part_with_its_texts(tmp_path: Path):
    installed = [
        package(tmp_path, "Two", "License: MIT", text="Do what you like."),
        package(tmp_path, "headrace", "License: Apache-2.0"),
        package(tmp_path, "one", "License: BSD", text="Keep this."),
    ]
    one, two = notices(installed)
    assert "one 1.0\nLicence: BSD\n" in one
    assert "--- LICENSE\nKeep this." in one
    assert "Two 1.0\nLicence: MIT\n" in two
    assert "licence.py" not in one


@pytest.mark.parametrize(
    ("path", "yes"),
    [
        ("one-1.0.dist-info/licenses/LICENSE.txt", True),
        ("one-1.0.dist-info/NOTICE", True),
        ("one-1.0.dist-info/COPYING", True),
        ("one-1.0.dist-info/METADATA", False),
        ("one/license.py", False),
    ],
)
def test_texts_are_those_among_the_metadata(path: str, yes: bool):
    assert is_notice(PurePosixPath(path)) is yes
