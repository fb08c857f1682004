"""Two models never write into one folder of records."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployments.settings.load import SettingsErrors, load

FILE = """models:
  a: {runtime: synthetic, record: {folder: recorded}}
  b: {runtime: synthetic, record: {folder: %s}}
gateway: {port: %s}
"""


@pytest.mark.parametrize("again", ["recorded", "./recorded", "x/../recorded"])
@pytest.mark.parametrize("port", [8000, 0])
def test_a_folder_that_another_model_has_is_refused(tmp_path: Path, again: str, port: int) -> None:
    path = tmp_path / "some.yaml"
    path.write_text(FILE % (again, port), encoding="utf-8")
    with pytest.raises(SettingsErrors) as refused:
        load(path)
    said = [str(each).removeprefix(f"{path}:") for each in refused.value.mistakes]
    assert "3: models.b.record.folder: is models.a's; must be its own" in said


def test_folders_of_their_own_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "some.yaml"
    path.write_text(FILE % ("recorded/b", 8000), encoding="utf-8")
    assert load(path).models["b"].record.folder == str(tmp_path / "recorded" / "b")
