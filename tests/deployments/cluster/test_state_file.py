"""A server is found by its state file, and never mistaken for another process of the same pid."""

from __future__ import annotations

import dataclasses
import os
import stat
from pathlib import Path

import pytest

from deployments.cluster import state_file
from deployments.cluster.state_file import NoServer, ProcessMark, ServerState

OURS = ProcessMark.of(os.getpid())
RECYCLED = ProcessMark(os.getpid(), OURS.created_s - 60)
GONE = ProcessMark(2**22 + 1, 1.0)


def state(port: int = 8000, server: ProcessMark = OURS) -> ServerState:
    return ServerState(
        port=port,
        server=server,
        ray_address="127.0.0.1:6379",
        dashboard_url="http://127.0.0.1:8265",
        settings_path="minilm.yaml",
        started_at_s=12.5,
        ports={"http": port},
    )


def test_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = state_file.write(state(), tmp_path / "new" / "folder")
    assert state_file.read(8000, path.parent) == state()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_writing_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    state_file.write(state(), tmp_path)
    again = dataclasses.replace(state(), settings_path="other.yaml")
    state_file.write(again, tmp_path)
    assert state_file.read(8000, tmp_path) == again
    assert [path.name for path in tmp_path.iterdir()] == ["8000.json"]


def test_failed_write_keeps_the_old_state(tmp_path: Path) -> None:
    state_file.write(state(), tmp_path)
    broken = dataclasses.replace(state(), settings_path=object())  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        state_file.write(broken, tmp_path)
    assert state_file.read(8000, tmp_path) == state()
    assert [path.name for path in tmp_path.iterdir()] == ["8000.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"port": 8000}', '{"server": 3}', "null"])
def test_file_that_is_no_state_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "8000.json").write_text(text)
    assert state_file.read(8000, tmp_path) is None
    assert state_file.listing(tmp_path) == []


def test_recycled_pid_is_not_the_server() -> None:
    assert OURS.process() is not None
    assert RECYCLED.process() is None
    assert GONE.process() is None
    assert state().alive
    assert not state(server=RECYCLED).alive


def test_listing_is_by_port_and_includes_stale_ones(tmp_path: Path) -> None:
    for port, server in ((9000, OURS), (800, GONE)):
        state_file.write(state(port, server), tmp_path)
    (tmp_path / "notes.json").write_text("{}")
    assert [each.port for each in state_file.listing(tmp_path)] == [800, 9000]
    assert state_file.listing(tmp_path / "none") == []


def test_only_server_is_found_without_its_port(tmp_path: Path) -> None:
    state_file.write(state(8000), tmp_path)
    state_file.write(state(8001, RECYCLED), tmp_path)
    assert state_file.find(None, tmp_path).port == 8000
    assert state_file.find(8000, tmp_path).port == 8000


def test_stale_server_is_not_found(tmp_path: Path) -> None:
    state_file.write(state(8001, RECYCLED), tmp_path)
    with pytest.raises(NoServer, match="no server of ours runs on port 8001"):
        state_file.find(8001, tmp_path)
    with pytest.raises(NoServer, match="runs here; start one"):
        state_file.find(None, tmp_path)


def test_of_several_servers_one_must_be_named(tmp_path: Path) -> None:
    state_file.write(state(8000), tmp_path)
    state_file.write(state(8001), tmp_path)
    with pytest.raises(NoServer, match=r"--port \(8000, 8001\)"):
        state_file.find(None, tmp_path)
    assert state_file.find(8001, tmp_path).port == 8001


def test_removing_twice_is_fine(tmp_path: Path) -> None:
    state_file.write(state(), tmp_path)
    state_file.remove(8000, tmp_path)
    state_file.remove(8000, tmp_path)
    assert state_file.read(8000, tmp_path) is None


def test_folder_follows_the_xdg_specification() -> None:
    home = Path.home() / ".local" / "state" / "headrace"
    assert state_file.state_folder({"XDG_STATE_HOME": "/x"}) == Path("/x/headrace")
    assert state_file.state_folder({"XDG_STATE_HOME": "relative"}) == home
    assert state_file.state_folder({}) == home


def test_a_state_folder_that_is_a_file_holds_no_state(tmp_path):
    folder = tmp_path / "headrace"
    folder.write_text("in the way")
    assert state_file.read(8000, folder) is None
    state_file.remove(8000, folder)
    assert folder.read_text() == "in the way"
