"""Two models never write into one folder of records."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployments.settings.plain import SettingsErrors
from deployments.settings_files.load import load

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
    assert (
        "3: models.b.record.folder: is also the folder of models.a; must be a folder of its own"
        in said
    )


@pytest.mark.parametrize(
    ("one", "again"),
    [("file:///mnt/a", "/mnt/a"), ("s3://bucket/a", "s3://bucket/a/"), ("/mnt/a/", "/mnt/./a")],
)
def test_a_folder_is_known_however_it_is_written(tmp_path: Path, one: str, again: str) -> None:
    path = tmp_path / "some.yaml"
    path.write_text(FILE.replace("{folder: recorded}", f"{{folder: {one}}}") % (again, 8000))
    with pytest.raises(
        SettingsErrors, match=r"models\.b\.record\.folder: is also the folder of models\.a"
    ):
        load(path)


def test_folders_of_their_own_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "some.yaml"
    path.write_text(FILE % ("recorded/b", 8000), encoding="utf-8")
    assert load(path).models["b"].record.folder == str(tmp_path / "recorded" / "b")


@pytest.mark.parametrize(
    "folder", ["s3://bucket/recorded/b", "memory://recorded", "file:///mnt/recorded"]
)
def test_an_object_store_or_a_whole_path_is_taken_as_it_is(tmp_path: Path, folder: str) -> None:
    path = tmp_path / "some.yaml"
    path.write_text(FILE % (folder, 8000), encoding="utf-8")
    assert load(path).models["b"].record.folder == folder


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("https://host/recorded", "https://host/recorded cannot be written to; must be a folder"),
        ("s3://me:secret@bucket/recorded", "s3://bucket/recorded cannot be written to"),
        ('"s3://bucket/recorded#sha256=1"', "without a digest or password"),
        ("file://recorded", "must be file:///absolute/path"),
    ],
)
def test_a_url_that_nothing_can_be_written_to_is_refused(
    tmp_path: Path, folder: str, said: str
) -> None:
    path = tmp_path / "some.yaml"
    path.write_text(FILE % (folder, 8000), encoding="utf-8")
    with pytest.raises(SettingsErrors) as refused:
        load(path)
    (only,) = map(str, refused.value.mistakes)
    assert "3: models.b.record.folder: " in only
    assert said in only
    assert "secret" not in only
