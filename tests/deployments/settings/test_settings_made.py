"""A script's model is made once, whole or not at all; nothing but the examples' scripts is run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import examples
from deployments.settings_files.sources import SourceError, absolute
from deployments.settings_files.sources import resolve as source_path

SCRIPT = (
    "import pathlib, sys; p = pathlib.Path(sys.argv[1]); p.mkdir(); (p / 'it').write_text('x')\n"
)


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that counts as a part of `examples`, also in the processes that scripts run in."""
    parent = tmp_path / "path" / "examples"
    parent.mkdir(parents=True)
    (parent / "__init__.py").write_text("")
    monkeypatch.setattr(examples, "__path__", [str(parent)])
    monkeypatch.setenv("PYTHONPATH", str(parent.parent))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return parent


def test_it_is_made_once_and_again_when_the_script_changes(scripts: Path) -> None:
    script = scripts / "make_thing.py"
    script.write_text(SCRIPT)
    first = source_path("made:thing/it")
    assert first.read_text() == "x"
    first.write_text("kept")
    assert source_path("made:thing/it").read_text() == "kept"
    script.write_text(SCRIPT + "# changed\n")
    assert source_path("made:thing/it") != first


def test_those_who_ask_at_once_get_what_one_of_them_made(scripts: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    (scripts / "make_thing.py").write_text(
        f"{SCRIPT}open({str(runs)!r}, 'a').write('run ')\nimport time; time.sleep(0.2)\n"
    )
    with ThreadPoolExecutor(3) as pool:
        made = set(pool.map(source_path, ["made:thing/it"] * 3))
    assert len(made) == 1
    assert runs.read_text() == "run "


def test_what_a_killed_process_left_is_removed(scripts: Path) -> None:
    (scripts / "make_thing.py").write_text(SCRIPT)
    place = source_path("made:thing/it").parent
    left = place.with_name(f"{place.name}.build-dead")
    place.rename(left)
    assert source_path("made:thing/it").read_text() == "x"
    assert not left.exists()


def test_a_script_that_fails_leaves_nothing_and_says_why(scripts: Path) -> None:
    (scripts / "make_thing.py").write_text("import no_such_library_of_mine\n")
    with pytest.raises(SourceError, match="No module named 'no_such_library_of_mine'"):
        source_path("made:thing/it")
    made = scripts.parents[1] / "cache" / "headrace" / "made"
    assert not [path for path in made.iterdir() if path.is_dir()]


def test_what_the_script_did_not_make_is_missed(scripts: Path) -> None:
    (scripts / "make_thing.py").write_text(SCRIPT)
    with pytest.raises(SourceError, match="no file or folder"):
        source_path("made:thing/other")


@pytest.mark.parametrize("name", ["", "nothing", "Thing", "../thing", "a.b", "os"])
def test_only_the_examples_own_scripts_are_run(name: str) -> None:
    with pytest.raises(SourceError, match="must be made:NAME"):
        source_path(f"made:{name}")


@pytest.mark.parametrize("inside", ["../x", "a/../../x", "/etc/passwd"])
def test_what_is_made_cannot_be_left(inside: str) -> None:
    with pytest.raises(SourceError, match="leads out"):
        source_path(f"made:thing/{inside}")


def test_it_is_no_path_of_the_settings_file(tmp_path: Path) -> None:
    assert absolute("made:thing/it", tmp_path) == "made:thing/it"
