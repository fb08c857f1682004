"""A copy of the file elsewhere changes nothing while its models' files are the same."""

from __future__ import annotations

from pathlib import Path

from deployments.control.origin import relative_to, same_content
from deployments.settings_files.load import load

TEXT = "models: {m: {runtime: onnxruntime, source: model, record: {folder: kept}}}\n"


def checkout(folder: Path, weights: bytes) -> Path:
    (folder / "model" / "inner").mkdir(parents=True)
    (folder / "model" / "inner" / "weights").write_bytes(weights)
    (folder / "settings.yaml").write_text(TEXT)
    return folder


def source(folder: Path, served: Path) -> tuple[str | None, str | None]:
    settings = load(folder / "settings.yaml", here=False, absolute=False)
    model = relative_to(settings, folder, served).models["m"]
    return model.source, model.record.folder


def test_the_same_files_in_another_checkout_are_the_same_model(tmp_path: Path) -> None:
    one, two = checkout(tmp_path / "one", b"same"), checkout(tmp_path / "two", b"same")
    assert source(one, one) == source(two, one) == ("model", "kept")


def test_other_files_make_it_another_model(tmp_path: Path) -> None:
    one, two = checkout(tmp_path / "one", b"same"), checkout(tmp_path / "two", b"diff")
    assert source(two, one) == (str(two / "model"), "kept")


def test_content_is_names_and_bytes(tmp_path: Path) -> None:
    one, two = checkout(tmp_path / "one", b"x"), checkout(tmp_path / "two", b"x")
    assert same_content(one, two)
    (two / "more").write_text("")
    assert not same_content(one, two)
    assert not same_content(one, tmp_path / "none")
    assert not same_content(one / "settings.yaml", one)
    assert same_content(one / "settings.yaml", two / "settings.yaml")
