"""Settings files of tests, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployments.settings.plain import SettingsErrors
from deployments.settings_files.load import load

HASH_1 = "sha256:" + "1" * 64
HASH_2 = "sha256:" + "2" * 64
DEVICE = "models:\n  device:\n    runtime: synthetic\n"


def write(folder: Path, text: str, name: str = "some.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def mistakes(folder: Path, text: str) -> list[str]:
    """`line: path: message` of each mistake in the text."""
    path = write(folder, text)
    with pytest.raises(SettingsErrors) as refused:
        load(path)
    return [str(each).removeprefix(f"{path}:") for each in refused.value.mistakes]
